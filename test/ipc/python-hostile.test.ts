/** What other processes, threads and time can do to the companion for Python, and one like it to Node. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import {
  CudaEvent,
  CuffiError,
  DeviceBuffer,
  MemoryPool,
  type PeerGoneError,
  PinnedBuffer,
  Stream,
  toDevice,
  VirtualMemory,
} from '../../src/index.ts';
import { Channel, leases, listen, type Peer, Timeline } from '../../src/ipc/index.ts';
import { companionPath } from '../../src/python/companion.ts';
import { onHardware } from '../support/driver.ts';
import { iterations, seed, until } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { type ProcessState, processState } from '../support/process-state.ts';
import { killed, startProcess, startProgram } from '../support/program.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const options = {
  skip: onHardware ? 'the fake ends share the memory of the emulated driver' : noPython,
  timeout: iterations(120_000, 1_200_000),
};

/** Runs a program of fixtures/ beside the companion. Returns its exit code and the end of what it says. */
async function runPython(
  program: string,
  ...args: readonly (string | number)[]
): Promise<[code: unknown, said: string]> {
  const child = startProcess('python3', [`${fixtures}/${program}`, ...args.map(String)], {
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: options.timeout,
    env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
  });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  const [code, signal] = await once(child, 'close');
  return [code ?? signal, said.slice(-8000)];
}

interface Closable {
  close(): void;
}

/**
 * Waits until this process holds no more than before, but for closed signalers. Of the process whose
 * memory was opened last a descriptor is kept.
 */
async function comesDownTo(before: ProcessState, kept = 0): Promise<void> {
  const isDown = (): boolean => {
    const { descriptors, mappings } = processState();
    return descriptors <= before.descriptors + 1 + 3 * kept && mappings <= before.mappings + kept;
  };
  for (let tries = 0; tries < 1000 && !isDown(); tries += 1) await delay(10);
  if (!isDown()) assert.deepEqual(processState(), before);
}

/** How many were received. A closed one is kept until the last value is reached that its sender states. */
let signalers = 0;

/** Closes all objects in a value, wherever an alteration has put them. */
function closeAll(value: unknown): void {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return;
  if (value instanceof Timeline && value.isSignaler) signalers += 1;
  if ('close' in value) {
    (value as Closable).close();
    return;
  }
  const parts = value instanceof Map ? [...value].flat() : value instanceof Set ? [...value] : [];
  const { cause, errors } = value as AggregateError;
  for (const part of [...parts, ...Object.values(value), cause, errors]) closeAll(part);
}

describe('the companion for Python under attack', { skip: options.skip }, () => {
  test(
    'survives what an end, other threads and its own ends do, and leaves nothing',
    options,
    async () => {
      // They wait more than they compute.
      const parts = [0, 1].map((part) => runPython('python-faults.py', '--part', part, 2));
      for (const [code, said] of await Promise.all(parts)) {
        assert.equal(code, 0, said);
        assert.match(said, /^Ran \d\d tests in/m);
      }
    },
  );

  test(
    'refuses altered messages of Node with typed errors, and keeps nothing of them',
    options,
    async (t) => {
      const name = `@cuffi-test-${process.pid}-altered`;
      using listener = listen(name);
      const count = iterations(100, 10_000);
      const ended = runPython('python-altered.py', 'companion', name, count, seed());
      const peer = await listener.accept({ timeoutMs: 20_000 });
      using array = await toDevice(new Float32Array(60));
      using pool = MemoryPool.create({ shareable: true });
      using alone = MemoryPool.create({ shareable: true });
      using pooled = pool.allocate(4096);
      using memory = VirtualMemory.reserve(4 << 20, { shareable: true });
      memory.grow(2 << 20);
      memory.grow(4 << 20);
      using plain = DeviceBuffer.allocate(10_000);
      using event = CudaEvent.create({ interprocess: true });
      using timeline = Timeline.create();
      using signaled = Timeline.create();
      using channel = Channel.create({ slots: 2, byteLength: 4096, deliver: 'all' });
      using pinned = PinnedBuffer.allocate(5000, { shareable: true });
      using stream = Stream.create({ nonBlocking: true });
      const values: readonly unknown[] = [
        array,
        array.slice({ step: -2 }),
        { array, more: [pooled, memory.buffer.readOnly(), event] },
        plain.subarray(10, 9000),
        alone,
        timeline,
        signaled.signaler(),
        channel,
        pinned,
        [
          1,
          -0.5,
          'grün',
          '水',
          2n ** 70n,
          null,
          true,
          new Date(5),
          new Set([1, 'x']),
          new Map([[1, 2]]),
        ],
        {
          bytes: new Uint8Array(300),
          error: new RangeError('r', { cause: new AggregateError([1]) }),
        },
      ];
      for (const value of values) await peer.send(value);
      using latch = new Latch();
      latch.hold(stream);
      await peer.send(array, { stream });
      void peer.request([array, 'asked']).catch(() => {});
      await peer.send(null);
      latch.open();
      const [code, said] = await ended;
      assert.equal(code, 0, said);
      t.diagnostic(said.trim());
      peer.close();
    },
  );

  test(
    'a companion that sends altered messages ends its own connection to Node alone',
    options,
    async (t) => {
      const name = `@cuffi-test-${process.pid}-altering`;
      using listener = listen(name);
      const count = iterations(80, 10_000);
      const outcomes = new Map<string, number>();
      const wrong: unknown[] = [];
      let done = 0;
      const serve = async (peer: Peer): Promise<void> => {
        let outcome = 'nothing came';
        for (;;) {
          try {
            const value = await peer.receive({ timeoutMs: 500 });
            if (value === 'next') continue;
            outcome = 'a value';
            closeAll(value);
          } catch (error) {
            const { name: kind, code } = error as CuffiError;
            if (!(error instanceof CuffiError) && kind !== 'TimeoutError') wrong.push(error);
            // As at the end of each connection.
            if (kind !== 'ClosedError') outcome = `${kind} ${code}`;
            if (peer.closed || kind === 'TimeoutError') break;
          }
        }
        outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
        peer.close();
        done += 1;
      };
      const run = async (times: number): Promise<void> => {
        const ended = runPython('python-altered.py', 'node', name, times, seed());
        const accepted = (async () => {
          for (let at = 0; at < times; at += 1) await serve(await listener.accept());
        })();
        const first = await Promise.race([ended, accepted]);
        assert.equal(first?.[0] ?? 0, 0, first?.[1]);
        await accepted;
        assert.equal((await ended)[0], 0);
      };
      // What is made at the first use stays.
      await run(10);
      await until(() => leases.stats().leases.length === 0);
      const before = processState();
      await run(count);
      assert.deepEqual([done, wrong], [count + 10, []]);
      t.diagnostic(JSON.stringify([...outcomes]));
      await until(() => leases.stats().leases.length === 0);
      await comesDownTo(before, signalers);
    },
  );
});

