import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import {
  CudaEvent,
  Device,
  DeviceBuffer,
  float32,
  fromBuffer,
  fromPointer,
  ManagedMemory,
  MappedMemory,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../../../../src/index.ts';
import { exportIpc, getIpcHandle, openIpcArray } from '../../../../../src/ipc/index.ts';
import { parseDescriptor, withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { failing } from '../../../../support/faults.ts';
import { currentContext, emulate } from '../../emulate.ts';

describe('getIpcHandle', () => {
  test('a descriptor is plain data that parseDescriptor accepts', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(4096);
    using event = CudaEvent.create({ interprocess: true });
    const ofBuffer = getIpcHandle(buffer);
    assert.deepEqual(parseDescriptor(JSON.parse(JSON.stringify(ofBuffer))), ofBuffer);
    assert.equal(ofBuffer.pid, process.pid);
    assert.equal(ofBuffer.device, Device.get().uuid);
    assert.deepEqual([ofBuffer.byteOffset, ofBuffer.byteLength], [0, 4096]);
    const ofEvent = getIpcHandle(event);
    assert.deepEqual(parseDescriptor(JSON.parse(JSON.stringify(ofEvent))), ofEvent);
  });

  test('a view has the handle and buffer id of its buffer, and an offset', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(4096);
    const whole = getIpcHandle(buffer);
    const range = (byteOffset: number, byteLength: number) =>
      withChecksum({ ...whole, byteOffset, byteLength });
    const part = getIpcHandle(buffer.subarray(100, 300));
    assert.deepEqual(part, range(100, 200));
    const borrowed = DeviceBuffer.fromPointer(buffer.address + 8, 8);
    // Its owner is unknown: the driver's buffer id must do.
    assert.deepEqual(getIpcHandle(borrowed), withChecksum({ ...range(8, 8), generation: 0 }));
  });

  test('the id of an allocation does not reveal that of the next', () => {
    emulate();
    const buffers = Array.from({ length: 100 }, () => DeviceBuffer.allocate(64));
    const ids = buffers.map((buffer) => getIpcHandle(buffer).bufferId);
    assert.equal(new Set(ids).size, 100);
    const high = ids.map((id) => Math.floor(id / 2 ** 32));
    assert.ok(new Set(high).size > 90, String(high));
    for (const buffer of buffers) buffer.close();
  });

  test('two allocations have different ids, even at one address', () => {
    emulate();
    const first = DeviceBuffer.allocate(4096);
    const { bufferId } = getIpcHandle(first);
    first.close();
    using second = DeviceBuffer.allocate(4096);
    assert.notEqual(getIpcHandle(second).bufferId, bufferId);
  });
});

describe('exportIpc', () => {
  test('an export asks the driver once for what it needs, in one switch of the context', () => {
    emulate();
    using plain = DeviceBuffer.allocate(4096);
    using pool = MemoryPool.create({ maxSize: 1 << 20, shareable: true });
    using ofPool = pool.allocate(4096);
    using memory = VirtualMemory.reserve(4096, { shareable: true });
    memory.grow(4096);
    const callsOf = (buffer: DeviceBuffer): string[] => {
      const recorder = recordCalls();
      exportIpc(buffer);
      recorder.stop();
      return recorder.calls.map(({ name }) => name);
    };
    // The device's UUID and the file descriptors are asked for once.
    for (const buffer of [plain, ofPool, memory.buffer]) exportIpc(buffer);
    for (const buffer of [plain, plain.subarray(16, 32)])
      assert.deepEqual(callsOf(buffer), [
        'cuCtxPushCurrent_v2',
        'cuIpcGetMemHandle',
        'cuMemGetAddressRange_v2',
        'cuPointerGetAttribute',
        'cuCtxPopCurrent_v2',
      ]);
    assert.deepEqual(callsOf(ofPool), ['cuMemPoolExportPointer']);
    assert.deepEqual(callsOf(memory.buffer.subarray(0, 16)), []);
  });
});

const GIB = 2 ** 30;
const LIMIT = 'CUFFI_POOL_SHARE_LIMIT';

