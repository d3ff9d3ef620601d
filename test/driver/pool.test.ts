import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { Context, DeviceBuffer, MemoryPool, Stream } from '../../src/index.ts';
import { getIpcHandle } from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { collectGarbage } from '../support/process-state.ts';

const MIB = 1 << 20;
const skip = MemoryPool.supported() ? false : 'the device has no memory pools';

describe('MemoryPool', () => {
  test('memory of a pool is used in its stream, and given out again after it was freed', {
    skip,
  }, async () => {
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    using stream = Stream.create({ nonBlocking: true });
    const first = pool.allocate(4 * MIB, { stream });
    const { address } = first;
    first.fill(7, { stream });
    assert.deepEqual(new Set(await first.copyToHost(undefined, { stream })), new Set([7]));
    assert.equal(first.resource, pool);
    first.close();
    using second = pool.allocate(4 * MIB, { stream });
    assert.equal(second.address, address);
    using byDefault = DeviceBuffer.allocate(1000, { memory: pool });
    byDefault.fill(3);
    assert.deepEqual(new Set(await byDefault.copyToHost()), new Set([3]));
  });

  test('memory comes in order in borrowed and default streams too', { skip }, async () => {
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    using owner = Stream.create({ nonBlocking: true });
    const context = Context.primary();
    for (const stream of [
      Stream.fromHandle(owner.handle),
      Stream.legacyDefault(),
      Stream.perThreadDefault(),
    ]) {
      using buffer = pool.allocate(1024, { stream });
      buffer.fill(9, { stream });
      assert.deepEqual(new Set(await buffer.copyToHost(undefined, { stream })), new Set([9]));
    }
    await context.synchronize();
  });

  test('a pool reports used and reserved bytes with their peaks, and releases unused memory', {
    skip,
  }, () => {
    const context = Context.primary();
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    assert.deepEqual([pool.used, pool.reserved, pool.usedHigh, pool.reservedHigh], [0, 0, 0, 0]);
    const buffer = pool.allocate(8 * MIB);
    assert.ok(pool.used >= 8 * MIB);
    assert.ok(pool.reserved >= pool.used);
    buffer.close();
    context.synchronizeSync();
    assert.equal(pool.used, 0);
    assert.ok(pool.reserved >= 8 * MIB);
    assert.ok(pool.usedHigh >= 8 * MIB);
    pool.trim();
    assert.equal(pool.reserved, 0);
    assert.ok(pool.reservedHigh >= 8 * MIB);
    pool.resetHighWater();
    assert.deepEqual([pool.usedHigh, pool.reservedHigh], [0, 0]);
  });

  test('a pool keeps unused memory after a synchronization, unless its release threshold is 0', {
    skip,
  }, () => {
    const context = Context.primary();
    const cases = [
      { options: {}, kept: true },
      { options: { releaseThreshold: 0 }, kept: false },
    ];
    for (const { options, kept } of cases) {
      using pool = MemoryPool.create({ maxSize: 64 * MIB, ...options });
      pool.allocate(8 * MIB).close();
      context.synchronizeSync();
      assert.equal(pool.reserved > 0, kept);
    }
  });

  test('a pool has the release threshold and reuse policies that were set', { skip }, () => {
    using pool = MemoryPool.create({
      maxSize: 64 * MIB,
      releaseThreshold: MIB,
      reuse: { allowOpportunistic: false },
    });
    assert.equal(pool.releaseThreshold, MIB);
    assert.deepEqual(pool.reuse, {
      followEventDependencies: true,
      allowOpportunistic: false,
      allowInternalDependencies: true,
    });
    pool.releaseThreshold = Number.POSITIVE_INFINITY;
    pool.reuse = { allowOpportunistic: true, allowInternalDependencies: false };
    assert.equal(pool.releaseThreshold, Number.POSITIVE_INFINITY);
    assert.deepEqual(pool.reuse, {
      followEventDependencies: true,
      allowOpportunistic: true,
      allowInternalDependencies: false,
    });
  });

  test('more than there is room for is refused with the numbers, and the pool stays usable', {
    skip,
  }, () => {
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    assert.throws(() => pool.allocate(65 * MIB), {
      name: 'RangeError',
      message: `${65 * MIB} bytes (65 MiB) are more than the pool's maxSize of ${64 * MIB} bytes (64 MiB)`,
    });
    const buffer = pool.allocate(64 * MIB);
    assert.throws(() => pool.allocate(64 * MIB), {
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      message:
        /allocating 67108864 bytes \(64 MiB\) with \d+ bytes.* free; the pool has 67108864 bytes \(64 MiB\) in use of at most 67108864 bytes \(64 MiB\)/,
    });
    buffer.close();
    pool.allocate(64 * MIB).close();
  });

  test('a pool refuses to close while buffers are open, unless it should close them too', {
    skip,
  }, () => {
    const pool = MemoryPool.create({ maxSize: 64 * MIB });
    const buffers = [pool.allocate(MIB), pool.allocate(2 * MIB)];
    assert.throws(() => pool.close(), {
      name: 'CuffiError',
      message: /2 buffers of this pool, 3145728 bytes \(3 MiB\), are open/,
    });
    assert.equal(pool.closed, false);
    buffers[0]?.close();
    assert.throws(() => pool.close(), /1 buffer of this pool, 2097152 bytes \(2 MiB\), is open/);
    pool.close({ buffers: true });
    pool.close();
    assert.equal(buffers[1]?.closed, true);
    assert.throws(() => buffers[1]?.address, /its pool was closed/);
    for (const use of [() => pool.allocate(1), () => pool.used, () => pool.trim()])
      assert.throws(use, { name: 'ClosedError' });
  });

  test('memory is freed in order also when its stream was closed before it', { skip }, async () => {
    const context = Context.primary();
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    const idle = Stream.create();
    const left = pool.allocate(MIB, { stream: idle });
    idle.close();
    left.close();
    context.synchronizeSync();
    assert.equal(pool.used, 0);

    const busy = Stream.create({ nonBlocking: true });
    const buffer = pool.allocate(MIB, { stream: busy });
    await busy.synchronize();
    using latch = new Latch();
    latch.hold(busy);
    buffer.fill(1, { stream: busy });
    busy.close();
    buffer.close();
    latch.open();
    await context.flush();
    context.synchronizeSync();
    assert.equal(pool.used, 0);
  });

  test('a buffer is freed in the stream that close names, but not in a closed stream', {
    skip,
  }, async () => {
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    const closed = Stream.create();
    closed.close();
    const buffer = pool.allocate(MIB, { stream });
    assert.throws(() => buffer.close({ stream: closed }), { name: 'ClosedError' });
    assert.equal(buffer.closed, false);
    const recorder = recordCalls();
    buffer.close({ stream: other });
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name),
      ['cuMemFreeAsync'],
    );
    await other.synchronize();
    assert.throws(() => pool.allocate(1, { stream: closed }), { name: 'ClosedError' });
  });

  test('closing while the GPU is held up returns at once, and frees when it is done', {
    skip,
  }, async () => {
    const context = Context.primary();
    MemoryPool.create({ maxSize: 64 * MIB }).close();
    const before = context.memoryInfo().free;
    const stream = Stream.create({ nonBlocking: true });
    const pool = MemoryPool.create({ maxSize: 64 * MIB });
    const buffer = pool.allocate(32 * MIB, { stream });
    await stream.synchronize();
    const latch = new Latch();
    latch.hold(stream);
    buffer.fill(1, { stream });
    pool.close({ buffers: true });
    assert.equal(buffer.closed, true);
    latch.open();
    await context.flush();
    assert.equal(context.memoryInfo().free, before);
    stream.close();
    latch[Symbol.dispose]();
  });

  test('the device’s own pool is borrowed: it gives memory out and outlives its object', {
    skip,
  }, async () => {
    const pool = MemoryPool.default();
    assert.equal(pool.borrowed, true);
    const { used, releaseThreshold } = pool;
    const buffer = pool.allocate(MIB);
    buffer.fill(9);
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([9]));
    assert.throws(() => pool.close(), /1 buffer of this pool/);
    buffer.close();
    pool.close();
    Context.primary().synchronizeSync();
    const again = MemoryPool.default();
    assert.deepEqual([again.used, again.releaseThreshold], [used, releaseThreshold]);
    again.close();
  });

  test('the device of a pool always has access, and legacy IPC does not share the pool', {
    skip,
  }, () => {
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    assert.equal(pool.access(0), 'read-write');
    assert.throws(() => pool.setAccess(0, 'none'), /^RangeError: the pool is on/);
    using buffer = pool.allocate(MIB);
    const recorder = recordCalls();
    for (const shared of [buffer, buffer.subarray(0, 10)])
      assert.throws(() => getIpcHandle(shared), {
        name: 'IpcError',
        message: /memory of a pool has no legacy IPC handle.*DeviceBuffer\.allocate/,
      });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('one for other processes is made where the device makes such', {
    skip: MemoryPool.supported(0, { shareable: true })
      ? false
      : 'the device does not make pools that can be shared by file descriptor',
  }, async () => {
    using pool = MemoryPool.create({ shareable: true, maxSize: 64 * MIB });
    assert.equal(pool.shareable, true);
    using buffer = pool.allocate(MIB);
    buffer.fill(5);
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([5]));
  });

  test('many allocations do not grow the process', { skip }, async () => {
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    using stream = Stream.create({ nonBlocking: true });
    const usageAfter = async (cycles: number): Promise<NodeJS.MemoryUsage> => {
      for (let cycle = 0; cycle < cycles; cycle += 1) {
        pool.allocate(MIB, { stream }).close();
        // A full queue would wait for the GPU inside the driver, and nothing would be collected.
        if (cycle % 500 === 0) await stream.synchronize();
      }
      await stream.synchronize();
      await collectGarbage();
      return process.memoryUsage();
    };
    // V8's heap and the driver's queues reach their sizes first.
    const before = await usageAfter(iterations(5000, 100_000));
    const after = await usageAfter(iterations(20_000, 1_000_000));
    // What is forgotten each time weighs more than 50 bytes, on the heap or beside it. Beside it V8
    // keeps pages as it likes, up to three times its young generation.
    assert.ok(after.heapUsed - before.heapUsed < MIB, `heap: ${after.heapUsed - before.heapUsed}`);
    assert.ok(after.rss - before.rss < 48 * MIB, `resident: ${after.rss - before.rss}`);
  });
});