const steps = [
  'connected',
  'before send',
  'after send',
  'before map',
  'after map',
  'mapped',
  'on a stream',
  'before release',
  'after release',
  'asking',
  'answering',
  'before close',
  'after close',
] as const;

describe('kills in each step of a hand-over', { skip: options.skip }, () => {
  test('of the companion: Node gets PeerGoneError, and all is given back', options, async () => {
    const program = new URL('./fixtures/python-killed.py', import.meta.url);
    using stream = Stream.create({ nonBlocking: true });
    const meet = async (step: string): Promise<void> => {
      await using worker = new PythonWorker(step, {}, program);
      const { peer } = worker;
      const array = await toDevice(new Uint8Array(1000));
      const memory = VirtualMemory.reserve(2 << 20, { shareable: true });
      memory.grow(2 << 20);
      const traffic = (async () => {
        await peer.send(array);
        await peer.send(memory.buffer);
        const back = await peer.receive(step === 'on a stream' ? { stream } : {});
        closeAll(back);
        await peer.send(null);
        if (step === 'asking') await peer.serve(() => delay(200));
        else for (;;) await peer.request([array, 'x']);
      })();
      await assert.rejects(traffic, (error: PeerGoneError) => {
        if (step === 'after close' && error.name === 'ClosedError') return true;
        const { name, code, signal, pid } = error;
        assert.deepEqual(
          { name, code, signal, pid },
          { name: 'PeerGoneError', code: 'peer-gone', signal: 'SIGKILL', pid: peer.process.pid },
          step,
        );
        return true;
      });
      // A stream that waited for it goes on.
      await until(() => stream.done);
      array.close();
      memory.close();
      await until(() => leases.stats().leases.length === 0);
    };
    // What is made at the first use stays.
    for (const step of ['asking', 'on a stream']) await meet(step);
    const before = processState();
    for (const step of steps) for (let at = 0; at < iterations(1, 100); at += 1) await meet(step);
    await comesDownTo(before);
  });

  test('of Node: the companion gets PeerGoneError, and keeps nothing', options, async () => {
    await using worker = new PythonWorker();
    const name = `@cuffi-test-${process.pid}-steps`;
    await worker.ask('listening', { name });
    const client = new URL('./fixtures/python-killed-client.ts', import.meta.url);
    using array = await toDevice(new Uint8Array(10));
    await worker.ask('read', { thing: array });
    const before = await worker.ask('counts');
    for (const step of [
      'connected',
      'sent',
      'received',
      'released',
      'on a stream',
      'asking',
      'closing',
    ])
      for (let at = 0; at < iterations(1, 100); at += 1) {
        const child = startProgram(client, [name, step], {
          stdio: ['ignore', 'ignore', 'inherit'],
        });
        const end = await worker.ask<string>('ended');
        const expected =
          step === 'closing'
            ? /^(PeerGone|Closed)Error: /
            : /^PeerGoneError: process \d+ has ended/;
        assert.match(end, expected, step);
        await killed(child);
        let counts = await worker.ask('counts');
        for (let tries = 0; tries < 100 && !isDeepStrictEqual(counts, before); tries += 1) {
          await delay(20);
          counts = await worker.ask('counts');
        }
        assert.deepEqual(counts, before, step);
      }
  });
});
