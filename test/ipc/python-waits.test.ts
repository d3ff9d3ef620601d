/** What streams of the companion may have queued behind waits for other processes. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type DeviceArray, Stream, toDevice } from '../../src/index.ts';
import { Timeline } from '../../src/ipc/index.ts';
import { companionPath } from '../../src/python/companion.ts';
import { onHardware } from '../support/driver.ts';
import { Latch } from '../support/latch.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const program = new URL('./fixtures/python-channels.py', import.meta.url);

describe('streams of Python that wait', { skip: noPython, timeout: 120_000 }, () => {
  test('have the limits of Node, for waits, operations, signals and slots', {
    skip: onHardware ? 'one of them needs streams of the emulated driver' : false,
  }, () => {
    const { status, stderr } = spawnSync('python3', [`${fixtures}/python-waits.py`], {
      encoding: 'utf8',
      env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
    });
    assert.equal(status, 0, stderr.slice(-8000));
    assert.match(stderr, /^Ran 15 tests in/m);
  });

  test('with too much work: what is sent behind that arrives when it is done', async () => {
    await using python = new PythonWorker('serve', {}, program);
    const evaluate = (source: string): Promise<unknown> => python.ask('evaluate', { source });
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    await python.ask('keep', { name: 'given', thing: timeline });
    await evaluate("kept.update(pinned=cuffi.pinned(16), array=cuffi.empty(16, 'uint8'))");
    await evaluate("kept['given'].wait(1, stream)");
    const copies = "[kept['pinned'].copy_to(kept['array'], stream) for _ in range(959)] and None";
    assert.equal(await evaluate(copies), null);
    // One operation more would block the process inside the driver: so the host tells when it is done.
    assert.equal(await evaluate("peer.send(kept['array'], stream=stream)"), null);
    const byHost = 'sum(map(len, peer._connection.order.own.host_stores.values()))';
    assert.equal(await evaluate(byHost), 1);
    using array = (await python.peer.receive()) as DeviceArray;
    const copied = array.copyToHost();
    assert.equal(await Promise.race([copied, evaluate('7')]), 7);
    timeline.signal(1, { stream });
    assert.equal((await copied).length, 16);
    assert.equal(await evaluate(byHost), 0);
    await evaluate("[kept.pop(name).close() for name in ('given', 'pinned', 'array')] and None");
  });

  test('with too many waits: the host waits for what is received', async () => {
    await using python = new PythonWorker('serve', {}, program);
    const evaluate = (source: string): Promise<unknown> => python.ask('evaluate', { source });
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using array = await toDevice(new Float32Array(4));
    await python.ask('keep', { name: 'given', thing: timeline });
    const waits = "[kept['given'].wait(value, stream) for value in range(1, 321)] and None";
    assert.equal(await evaluate(waits), null);
    using latch = new Latch(other.context);
    latch.hold(other);
    void python.peer.send(array, { stream: other });
    const received = evaluate('kept.update(got=peer.receive(timeout=20, stream=stream))');
    setTimeout(() => latch.open(), 100);
    assert.equal(await received, null);
    const queued = 'cuffi._waits.stream_of(cuffi._devices.all_devices()[0], stream).wait_count';
    assert.equal(await evaluate(queued), 320);
    timeline.signal(320, { stream });
    await evaluate("[kept.pop(name).close() for name in ('given', 'got')] and None");
  });
});
