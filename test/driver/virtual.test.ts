import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Context, Device, DeviceBuffer, Stream, VirtualMemory } from '../../src/index.ts';
import { getIpcHandle } from '../../src/ipc/index.ts';
import { formatBytes } from '../../src/validate.ts';
import { Latch } from '../support/latch.ts';

const MIB = 1 << 20;
const skip = VirtualMemory.supported(Device.get())
  ? false
  : 'the device has no virtual memory management';

describe('VirtualMemory', () => {
  test('virtual memory grows in place, and keeps its address and contents', { skip }, async () => {
    using memory = VirtualMemory.reserve(64 * MIB);
    const { address, granularity } = memory;
    assert.equal(memory.reservedByteLength, Math.ceil((64 * MIB) / granularity) * granularity);
    assert.deepEqual([memory.byteLength, memory.mappedByteLength], [0, 0]);

    const first = memory.grow(1000);
    assert.deepEqual([memory.byteLength, memory.mappedByteLength], [1000, granularity]);
    first.fill(7);
    const second = memory.grow(3 * granularity);
    assert.deepEqual([first.address, second.address], [address, address]);
    assert.deepEqual([first.byteLength, second.byteLength], [1000, 3 * granularity]);
    assert.equal(memory.buffer, second);
    second.subarray(granularity).fill(9);
    const all = await second.copyToHost();
    assert.deepEqual(new Set(all.subarray(0, 1000)), new Set([7]));
    assert.deepEqual(new Set(all.subarray(granularity)), new Set([9]));
    assert.deepEqual(new Set(await first.copyToHost()), new Set([7]));
  });

  test('within what is mapped it grows by no more than its own size', { skip }, () => {
    using memory = VirtualMemory.reserve(16 * MIB);
    memory.grow(10);
    const { mappedByteLength } = memory;
    assert.equal(memory.grow(mappedByteLength).byteLength, mappedByteLength);
    assert.equal(memory.mappedByteLength, mappedByteLength);
  });

  test('does not shrink, nor grow beyond what was reserved, and takes no nonsense', {
    skip,
  }, () => {
    using memory = VirtualMemory.reserve(16 * MIB);
    memory.grow(100);
    assert.throws(() => memory.grow(99), /memory of 100 bytes cannot shrink to 99/);
    const beyond = memory.reservedByteLength + 1;
    assert.throws(() => memory.grow(beyond), {
      name: 'RangeError',
      message: `${formatBytes(beyond)} are more than the ${formatBytes(beyond - 1)} that were reserved`,
    });
    for (const size of [0, -1, 1.5, Number.NaN, 2 ** 53])
      assert.throws(
        () => memory.grow(size),
        /^RangeError: byteLength must be an integer of at least 1, not /,
        String(size),
      );
    for (const size of ['16', null, 16n])
      assert.throws(
        () => VirtualMemory.reserve(size as never),
        /^TypeError: byteLength must be a number, not /,
        String(size),
      );
    assert.equal(memory.byteLength, 100);
  });

  test('more than the device has is refused with the numbers, and it stays as it was', {
    skip,
  }, async () => {
    using memory = VirtualMemory.reserve(2 * Device.get().totalMemory);
    memory.grow(MIB).fill(4);
    assert.throws(() => memory.grow(memory.reservedByteLength), {
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      message: /allocating \d+ bytes \(.*\) with \d+ bytes \(.*\) free/,
    });
    assert.equal(memory.byteLength, MIB);
    memory.grow(4 * MIB);
    assert.deepEqual(new Set(await memory.buffer.subarray(0, MIB).copyToHost()), new Set([4]));
  });

  test('may be closed twice, closes its buffers, and refuses to be used after', { skip }, () => {
    const memory = VirtualMemory.reserve(16 * MIB);
    const buffer = memory.grow(MIB);
    const view = buffer.subarray(0, 8);
    buffer.close();
    assert.equal(memory.buffer.closed, false);
    const { buffer: another } = memory;
    memory.close();
    memory.close();
    assert.deepEqual([another.closed, view.closed, memory.mappedByteLength], [true, true, 0]);
    for (const use of [() => memory.address, () => memory.buffer, () => memory.grow(2 * MIB)])
      assert.throws(use, { name: 'ClosedError' });
    assert.throws(() => another.fill(0), { name: 'ClosedError' });
  });

  test('closing while the GPU is held up returns at once, and frees when it is done', {
    skip,
  }, async () => {
    const context = Context.primary();
    const stream = Stream.create({ nonBlocking: true });
    const before = context.memoryInfo().free;
    const memory = VirtualMemory.reserve(64 * MIB);
    const buffer = memory.grow(64 * MIB);
    const latch = new Latch();
    latch.hold(stream);
    buffer.fill(1, { stream });
    memory.close();
    assert.ok(before - context.memoryInfo().free >= 64 * MIB);
    latch.open();
    await context.flush();
    assert.equal(context.memoryInfo().free, before);
    stream.close();
    latch[Symbol.dispose]();
  });

  test('is copied from and to like other memory, and legacy IPC does not share it', {
    skip,
  }, async () => {
    using memory = VirtualMemory.reserve(16 * MIB);
    using plain = DeviceBuffer.allocate(1000);
    plain.fill(6);
    const buffer = memory.grow(1000);
    plain.copyTo(buffer);
    assert.deepEqual(await buffer.copyToHost(), plain.copyToHostSync());
    for (const unshareable of [buffer, DeviceBuffer.fromPointer(buffer.address, 1000)])
      assert.throws(() => getIpcHandle(unshareable), {
        name: 'IpcError',
        message: /no legacy IPC handle/,
      });
  });

  test('one for other processes is made where the device makes such', {
    skip: Device.get().attribute('handleTypePosixFileDescriptorSupported')
      ? false
      : 'the device does not make virtual memory that can be shared by file descriptor',
  }, async () => {
    using memory = VirtualMemory.reserve(16 * MIB, { shareable: true });
    memory.grow(100).fill(2);
    assert.equal(memory.shareable, true);
    assert.deepEqual(new Set(await memory.buffer.copyToHost()), new Set([2]));
  });
});
