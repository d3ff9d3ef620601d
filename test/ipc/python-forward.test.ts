/** Objects of this process that Python passes on to a third process. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CudaEvent, DeviceBuffer, MemoryPool, toDevice, VirtualMemory } from '../../src/index.ts';
import { leases } from '../../src/ipc/index.ts';
import { until } from '../support/iterations.ts';
import { killed } from '../support/program.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const options = { skip: noPython, timeout: 30_000 };
let pairs = 0;

/** Two processes in Python, which are also connected to each other. */
async function pair(): Promise<{ first: PythonWorker; third: PythonWorker } & AsyncDisposable> {
  pairs += 1;
  const name = `@cuffi-forward-${process.pid}-${pairs}`;
  const [first, third] = [new PythonWorker(), new PythonWorker()];
  assert.equal(await run(first, `kept.update(listener=cuffi.listen('${name}'))`), null);
  assert.equal(await run(third, `kept.update(peer=cuffi.connect('${name}', timeout=10))`), null);
  assert.equal(await run(first, "kept.update(peer=kept['listener'].accept(timeout=10))"), null);
  return {
    first,
    third,
    async [Symbol.asyncDispose]() {
      await first[Symbol.asyncDispose]();
      await third[Symbol.asyncDispose]();
    },
  };
}

const run = <T = unknown>(worker: PythonWorker, source: string): Promise<T> =>
  worker.ask<T>('evaluate', { source });

const give = async (worker: PythonWorker, thing: unknown): Promise<void> => {
  await worker.ask('keep', { name: 'given', thing });
};

const holders = (): readonly number[] => leases.stats().leases.map(({ pid }) => pid);

const SEND = "kept['peer'].send(kept['given'], timeout=10)";
const RECEIVE = "kept.update(got=kept['peer'].receive(timeout=10))";

describe('what Python passes on', { skip: options.skip }, () => {
  const kinds: Readonly<Record<string, () => Promise<[unknown, Disposable]>>> = {
    'an array': async () => {
      const array = await toDevice(Int32Array.of(1, 2, 3, 4));
      return [array, array];
    },
    'a part of a buffer': async () => {
      const buffer = DeviceBuffer.allocate(1000);
      buffer.fill(7);
      return [buffer.subarray(100, 200), buffer];
    },
    'virtual memory': async () => {
      const memory = VirtualMemory.reserve(4 << 20, { shareable: true });
      memory.grow(4 << 20);
      return [memory.buffer.subarray(8, 24), memory];
    },
  };
  for (const [kind, make] of Object.entries(kinds)) {
    test(
      `${kind} lives as long as the third process has it, also without the one that passed it on`,
      options,
      async () => {
        await using both = await pair();
        const { first, third } = both;
        const [thing, owner] = await make();
        using _ = owner;
        await give(first, thing);
        assert.equal(await run(first, SEND), null);
        assert.equal(await run(third, RECEIVE), null);
        const read = "kept['got'].copy_to_host()";
        const bytes = await run<Uint8Array>(first, "kept['given'].copy_to_host()");
        assert.deepEqual(await run(third, read), bytes);
        assert.deepEqual(new Set(holders()), new Set([first.peer.pid, third.peer.pid]));
        first.peer.process.kill('SIGKILL');
        await killed(first.peer.process);
        await until(() => !holders().includes(first.peer.pid));
        assert.deepEqual(await run(third, read), bytes);
        assert.deepEqual(holders(), [third.peer.pid]);
        assert.equal(await run(third, "kept['got'].close()"), null);
        await until(() => holders().length === 0);
      },
    );
  }

  test('an event is passed on, and a closed one given back', options, async () => {
    await using both = await pair();
    const { first, third } = both;
    using event = CudaEvent.create({ interprocess: true });
    await give(first, event);
    assert.equal(await run(first, SEND), null);
    assert.equal(await run(third, RECEIVE), null);
    assert.equal(await run(third, "kept['got'].done"), true);
    await until(() => holders().includes(third.peer.pid));
    assert.equal(await run(third, "kept['got'].close()"), null);
    await until(() => !holders().includes(third.peer.pid));
    assert.deepEqual(holders(), [first.peer.pid]);
  });

  test('what the third process never takes is given back', options, async () => {
    await using both = await pair();
    const { first, third } = both;
    using array = await toDevice(Int32Array.of(1));
    await give(first, array);
    assert.equal(await run(first, SEND), null);
    await until(() => holders().includes(third.peer.pid));
    third.peer.process.kill('SIGKILL');
    await until(() => !holders().includes(third.peer.pid));
    assert.deepEqual(holders(), [first.peer.pid]);
  });

  test('tasks pass it on as well', options, async () => {
    await using both = await pair();
    const { first, third } = both;
    using array = await toDevice(Int32Array.of(5));
    await give(first, array);
    const send = "__import__('asyncio').run(kept['peer'].asend(kept['given']))";
    assert.equal(await run(first, send), null);
    assert.equal(await run(third, RECEIVE), null);
    assert.deepEqual(
      await run(third, "kept['got'].copy_to_host()"),
      new Uint8Array(Int32Array.of(5).buffer),
    );
  });

  test('memory of a pool is refused', options, async () => {
    await using both = await pair();
    const { first } = both;
    using pool = MemoryPool.create({ shareable: true });
    using buffer = pool.allocate(64);
    await give(first, buffer);
    assert.match(
      await run(first, SEND),
      /^NotSupportedError not-supported: Python cannot forward memory of a pool of another process/,
    );
  });
});
