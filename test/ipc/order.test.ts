/** Work of two processes comes in order, and neither host waits for it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cu, recordCalls, selectDriver } from '../../ffi/driver.ts';
import { type Driver, functionNames } from '../../ffi/functions.ts';
import {
  Context,
  DeviceBuffer,
  Graph,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { leases } from '../../src/ipc/index.ts';
import { without } from '../support/driver.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import type { Step } from './fixtures/consumer.ts';
import { ask as askConsumer, shareConsumers } from './fixtures/consumers.ts';

const options = { timeout: 60_000 + iterations(0, 600_000) };
const shared = shareConsumers(1);

const ask = <T>(step: Step, stream?: Stream): Promise<T> =>
  askConsumer<T>(shared.lend()[0], step, stream);

const valuesOf = async (buffer: DeviceBuffer, stream: Stream): Promise<number[]> => [
  ...new Set(await buffer.copyToHost(undefined, { stream })),
];

/** Memory of each kind in turn, which the receiver has mapped: what is asked is the order of work. */
function buffers(): { readonly all: DeviceBuffer[]; close(): void } {
  const all = [DeviceBuffer.allocate(4096)];
  const owners: { close(): void }[] = [];
  if (MemoryPool.supported(0, { shareable: true })) {
    const pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
    all.push(pool.allocate(4096));
    owners.push({ close: () => pool.close({ buffers: true }) });
  }
  if (VirtualMemory.supported()) {
    const memory = VirtualMemory.reserve(4096, { shareable: true });
    all.push(memory.grow(4096));
    owners.push(memory);
  }
  return {
    all,
    close() {
      all[0]?.close();
      for (const owner of owners) owner.close();
    },
  };
}

async function setTo(buffer: DeviceBuffer, value: number, stream: Stream): Promise<void> {
  buffer.fill(value, { stream });
  await stream.synchronize();
}

/** The producer's stream is held up: returns whether the receiver's copy went ahead of it. */
async function producerIsLate(buffer: DeviceBuffer, stream: Stream): Promise<boolean> {
  await setTo(buffer, 1, stream);
  using latch = new Latch();
  latch.hold(stream);
  buffer.fill(2, { stream });
  await ask<boolean>({ do: 'copy', buffer }, stream);
  assert.equal(stream.done, false);
  latch.open();
  const [value] = await ask<number[]>({ do: 'copied' });
  return value === 1;
}

/**
 * The receiver's stream is held up: returns whether the owner's next write went ahead of it.
 *
 * @param waits whether it is to wait for the receiver: where not, it still takes its time
 */
async function receiverIsLate(
  buffer: DeviceBuffer,
  stream: Stream,
  waits = true,
): Promise<boolean> {
  await setTo(buffer, 1, stream);
  await ask({ do: 'hold' });
  assert.equal(await ask<boolean>({ do: 'copy', buffer }, stream), false);
  buffer.fill(2, { stream });
  if (!waits) await stream.synchronize();
  const isAhead = stream.done;
  await ask({ do: 'open' });
  assert.deepEqual(await valuesOf(buffer, stream), [2]);
  const [value] = await ask<number[]>({ do: 'copied' });
  assert.equal(value === 2, isAhead);
  return isAhead;
}

