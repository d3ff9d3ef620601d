import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import {
  type BufferOptions,
  Context,
  DeviceBuffer,
  DeviceMemory,
  MemoryPool,
  PinnedBuffer,
  type PointerOptions,
  Stream,
} from '../../../../src/index.ts';
import { formatBytes } from '../../../../src/validate.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { broken, failing } from '../../../support/faults.ts';
import { turns } from '../../../support/iterations.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

describe('DeviceBuffer', () => {
  test('allocate() requires an integer size of at least one byte, before any driver call', () => {
    emulate();
    using pinned = PinnedBuffer.allocate(16);
    const recorder = recordCalls();
    for (const size of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53])
      assert.throws(
        () => DeviceBuffer.allocate(size),
        /^RangeError: byteLength must be an integer of at least 1, not /,
        String(size),
      );
    for (const size of ['16', null, undefined, 16n, [16]])
      assert.throws(
        () => DeviceBuffer.allocate(size as never),
        /^TypeError: byteLength must be a number, not /,
        String(size),
      );
    assert.throws(() => DeviceBuffer.allocate(1, { strem: 1 } as never), {
      name: 'TypeError',
      message:
        "DeviceBuffer.allocate: unknown option 'strem' (did you mean 'stream'?); known: context, device, memory, stream",
    });
    assert.throws(() => DeviceBuffer.allocate(1, { stream: 1 } as never), {
      name: 'TypeError',
      message: 'stream must be a Stream, not 1',
    });
    for (const memory of [{}, 5, null, '', pinned])
      assert.throws(() => DeviceBuffer.allocate(16, { memory } as never), {
        name: 'TypeError',
        message: /^memory must be a memory resource, such as DeviceMemory, .*, not /,
      });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('allocate() uses the given context, resource and stream', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const plain: readonly [options: BufferOptions, context: Context, byteLength: number][] = [
      [{}, first, 1000],
      [{ device: 1 }, second, 1000],
      [{ context: second }, second, 1000],
      [{ memory: DeviceMemory.create({ context: second }) }, second, 1000],
      [{ memory: DeviceMemory.create({ device: 1, private: true }) }, second, 2 << 20],
      [{ memory: DeviceMemory.create({ private: false }) }, first, 1000],
    ];
    for (const [options, context, byteLength] of plain) {
      recorder.calls.length = 0;
      const buffer = DeviceBuffer.allocate(1000, options);
      assert.deepEqual([buffer.context, buffer.byteLength], [context, 1000]);
      const { address } = buffer;
      buffer.close();
      const told = (name: FunctionName): unknown[] =>
        recorder.of(name).map(({ args, context: current }) => [args.at(-1), current]);
      assert.deepEqual(told('cuMemAlloc_v2'), [[byteLength, context.handle]]);
      assert.equal((told('cuMemFree_v2')[0] as unknown[])[0], address);
    }
    using pool = MemoryPool.create({ device: 1 });
    using stream = Stream.create({ device: 1 });
    using buffer = DeviceBuffer.allocate(64, { memory: pool, stream });
    const [allocation] = recorder.of('cuMemAllocFromPoolAsync');
    assert.deepEqual(allocation?.args.slice(1), [64, pool.handle, stream.handle]);
    assert.deepEqual([buffer.resource, buffer.context], [pool, second]);
  });

  test('fromPointer() uses the given context', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const second = Context.primary(1);
    using buffer = DeviceBuffer.allocate(64, { context: second });
    const contextOf = (options?: PointerOptions): Context =>
      DeviceBuffer.fromPointer(buffer.address, 64, options).context;
    assert.equal(contextOf({ context: second }), second);
    assert.equal(contextOf({ device: 1 }), second);
    assert.equal(contextOf(), Context.primary(0));
  });

  test('close() may be called twice, and any later use throws a ClosedError', async () => {
    emulate();
    const buffer = DeviceBuffer.allocate(64);
    using other = DeviceBuffer.allocate(64);
    const view = buffer.subarray(0, 8);
    buffer.close();
    buffer.close();
    for (const closed of [buffer, view]) {
      assert.equal(closed.closed, true);
      const uses: (() => unknown)[] = [
        () => closed.address,
        () => closed.subarray(0, 1),
        () => closed.fill(0),
        () => closed.copyTo(other),
        () => other.subarray(0, 1).copyTo(closed),
        () => closed.copyFromSync(new Uint8Array(1)),
        () => closed.copyToHostSync(),
      ];
      for (const use of uses)
        assert.throws(
          use,
          { name: 'ClosedError', message: /^this DeviceBuffer is closed: / },
          String(use),
        );
      await assert.rejects(closed.copyFrom(new Uint8Array(1)), { name: 'ClosedError' });
      await assert.rejects(closed.copyToHost(), { name: 'ClosedError' });
    }
  });

  test('closing a view does not close the memory or views made from it', () => {
    emulate();
    const buffer = DeviceBuffer.allocate(100);
    const view = buffer.subarray(10, 90);
    const inner = view.subarray(5, 15);
    assert.equal(inner.address, buffer.address + 15);
    assert.equal(inner.byteLength, 10);
    view.close();
    assert.equal(view.closed, true);
    assert.equal(inner.closed, false);
    buffer.close();
    assert.equal(inner.closed, true);
  });

  test('subarray() refuses a range beyond the buffer', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    assert.equal(buffer.subarray().byteLength, 16);
    assert.equal(buffer.subarray(16).byteLength, 0);
    for (const [begin, end] of [
      [-1, 4],
      [0, 17],
      [5, 4],
      [17, 17],
      [0.5, 4],
      [Number.NaN, 4],
    ] as const)
      assert.throws(
        () => buffer.subarray(begin, end),
        /^RangeError: (begin|end) must be an integer from \d+ to 16, not /,
        `${begin} ${end}`,
      );
    assert.throws(
      () => buffer.subarray('1' as never),
      /^TypeError: begin must be a number, not "1"$/,
    );
  });

  test('fill() sets every element of 1, 2 or 4 bytes, and nothing else', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    buffer.fill(0xff);
    buffer.subarray(4, 12).fill(0xabcd, { elementByteLength: 2 });
    buffer.subarray(8, 12).fill(0xdead_beef, { elementByteLength: 4 });
    buffer.subarray(15).fill(7, { elementByteLength: 1 });
    assert.equal(
      Buffer.from(buffer.copyToHostSync()).toString('hex'),
      'ffffffffcdabcdabefbeaddeffffff07',
    );
  });

  test('an invalid fill() throws, and fills nothing', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    buffer.fill(1);
    const recorder = recordCalls();
    for (const [value, elementByteLength] of [
      [256, 1],
      [65_536, 2],
      [2 ** 32, 4],
      [-1, 4],
      [0.5, 1],
      [Number.NaN, 1],
      [0, 3],
      [0, 8],
      [0, '4'],
    ] as const)
      assert.throws(
        () => buffer.fill(value, { elementByteLength: elementByteLength as never }),
        /^RangeError: (value|elementByteLength) must be /,
        `${value} ${elementByteLength}`,
      );
    assert.throws(() => buffer.fill('1' as never), /^TypeError: value must be a number, not "1"$/);
    assert.throws(
      () => buffer.subarray(0, 6).fill(0, { elementByteLength: 4 }),
      /not whole, aligned/,
    );
    assert.throws(
      () => buffer.subarray(1, 5).fill(0, { elementByteLength: 4 }),
      /not whole, aligned/,
    );
    assert.throws(() => buffer.fill(0, { stream: {} as never }), /stream must be a Stream/);
    assert.throws(() => buffer.fill(0, { width: 4 } as never), /known: stream, elementByteLength/);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([1]));
  });

  test('copyTo() copies to the start of the target, and only if it fits', () => {
    emulate();
    using source = DeviceBuffer.allocate(8);
    using target = DeviceBuffer.allocate(16);
    source.fill(5);
    target.fill(1);
    source.subarray(0, 4).copyTo(target.subarray(2));
    assert.equal(
      Buffer.from(target.copyToHostSync()).toString('hex'),
      `010105050505${'01'.repeat(10)}`,
    );
    source.subarray(0, 0).copyTo(target);
    assert.throws(() => target.copyTo(source), {
      name: 'RangeError',
      message: '16 bytes do not fit in the target, which has 8 bytes',
    });
    assert.throws(() => source.copyTo(new Uint8Array(8) as never), /^TypeError: target must be/);
  });

  test('fromPointer() checks its arguments, and the memory is used but never freed', () => {
    emulate();
    using owner = DeviceBuffer.allocate(64);
    const recorder = recordCalls();
    const borrowed = DeviceBuffer.fromPointer(owner.address, 64, { owner });
    assert.equal(borrowed.origin, 'borrowed');
    borrowed.fill(2);
    borrowed.close();
    recorder.stop();
    assert.ok(!recorder.calls.some((call) => call.name === 'cuMemFree_v2'));
    assert.deepEqual(new Set(owner.copyToHostSync()), new Set([2]));
    for (const [address, byteLength] of [
      [0, 1],
      [-8, 1],
      [1.5, 1],
      [2 ** 53, 1],
      [8, -1],
      [Number.MAX_SAFE_INTEGER, 1],
    ] as const)
      assert.throws(
        () => DeviceBuffer.fromPointer(address, byteLength),
        /^RangeError: (address|byteLength) must be an integer /,
      );
    assert.throws(
      () => DeviceBuffer.fromPointer('8' as never, 1),
      /^TypeError: address must be a number, not "8"$/,
    );
    assert.throws(
      () => DeviceBuffer.fromPointer(8, 1, { keep: 1 } as never),
      /unknown option 'keep'/,
    );
  });

  test('an owner is only kept alive: closing it does not close the borrowed buffer', () => {
    emulate();
    const memory = DeviceBuffer.allocate(64);
    const owner = DeviceBuffer.allocate(64);
    const borrowed = DeviceBuffer.fromPointer(memory.address, 64, { owner });
    assert.equal(borrowed.root, borrowed);
    assert.equal(borrowed.subarray(8).root, borrowed);
    assert.equal(memory.subarray(8).subarray(8).root, memory);
    owner.close();
    assert.equal(borrowed.closed, false);
    borrowed.fill(1);
    assert.deepEqual(new Set(memory.copyToHostSync()), new Set([1]));
  });

  test('close() returns at once while a stream is blocked; flush() frees the memory', async () => {
    emulate();
    const context = Context.primary();
    const { free } = context.memoryInfo();
    const latch = new Latch();
    using stream = Stream.create({ nonBlocking: true });
    const [first, second] = [DeviceBuffer.allocate(4 << 20), DeviceBuffer.allocate(4 << 20)];
    latch.hold(stream);
    first.fill(1, { stream });
    first.close();
    second.close();
    assert.equal(first.closed, true);
    assert.equal(context.memoryInfo().free, free - (8 << 20));
    let flushed = false;
    const flushing = context.flush().then(() => {
      flushed = true;
    });
    await turns();
    assert.equal(flushed, false);
    latch.open();
    await flushing;
    assert.equal(context.memoryInfo().free, free);
    latch[Symbol.dispose]();
  });

  test('pending releases count the bytes that are freed: for private memory, whole blocks', async () => {
    emulate();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    DeviceMemory.create().allocate(1000).close();
    assert.deepEqual(context.pendingReleases, { count: 1, byteLength: 1000 });
    DeviceMemory.create({ private: true }).allocate(1000).close();
    assert.deepEqual(context.pendingReleases, { count: 2, byteLength: 1000 + (2 << 20) });
    latch.open();
    await context.flush();
    assert.deepEqual(context.pendingReleases, { count: 0, byteLength: 0 });
  });

  test('the out-of-memory error states the requested size, the free memory and the pending releases', () => {
    emulate({ CUFFI_EMULATED_MEMORY: '16M' });
    const context = Context.primary();
    const latch = new Latch();
    using stream = Stream.create({ nonBlocking: true });
    latch.hold(stream);
    const buffer = DeviceBuffer.allocate(12 << 20);
    const { free } = context.memoryInfo();
    const expected = (rest: string) => ({
      name: 'CudaError',
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      doing: `allocating ${formatBytes(8 << 20)} with ${formatBytes(free)} free${rest}`,
      message: /Close buffers that are no longer needed/,
    });
    assert.throws(() => DeviceBuffer.allocate(8 << 20), expected(''));
    buffer.close();
    assert.throws(
      () => DeviceBuffer.allocate(8 << 20),
      expected(` (1 release of ${formatBytes(12 << 20)} waits for the GPU: await context.flush())`),
    );
    // The allocation itself drains pending releases, without an event loop iteration.
    latch.open();
    DeviceBuffer.allocate(8 << 20).close();
    latch[Symbol.dispose]();
  });

  test('a failed allocation leaves the context usable, and nothing allocated', () => {
    const driver = emulate();
    const context = Context.primary();
    const { free } = context.memoryInfo();
    selectDriver(failing(driver, 'cuMemAlloc_v2', 1, 999));
    assert.throws(() => DeviceBuffer.allocate(64, { context }), {
      name: 'CudaError',
      status: 999,
      doing: 'allocating 64 bytes',
    });
    assert.equal(context.memoryInfo().free, free);
    assert.equal(context.resources.size, 0);
    DeviceBuffer.allocate(64, { context }).close();
  });

  test('close() throws if the free fails, and the buffer counts as closed', () => {
    const driver = emulate();
    const buffer = DeviceBuffer.allocate(64);
    selectDriver(broken(driver, 'cuMemFree_v2', 999));
    assert.throws(() => buffer.close(), { name: 'CudaError', call: 'cuMemFree_v2' });
    assert.equal(buffer.closed, true);
    buffer.close();
  });

  test('toString() describes the buffer without any driver call', () => {
    emulate();
    const buffer = DeviceBuffer.allocate(64);
    assert.equal(`${buffer}`, 'DeviceBuffer(64 bytes, allocated)');
    buffer.close();
    assert.equal(inspect({ buffer }), '{ buffer: DeviceBuffer(64 bytes, allocated, closed) }');
  });
});
