import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  arena,
  BLOCK,
  OUT0,
  readBytes,
  readInt32,
  readSize,
  readString,
} from '../../../../ffi/arena.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import { stringAt } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { device, Emulated } from './support.ts';

describe('emulated devices', () => {
  test('only the version and the error texts can be queried before cuInit', () => {
    const cu = createEmulatedDriver({ arena, env: {} });
    assert.equal(cu.cuDeviceGetCount(OUT0), 3);
    assert.equal(cu.cuDriverGetVersion(OUT0), 0);
    assert.equal(readInt32(OUT0), 13_000);
    assert.equal(cu.cuGetErrorString(2, OUT0), 0);
    assert.equal(stringAt(readSize(OUT0) as Address), 'out of memory');
    assert.equal(cu.cuGetErrorString(12_345, OUT0), 1);
    assert.equal(cu.cuInit(1), 1);
    assert.equal(cu.cuInit(0), 0);
    assert.equal(cu.cuDeviceGetCount(OUT0), 0);
  });

  test('devices, memory and attributes follow the environment', () => {
    const { cu } = new Emulated({
      CUFFI_EMULATED_DEVICES: '2',
      CUFFI_EMULATED_MEMORY: '64M',
      CUFFI_EMULATED_ATTRIBUTES: '125=0, 20=3',
    });
    assert.equal(cu.cuDeviceGet(OUT0, 1), 0);
    assert.equal(cu.cuDeviceGet(OUT0, 2), 101);
    assert.equal(cu.cuDeviceTotalMem_v2(OUT0, device(1)), 0);
    assert.equal(readSize(OUT0), 64 * 2 ** 20);
    for (const [attribute, value] of [
      [125, 0],
      [20, 3],
      [16, 132],
      [75, 9],
      [41, 1],
      [115, 1],
      [119, 9],
      [102, 1],
      [103, 1],
      [83, 1],
    ] as const) {
      assert.equal(cu.cuDeviceGetAttribute(OUT0, attribute, device(0)), 0);
      assert.equal(readInt32(OUT0), value);
    }
    assert.equal(cu.cuDeviceGetAttribute(OUT0, 100_000, device(0)), 1);
    assert.equal(cu.cuDeviceGetAttribute(OUT0, 1, device(2)), 101);
  });

  test('cuInit returns NO_DEVICE on a machine without devices', () => {
    const cu = createEmulatedDriver({ arena, env: { CUFFI_EMULATED_DEVICES: '0' } });
    assert.equal(cu.cuInit(0), 100);
  });

  test('an invalid environment variable is refused by name', () => {
    for (const env of [
      { CUFFI_EMULATED_DEVICES: 'many' },
      { CUFFI_EMULATED_MEMORY: '4T' },
      { CUFFI_EMULATED_ATTRIBUTES: '125' },
      { CUFFI_EMULATED_FAULTS: 'cuNothing:1=2' },
      { CUFFI_EMULATED_SAME_HANDLES: 'yes' },
      { CUFFI_EMULATED_PEERS: '0-1' },
      { CUFFI_EMULATED_FOREIGN_CONTEXT: 'on' },
      { CUFFI_EMULATED_TEARDOWN_MS: 'soon' },
      { CUFFI_EMULATED_SHARED_QUEUES: '0' },
      { CUFFI_EMULATED_VERSION: '14' },
    ])
      assert.throws(() => createEmulatedDriver({ arena, env }), {
        name: 'RangeError',
        message: new RegExp(`^${Object.keys(env)[0]} must be .*, not "`),
      });
  });

  test('a device name is truncated to the buffer, and devices have different uuids', () => {
    const { cu } = new Emulated({ CUFFI_EMULATED_DEVICES: '2' });
    assert.equal(cu.cuDeviceGetName(BLOCK, 6, device(0)), 0);
    assert.equal(readString(BLOCK, 64), 'cuffi');
    assert.equal(cu.cuDeviceGetName(BLOCK, 64, device(0)), 0);
    assert.equal(readString(BLOCK, 64), 'cuffi emulated device');
    const uuids = [0, 1, 0].map((ordinal) => {
      assert.equal(cu.cuDeviceGetUuid_v2(OUT0, device(ordinal)), 0);
      return readBytes(OUT0, 16).join();
    });
    assert.equal(uuids[0], uuids[2]);
    assert.notEqual(uuids[0], uuids[1]);
  });

  test('visible devices have the UUID and PCI address of their place in the machine', () => {
    const read = (env: NodeJS.ProcessEnv): string[] => {
      const { cu } = new Emulated({ CUFFI_EMULATED_DEVICES: '4', ...env });
      assert.equal(cu.cuDeviceGetCount(OUT0), 0);
      return Array.from({ length: readInt32(OUT0) }, (_, ordinal) => {
        assert.equal(cu.cuDeviceGetUuid_v2(OUT0, device(ordinal)), 0);
        const uuid = readBytes(OUT0, 16).join();
        const PCI_BUS_ID = 33;
        assert.equal(cu.cuDeviceGetAttribute(OUT0, PCI_BUS_ID, device(ordinal)), 0);
        return `${uuid} on bus ${readInt32(OUT0)}`;
      });
    };
    const [zero, one, two, three] = read({});
    assert.equal(new Set([zero, one, two, three]).size, 4);
    assert.deepEqual(read({ CUDA_VISIBLE_DEVICES: '2,0' }), [two, zero]);
    assert.deepEqual(read({ CUDA_VISIBLE_DEVICES: '3,-1,1' }), [three]);
    // All devices are equally fast, so that both orders are the same.
    for (const order of ['FASTEST_FIRST', 'PCI_BUS_ID'])
      assert.deepEqual(read({ CUDA_DEVICE_ORDER: order }), [zero, one, two, three]);
    const { cu } = new Emulated({ CUFFI_EMULATED_DEVICES: '4', CUDA_VISIBLE_DEVICES: '2,0' });
    assert.equal(cu.cuDeviceGet(OUT0, 1), 0);
    assert.equal(cu.cuDeviceGet(OUT0, 2), 101);
    assert.equal(cu.cuDevicePrimaryCtxRetain(OUT0, device(2)), 101);
  });

  test('cuInit returns NO_DEVICE if no device is visible, INVALID_DEVICE if one is named twice', () => {
    for (const [list, status] of [
      ['', 100],
      ['-1', 100],
      ['7', 100],
      ['MIG-1', 100],
      ['0,0', 101],
    ] as const) {
      const env = { CUFFI_EMULATED_DEVICES: '4', CUDA_VISIBLE_DEVICES: list };
      const cu = createEmulatedDriver({ arena, env });
      assert.equal(cu.cuInit(0), status, list);
      assert.equal(cu.cuDeviceGetCount(OUT0), 3, list);
    }
  });

  test('a chosen call of a function fails, and only that one', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_FAULTS: 'cuMemAlloc_v2:2=2' });
    const first = emulated.allocate(1024);
    assert.equal(emulated.cu.cuMemAlloc_v2(OUT0, 1024), 2);
    assert.equal(emulated.allocate(1024), first + 1024);
    const never = new Emulated({ CUFFI_EMULATED_FAULTS: 'cuDeviceGetCount:*=999' });
    assert.equal(never.cu.cuDeviceGetCount(OUT0), 999);
    assert.equal(never.cu.cuDeviceGetCount(OUT0), 999);
  });
});