describe('the order of work between processes', () => {
  test(
    'what is read was written before, and what is written was read before',
    options,
    async () => {
      using stream = Stream.create({ nonBlocking: true });
      const memory = buffers();
      for (const buffer of memory.all) await ask({ do: 'keep', buffer });
      const rounds = iterations(6, 1000);
      for (let round = 0; round < rounds; round++) {
        const buffer = memory.all[round % memory.all.length] as DeviceBuffer;
        assert.equal(await producerIsLate(buffer, stream), false, `round ${round}, ready`);
        assert.equal(await receiverIsLate(buffer, stream), false, `round ${round}, done`);
      }
      memory.close();
      await ask({ do: 'release' });
      await leases.drain({ timeoutMs: 20_000 });
      await Context.primary().flush();
    },
  );

  test('without a stream named, all work that is known comes before', options, async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(7, { stream });
    const later = Stream.legacyDefault();
    assert.equal(await ask<boolean>({ do: 'copy', buffer }), false);
    assert.equal(stream.done, false);
    latch.open();
    assert.deepEqual(await ask({ do: 'copied' }), [7]);
    await later.synchronize();
  });

  test(
    'a stream waits for memory that came back only when it uses that again',
    options,
    async () => {
      using stream = Stream.create({ nonBlocking: true });
      using unrelated = DeviceBuffer.allocate(16);
      const memory = buffers();
      for (const buffer of memory.all) {
        await setTo(buffer, 1, stream);
        await ask({ do: 'hold' });
        assert.equal(await ask<boolean>({ do: 'copy', buffer }, stream), false);
        unrelated.fill(1, { stream });
        await stream.synchronize();
        buffer.subarray(16).fill(2, { stream });
        assert.equal(stream.done, false);
        await ask({ do: 'open' });
        await stream.synchronize();
        assert.deepEqual(await ask<number[]>({ do: 'copied' }), [1]);
      }
      memory.close();
    },
  );

  test(
    'the stream of the send waits at once for memory whose address was read',
    options,
    async () => {
      using stream = Stream.create({ nonBlocking: true });
      using buffer = DeviceBuffer.allocate(4096);
      using unrelated = DeviceBuffer.allocate(16);
      await setTo(buffer, 1, stream);
      assert.ok(buffer.address > 0);
      await ask({ do: 'hold' });
      assert.equal(await ask<boolean>({ do: 'copy', buffer }, stream), false);
      unrelated.fill(1, { stream });
      assert.equal(stream.done, false);
      await ask({ do: 'open' });
      await stream.synchronize();
    },
  );

  test('memory that is closed does not come back to a stream', options, async () => {
    using stream = Stream.create({ nonBlocking: true });
    const memory = buffers();
    for (const buffer of memory.all) await setTo(buffer, 1, stream);
    await ask({ do: 'hold' });
    for (const buffer of memory.all)
      assert.equal(await ask<boolean>({ do: 'copy', buffer }, stream), false);
    memory.close();
    await stream.synchronize();
    assert.ok(leases.stats().leases.length > 0);
    await ask({ do: 'open' });
    await leases.drain({ timeoutMs: 20_000 });
  });

  test('memory comes back behind the streams that used it, and no others', options, async () => {
    using stream = Stream.create({ nonBlocking: true });
    const memory = buffers();
    for (const buffer of memory.all) {
      await setTo(buffer, 1, stream);
      await ask({ do: 'hold' });
      // The stream that is held up never used it.
      assert.equal(await ask<string>({ do: 'closeUnused', buffer }, stream), 'closed');
      buffer.fill(2, { stream });
      await stream.synchronize();
      // A program that knows the address may use it anywhere.
      assert.equal(await ask<string>({ do: 'closeExposed', buffer }, stream), 'closed');
      buffer.fill(3, { stream });
      assert.equal(stream.done, false);
      await ask({ do: 'open' });
      await stream.synchronize();
    }
    memory.close();
  });

  test('neither process makes a call that waits', options, async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    await setTo(buffer, 1, stream);
    await ask({ do: 'keep', buffer });
    await ask({ do: 'record' });
    using recorder = recordCalls();
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(2, { stream });
    assert.equal(await ask<boolean>({ do: 'copy', buffer }, stream), false);
    const here = recorder.calls.map(({ name }) => name);
    const there = await ask<string[]>({ do: 'recorded' });
    latch.open();
    for (const names of [here, there]) {
      assert.ok(names.some((name) => /^cuStream(Wait|Write)Value64_v2$/.test(name)));
      assert.deepEqual(
        names.filter((name) =>
          /Synchronize|^cuMemFree|^cuIpcClose|^cuMemcpy(DtoD|DtoH|HtoD)_v2$/.test(name),
        ),
        [],
      );
    }
    assert.deepEqual(await ask({ do: 'copied' }), [2]);
  });

  test('nothing of a connection gets into a graph that is captured', options, async () => {
    using stream = Stream.create({ nonBlocking: true });
    using mine = DeviceBuffer.allocate(4096);
    const [child] = shared.lend();
    const theirs = await ask<DeviceBuffer>({ do: 'make', value: 3 });
    await child.receive();
    const refused: Promise<unknown>[] = [];
    using graph = Graph.capture(stream, () => {
      mine.fill(1, { stream });
      using recorder = recordCalls();
      refused.push(child.send({ mine }, { stream }), child.receive({ stream }));
      theirs.close({ stream });
      const names = recorder.calls.map(({ name }) => name);
      assert.deepEqual(
        names.filter((name) => /^cu(Stream|Event)/.test(name)),
        [],
      );
    });
    for (const call of refused) await assert.rejects(call, /while a graph is captured/);
    graph.launch({ stream });
    await stream.synchronize();
    assert.equal(await ask({ do: 'drained' }), 0);
  });

  test('with the waits switched off the same tests fail: here, and there', options, async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    await ask({ do: 'keep', buffer });
    // A value that is there is not waited for: a copy that has begun cannot be seen.
    const driver = Object.fromEntries(functionNames.map((name) => [name, cu[name]]));
    without('cuStreamWaitValue64_v2');
    try {
      assert.equal(await receiverIsLate(buffer, stream, false), true);
    } finally {
      selectDriver(driver as Driver);
    }
    await ask({ do: 'without', value: ['cuStreamWaitValue64_v2'] });
    await setTo(buffer, 1, stream);
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(2, { stream });
    await ask<boolean>({ do: 'copy', buffer }, stream);
    assert.deepEqual(await ask<number[]>({ do: 'copied' }), [1]);
    latch.open();
  });
});
