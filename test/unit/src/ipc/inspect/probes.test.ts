import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { Context, DeviceBuffer } from '../../../../../src/index.ts';
import { offerProbes, PROBES, takeProbes } from '../../../../../src/ipc/inspect/probes.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

before(() => {
  emulate();
  Context.primary().memoryInfo();
});

/** What is reported of a process that sends these messages. */
async function reportOf(messages: readonly unknown[]) {
  using peers = peerPair();
  const report = takeProbes(peers.a);
  for (const message of messages) await peers.b.send(message as object);
  await peers.b.send({ step: 'done', reason: 'the end' });
  return await report;
}

const begin = { probe: 'event', step: 'begin' };
const done = (reason: string) => ({ results: [], reason });

describe('takeProbes', () => {
  test('takes no message that does not belong there', async () => {
    for (const wrong of [
      [7],
      [null],
      [{}],
      [{ step: 'begin' }],
      [{ probe: 'constructor', step: 'begin' }],
      [{ probe: 'event', step: 'end', isWrittenBack: true }],
      [begin, begin],
      [begin, { probe: 'pool', step: 'end', isWrittenBack: true }],
      [begin, { probe: 'event', step: 'object', object: 7 }],
      [begin, { probe: 'event', step: 'more' }],
    ])
      assert.deepEqual(await reportOf(wrong), done('the other process sent an invalid message'));
    assert.deepEqual(await reportOf([]), done('the end'));
  });

  test('ends after as many probes as there are, and with the connection', async () => {
    const failed = { probe: 'event', step: 'failed', code: 'x', message: 'y'.repeat(5000) };
    const { results, reason } = await reportOf(Array(20).fill([begin, failed]).flat());
    assert.equal(reason, 'the other process sent too many probes');
    assert.equal(results.length, PROBES.length);
    assert.equal(results[0]?.reason.length, 1000);
    using peers = peerPair();
    const report = takeProbes(peers.a);
    peers.b.close();
    assert.match((await report).reason, /closed/);
  });

  test('finds objects that are missing, of another kind, or with other contents', async () => {
    using small = DeviceBuffer.allocate(4096);
    using large = DeviceBuffer.allocate(64 << 10);
    for (const [probe, objects, expected] of [
      ['event', [], 'it did not arrive'],
      ['event', [{}], 'it arrived as another object'],
      ['legacy', [small], 'it arrived with another size'],
      ['legacy', [large], 'its contents differ here'],
      ['read-only', [large], 'it arrived as read-write memory'],
    ] as const) {
      const { results } = await reportOf([
        { probe, step: 'begin' },
        ...objects.map((object) => ({ probe, step: 'object', object })),
        { probe, step: 'end', isWrittenBack: true },
      ]);
      assert.deepEqual(
        results.map(({ name, ok, reason }) => [name, ok, reason]),
        [[probe, false, expected]],
      );
    }
  });
});

describe('offerProbes', () => {
  test('sees whether the other process has written back', async () => {
    using peers = peerPair();
    void offerProbes(peers.b).then(() => peers.b.close());
    const written: unknown[] = [];
    for await (const message of peers.a) {
      const { step, probe, object, isWrittenBack } = message as Record<string, unknown>;
      // It writes nothing.
      (object as Disposable | undefined)?.[Symbol.dispose]();
      if (step === 'end' && ['legacy', 'pool', 'virtual'].includes(String(probe)))
        written.push(isWrittenBack);
    }
    assert.deepEqual(written, [false, false, false]);
  });

  test('leaves nothing allocated when the other process goes', async () => {
    const context = Context.primary();
    await context.flush();
    const { free } = context.memoryInfo();
    using peers = peerPair();
    const offering = offerProbes(peers.b);
    await peers.a.receive();
    peers.a.close();
    await offering;
    peers.b.close();
    await context.flush();
    assert.equal(context.memoryInfo().free, free);
  });

  test('opens no context in a process that has not used the device', async () => {
    emulate();
    using peers = peerPair();
    void offerProbes(peers.b);
    assert.deepEqual(await takeProbes(peers.a), done('that process has not used a GPU yet'));
  });
});
