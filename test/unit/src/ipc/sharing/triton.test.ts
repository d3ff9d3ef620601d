import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  DeviceArray,
  DeviceBuffer,
  deviceArray,
  MappedMemory,
  MemoryPool,
  VirtualMemory,
} from '../../../../../src/index.ts';
import {
  getIpcHandle,
  openIpcBuffer,
  type TritonRegion,
  tritonRegion,
} from '../../../../../src/ipc/index.ts';
import { emulate } from '../../emulate.ts';

describe('tritonRegion', () => {
  test('registers the allocation, and names the bytes in it', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(4096);
    const { handle, baseByteLength, byteOffset } = getIpcHandle(buffer);
    const region = tritonRegion(buffer.subarray(100, 300), { name: 'image', deviceId: 3 });
    assert.deepEqual(region, {
      name: 'image',
      registration: { raw_handle: { b64: handle }, device_id: 3, byte_size: baseByteLength },
      parameters: {
        shared_memory_region: 'image',
        shared_memory_offset: byteOffset + 100,
        shared_memory_byte_size: 200,
      },
    } satisfies TritonRegion);
    assert.equal(Buffer.from(handle, 'base64').byteLength, 64);
    assert.deepEqual(JSON.parse(JSON.stringify(region)), region);
  });

  test('gives the views of one allocation one name, and another allocation another', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(4096);
    using other = DeviceBuffer.allocate(4096);
    const { name } = tritonRegion(buffer);
    assert.match(name, /^cuffi-\d+-\w+$/);
    assert.equal(tritonRegion(buffer.subarray(8)).name, name);
    assert.equal(tritonRegion(DeviceBuffer.fromPointer(buffer.address + 8, 8)).name, name);
    assert.notEqual(tritonRegion(other).name, name);
  });

  test('names the items of an array, and the ordinal of its device', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using array = deviceArray([4, 8], 'float32', { device: 1 });
    const row = tritonRegion(array.slice({ start: 1, stop: 3 }));
    const { byteOffset } = getIpcHandle(array).toJSON();
    assert.equal(row.registration.device_id, 1);
    assert.deepEqual(row.parameters, {
      shared_memory_region: row.name,
      shared_memory_offset: byteOffset + 32,
      shared_memory_byte_size: 64,
    });
  });

  test('refuses what the server cannot open, and says what to do', () => {
    emulate();
    using plain = DeviceBuffer.allocate(4096);
    using array = deviceArray([4, 8], 'float32');
    using pool = MemoryPool.create({ maxSize: 1 << 20, shareable: true });
    using pooled = pool.allocate(16);
    using memory = VirtualMemory.reserve(4096, { shareable: true });
    memory.grow(4096);
    using mapped = MappedMemory.create().allocate(16);
    using imported = openIpcBuffer({ ...getIpcHandle(plain) }, { sameProcess: 'alias' });
    const closed = DeviceBuffer.allocate(16);
    closed.close();
    const copyIt = 'Copy it to an array of deviceArray\\(\\) or a buffer of DeviceBuffer.allocate';
    const unsupported = (what: string): object => ({
      name: 'IpcError',
      code: 'not-supported',
      message: new RegExp(`^${what}: Triton opens plain device memory.* ${copyIt}`),
    });
    for (const [refused, error] of [
      [pooled, unsupported('this is memory of a pool')],
      [memory.buffer, unsupported('this is virtual memory')],
      [memory.buffer.subarray(16), unsupported('this is virtual memory')],
      [plain.readOnly(), unsupported('this memory is read-only.*')],
      [array.T, unsupported('the items of shape \\[8, 4\\] with strides \\[4, 32\\] are not.*')],
      [mapped, { name: 'IpcError', message: /host-accessible memory has no IPC handle: copy it/ }],
      [plain.subarray(8, 8), { name: 'RangeError', message: /empty/ }],
      [deviceArray([0, 3], 'int8'), { name: 'RangeError', message: /empty/ }],
      [closed, { name: 'ClosedError', message: /^this DeviceBuffer is closed: / }],
    ] as const)
      assert.throws(() => tritonRegion(refused), error);
    for (const value of [undefined, 5, {}, memory])
      assert.throws(() => tritonRegion(value as never), {
        name: 'TypeError',
        message: /^tritonRegion takes a DeviceBuffer or a DeviceArray, not /,
      });
    for (const name of ['', 'a/b', 'a b', 5])
      assert.throws(() => tritonRegion(plain, { name: name as never }), {
        name: 'TypeError',
        message: /^name must be letters, digits, '\.', '_' and '-', because it is a part of a URL/,
      });
    assert.throws(() => tritonRegion(plain, { deviceId: -1 }), /^RangeError: deviceId must be/);
    assert.throws(() => tritonRegion(plain, { device: 1 } as never), /^TypeError: .*deviceId/);
    assert.ok(array instanceof DeviceArray && !imported.closed);
  });
});
