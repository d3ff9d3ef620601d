import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DeviceBuffer, HostVisibleBuffer, MappedMemory, Stream } from '../../src/index.ts';

describe('MappedMemory', () => {
  for (const writeCombined of [false, true]) {
    const kind = writeCombined ? 'write-combined mapped memory' : 'mapped memory';

    test(`${kind} is one memory for the CPU and the device`, async () => {
      const memory = MappedMemory.create({ writeCombined });
      assert.deepEqual([memory.deviceAccessible, memory.hostAccessible], [true, true]);
      using stream = Stream.create();
      using buffer = memory.allocate(10_000);
      assert.equal(buffer.byteLength, 10_000);
      assert.equal(buffer.buffer.byteLength, 10_000);
      assert.equal(buffer.resource, memory);
      const bytes = new Uint8Array(buffer.buffer);
      buffer.fill(0x1234, { elementByteLength: 2, stream });
      await stream.synchronize();
      assert.deepEqual([...bytes.subarray(0, 4)], [0x34, 0x12, 0x34, 0x12]);
      bytes.fill(8);
      assert.deepEqual(new Set(await buffer.copyToHost()), new Set([8]));
      await buffer.subarray(100, 103).copyFrom(new Uint8Array([1, 2, 3]));
      assert.deepEqual([...bytes.subarray(99, 104)], [8, 1, 2, 3, 8]);
    });
  }

  test('mapped memory is copied to and from device memory', async () => {
    const memory = MappedMemory.create();
    using buffer = memory.allocate(4096);
    using onDevice = DeviceBuffer.allocate(4096);
    new Uint8Array(buffer.buffer).fill(5);
    buffer.copyTo(onDevice);
    assert.deepEqual(new Set(await onDevice.copyToHost()), new Set([5]));
    onDevice.fill(6);
    onDevice.copyTo(buffer);
    await buffer.context.synchronize();
    assert.deepEqual(new Set(new Uint8Array(buffer.buffer)), new Set([6]));
  });

  test('DeviceBuffer.allocate returns zeroed mapped memory too', () => {
    using buffer = DeviceBuffer.allocate(100, { memory: MappedMemory.create() });
    assert.ok(buffer instanceof HostVisibleBuffer);
    assert.deepEqual(new Set(new Uint8Array(buffer.buffer)), new Set([0]));
  });

  test('mapped memory may be closed twice, refuses use afterwards, and a kept view reads zeros', () => {
    const buffer = MappedMemory.create().allocate(4096);
    const kept = new Uint8Array(buffer.buffer).fill(1);
    buffer.close();
    buffer.close();
    assert.ok(kept.every((byte) => byte === 0));
    for (const use of [() => buffer.buffer, () => buffer.window(0, 1), () => buffer.address])
      assert.throws(use, { name: 'ClosedError' });
  });
});