describe('exportIpc', () => {
  test('read-only memory that the driver would map writable is refused', () => {
    emulate();
    using plain = DeviceBuffer.allocate(64);
    using pool = MemoryPool.create({ maxSize: 1 << 20, shareable: true });
    using ofPool = pool.allocate(64);
    using borrowed = fromPointer(plain.address, {
      shape: 16,
      dtype: float32,
      readOnly: true,
    });
    const recorder = recordCalls();
    for (const [shared, what] of [
      [() => getIpcHandle(plain.readOnly()), 'plain device memory'],
      [() => exportIpc(plain.readOnly().subarray(1, 2)), 'plain device memory'],
      [() => getIpcHandle(borrowed), 'plain device memory'],
      [() => exportIpc(ofPool.readOnly()), 'memory of a pool'],
      [() => exportIpc(fromBuffer(ofPool, 16, float32, { readOnly: true })), 'memory of a pool'],
    ] as const)
      assert.throws(shared, {
        name: 'IpcError',
        code: 'not-supported',
        message: new RegExp(`^${what} cannot be shared read-only: .*VirtualMemory.reserve`),
      });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    const row = fromBuffer(plain, 16, float32).broadcastTo([3, 16]);
    using opened = openIpcArray(getIpcHandle(row).toJSON(), { sameProcess: 'alias' });
    assert.equal(opened.readOnly, true);
  });

  test("a pool allocation that would crash the receiver's driver is refused, with alternatives", (t) => {
    t.after(() => delete process.env[LIMIT]);
    emulate({ CUFFI_EMULATED_MEMORY: '32G' });
    using pool = MemoryPool.create({ maxSize: 24 * GIB, shareable: true });
    using most = pool.allocate(5 * GIB);
    using another = pool.allocate(5 * GIB);
    using large = pool.allocate(5 * GIB + 1);
    for (const fine of [pool, most, another]) exportIpc(fine);
    const recorder = recordCalls();
    for (const refused of [large, large.subarray(0, 16)])
      assert.throws(() => exportIpc(refused), {
        name: 'IpcError',
        code: 'not-supported',
        message: new RegExp(
          `^a pool allocation of 5368709121 bytes .*above 5368709120.*VirtualMemory.reserve.* several .*${LIMIT}`,
        ),
      });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    process.env[LIMIT] = String(6 * GIB);
    exportIpc(large);
    // A limit below the size that works everywhere has no effect.
    process.env[LIMIT] = '0';
    exportIpc(most);
    assert.throws(() => exportIpc(large), { code: 'not-supported' });
    process.env[LIMIT] = '6G';
    assert.throws(() => exportIpc(large), {
      name: 'RangeError',
      message: `${LIMIT} must be a number of at least 0, not "6G"`,
    });
  });
});

describe('getIpcHandle', () => {
  test('an object that cannot be shared is refused with a reason', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    using event = CudaEvent.create();
    using stream = Stream.create();
    assert.throws(() => getIpcHandle(buffer.subarray(4, 4)), /an empty buffer .*cannot be shared/);
    assert.throws(() => getIpcHandle(event), {
      name: 'IpcError',
      message: /create it with CudaEvent\.create\(\{ interprocess: true \}\)/,
    });
    assert.throws(() => getIpcHandle(DeviceBuffer.fromPointer(4096, 16)), {
      name: 'IpcError',
      message:
        /no legacy IPC handle: cuIpcGetMemHandle failed while exporting 16 bytes: .*\nOnly memory/s,
    });
    for (const wrong of [undefined, null, {}, stream, buffer.address])
      assert.throws(() => getIpcHandle(wrong as never), TypeError);
    assert.equal(currentContext(), 0);
  });

  test('memory without a legacy handle is recognized before the driver is asked for one, whichever library made it', () => {
    emulate();
    const virtual = VirtualMemory.reserve(4096, { shareable: true }).grow(4096);
    const ofPool = MemoryPool.create({ maxSize: 1 << 20 }).allocate(16);
    const managed = ManagedMemory.create().allocate(16);
    const mapped = MappedMemory.create().allocate(16);
    const recorder = recordCalls();
    const refused = (buffer: DeviceBuffer, message: RegExp): void => {
      assert.throws(() => getIpcHandle(buffer), { name: 'IpcError', message });
    };
    refused(virtual, /^virtual memory .* share it with exportIpc/);
    refused(ofPool, /^memory of a pool .* share it with exportIpc/);
    for (const host of [managed, mapped]) refused(host, /^host-accessible memory .* copy it/);
    const theirs = ({ address }: DeviceBuffer): DeviceBuffer =>
      DeviceBuffer.fromPointer(address, 16);
    refused(theirs(virtual), /^memory that is virtual, or .* copy it/);
    refused(theirs(ofPool), /^memory of a pool that another .* copy it/);
    for (const host of [managed, mapped])
      refused(theirs(host), /^host-accessible memory .* copy it/);
    recorder.stop();
    assert.equal(
      recorder.calls.some(({ name }) => name === 'cuIpcGetMemHandle'),
      false,
    );
  });

  test('a closed object throws ClosedError', () => {
    emulate();
    const buffer = DeviceBuffer.allocate(16);
    const event = CudaEvent.create({ interprocess: true });
    const view = buffer.subarray(1, 2);
    buffer.close();
    event.close();
    for (const closed of [buffer, view])
      assert.throws(() => getIpcHandle(closed), { name: 'ClosedError' });
    assert.throws(() => getIpcHandle(event), { name: 'ClosedError' });
  });

  test('a failing driver call throws, and the buffer stays usable', () => {
    const driver = emulate();
    using buffer = DeviceBuffer.allocate(16);
    for (const name of ['cuMemGetAddressRange_v2', 'cuPointerGetAttribute'] as const) {
      selectDriver(failing(driver, name, 1, 999));
      assert.throws(() => getIpcHandle(buffer), { name: 'CudaError', call: name });
      assert.equal(currentContext(), 0);
      getIpcHandle(buffer);
    }
  });
});
