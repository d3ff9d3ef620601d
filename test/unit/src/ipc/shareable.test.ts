import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { format, inspect } from 'node:util';
import { duplicateFd } from '../../../../ffi/linux/libc.ts';
import {
  CudaEvent,
  DeviceBuffer,
  fromBuffer,
  MemoryPool,
  uint8,
  VirtualMemory,
} from '../../../../src/index.ts';
import { localProcess } from '../../../../src/ipc/identity.ts';
import {
  exportIpc,
  getIpcHandle,
  openIpc,
  openIpcArray,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
} from '../../../../src/ipc/index.ts';
import { withChecksum } from '../../../../src/ipc/sharing/descriptor-codec.ts';
import { emulate } from '../emulate.ts';

/** One object of each kind that can be shared, by the name of its class. */
function onePerKind(): Record<string, object & { close(): void }> {
  emulate();
  const buffer = DeviceBuffer.allocate(16);
  const pool = MemoryPool.create({ maxSize: 32 << 20, shareable: true });
  const { descriptor, fds } = exportIpc(pool);
  // The pool as another process's, which this one may open.
  const foreign = withChecksum({
    ...descriptor,
    pid: localProcess().pid + 1,
    pidNamespace: 1,
  } as never);
  return {
    DeviceBuffer: buffer,
    DeviceArray: fromBuffer(buffer, 16, uint8),
    VirtualMemory: VirtualMemory.reserve(2 << 20, { shareable: true }),
    CudaEvent: CudaEvent.create({ interprocess: true }),
    MemoryPool: pool,
    ImportedPool: openIpcPool(foreign, { fds: fds.map(duplicateFd) }),
  };
}

describe('toJSON of what can be shared', () => {
  test('returns the description, and opening that says what to send', () => {
    for (const [kind, object] of Object.entries(onePerKind())) {
      const [message] = JSON.parse(JSON.stringify([object]));
      assert.match(message, new RegExp(`^${kind}\\(`));
      for (const open of [openIpc, openIpcBuffer, openIpcArray, openIpcEvent, openIpcPool])
        assert.throws(() => open(message), {
          name: 'IpcError',
          code: 'invalid-descriptor',
          message: /description of an object, not the object: send what getIpcHandle\(\) returns/,
        });
      object.close();
    }
  });

  test('leaves alone how objects are shown, what getIpcHandle returns, and streams', () => {
    for (const [kind, object] of Object.entries(onePerKind())) {
      assert.match(inspect({ object }), new RegExp(kind));
      assert.match(format('%s %o', object, object), new RegExp(kind));
      object.close();
    }
    const array = fromBuffer(DeviceBuffer.allocate(16), 16, uint8);
    using ofArray = getIpcHandle(array);
    const ofBuffer = getIpcHandle(array.buffer);
    assert.deepEqual(JSON.parse(JSON.stringify(ofBuffer)), ofBuffer);
    assert.deepEqual(JSON.parse(JSON.stringify(ofArray)), { ...ofArray.toJSON() });
  });
});
