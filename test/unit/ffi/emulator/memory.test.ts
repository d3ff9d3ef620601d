import assert from 'node:assert/strict';
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, OUT1, readSize } from '../../../../ffi/arena.ts';
import { createMemfd, libc } from '../../../../ffi/linux/libc.ts';
import type { Address, CUdeviceptr } from '../../../../ffi/types.ts';
import { at, Emulated, hostWords, NON_BLOCKING, unmappedAddress } from './support.ts';

const BLOCK_BYTE_LENGTH = 2 ** 21;

describe('emulated device memory', () => {
  test('small allocations lie side by side, each with its own range', () => {
    const emulated = Emulated.inContext();
    const first = emulated.allocate(1024);
    const second = emulated.allocate(1024);
    const odd = emulated.allocate(100);
    assert.equal(second, first + 1024);
    assert.deepEqual(emulated.range(at(second, 1023)), { base: second, byteLength: 1024 });
    assert.deepEqual(emulated.range(at(odd, 99)), { base: odd, byteLength: 100 });
    assert.equal(emulated.cu.cuMemGetAddressRange_v2(OUT0, OUT1, at(odd, 100)), 500);
  });

  test('freed memory is given out again at its address, under another buffer id', () => {
    const emulated = Emulated.inContext();
    for (const byteLength of [4096, 64 * 2 ** 20]) {
      const first = emulated.allocate(byteLength);
      const id = emulated.attribute(7, first, true);
      emulated.free(first);
      const again = emulated.allocate(byteLength);
      assert.equal(again, first);
      assert.ok(emulated.attribute(7, again, true) > id);
      emulated.free(again);
    }
  });

  test('fresh memory of each kind holds no zeros, first or given out again', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const unit = BLOCK_BYTE_LENGTH;
    const stream = emulated.stream(NON_BLOCKING);
    const pool = emulated.pool();
    const out = (status: number): CUdeviceptr => {
      emulated.ok(status);
      return readSize(OUT0) as CUdeviceptr;
    };
    const mapped = (byteLength: number): CUdeviceptr => {
      const address = emulated.reserve(byteLength);
      emulated.ok(cu.cuMemMap(address, byteLength, 0, emulated.createPhysical(byteLength), 0));
      emulated.ok(emulated.setAccess(address, byteLength, 3));
      return address;
    };
    const kinds: Record<string, (byteLength: number) => CUdeviceptr> = {
      small: (byteLength) => emulated.allocate(byteLength / 1024),
      large: (byteLength) => emulated.allocate(byteLength),
      rows: (byteLength) => out(cu.cuMemAllocPitch_v2(OUT0, OUT1, byteLength / 64, 64, 4)),
      pool: (byteLength) => emulated.allocateFrom(pool, byteLength, stream),
      virtual: mapped,
      managed: (byteLength) => out(cu.cuMemAllocManaged(OUT0, byteLength, 1)),
      pinned: (byteLength) => out(cu.cuMemHostAlloc(OUT0, byteLength, 0)),
    };
    for (const [kind, make] of Object.entries(kinds))
      for (const byteLength of [2 * unit, 16 * unit]) {
        const address = make(byteLength);
        const last = emulated.range(address).byteLength - 4;
        for (const offset of [0, last])
          assert.equal(
            emulated.read(at(address, offset)) >>> 0,
            0xa5a5_a5a5,
            `${kind} at ${offset}`,
          );
      }
    const first = emulated.allocate(64);
    emulated.write(first, 7);
    emulated.free(first);
    const again = emulated.allocate(64);
    assert.deepEqual([again, emulated.read(again) >>> 0], [first, 0xa5a5_a5a5]);
  });

  test('large memory is aligned to 2 MiB and costs only what is touched', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '64G' });
    const memory = emulated.allocate(48 * 2 ** 30);
    assert.equal(memory % BLOCK_BYTE_LENGTH, 0);
    const last = at(memory, 48 * 2 ** 30 - 4);
    emulated.write(last, 42);
    assert.equal(emulated.read(last), 42);
    emulated.free(memory);
  });

  test('free memory comes back, and runs out', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '8M' });
    const { cu } = emulated;
    assert.equal(emulated.freeBytes(), 8 * 2 ** 20);
    const small = emulated.allocate(1);
    assert.equal(emulated.freeBytes(), 6 * 2 ** 20);
    assert.equal(cu.cuMemAlloc_v2(OUT0, 7 * 2 ** 20), 2);
    const large = emulated.allocate(5 * 2 ** 20);
    assert.equal(emulated.freeBytes(), 0);
    assert.equal(cu.cuMemAlloc_v2(OUT0, 2 ** 21), 2);
    // The small block has room left.
    emulated.free(emulated.allocate(2 ** 20));
    emulated.free(large);
    emulated.free(small);
    assert.equal(emulated.freeBytes(), 8 * 2 ** 20);
    const all = emulated.allocate(8 * 2 ** 20);
    assert.equal(cu.cuMemAlloc_v2(OUT0, 1), 2);
    emulated.free(all);
  });

  test('nothing can be allocated, and only bases freed, once', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    assert.equal(cu.cuMemAlloc_v2(OUT0, 0), 1);
    const memory = emulated.allocate(1024);
    assert.equal(cu.cuMemFree_v2(at(0)), 0);
    assert.equal(cu.cuMemFree_v2(at(0x1234)), 1);
    assert.equal(cu.cuMemFree_v2(at(memory, 512)), 1);
    assert.equal(cu.cuMemFree_v2(memory), 0);
    assert.equal(cu.cuMemFree_v2(memory), 1);
  });

  test('freed memory cannot be read, small or large', () => {
    const emulated = Emulated.inContext();
    const small = emulated.allocate(1024);
    emulated.allocate(1024);
    const large = emulated.allocate(2 ** 22);
    emulated.free(small);
    emulated.free(large);
    assert.equal(emulated.cu.cuMemcpyDtoH_v2(BLOCK, small, 1024), 1);
    assert.equal(emulated.cu.cuMemcpyDtoH_v2(BLOCK, large, 4), 1);
  });

  test('pointer attributes tell plain device memory', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(1000);
    const inside = at(memory, 8);
    assert.equal(emulated.attribute(2, inside), 2);
    assert.equal(emulated.attribute(8, inside), 0);
    assert.equal(emulated.attribute(9, inside), 0);
    assert.equal(emulated.attribute(10, inside), 1);
    assert.equal(emulated.attribute(11, inside, true), memory);
    assert.equal(emulated.attribute(12, inside, true), 1000);
    assert.equal(emulated.attribute(13, inside), 1);
    emulated.ok(emulated.cu.cuCtxGetCurrent(OUT1));
    const context = readSize(OUT1);
    assert.equal(emulated.attribute(1, inside, true), context);
    assert.equal(emulated.cu.cuPointerGetAttribute(OUT0, 999, memory), 1);
    assert.equal(emulated.cu.cuPointerGetAttribute(OUT0, 2, at(12_345)), 1);
  });

  test('host memory is registered once, found by any address, and forgotten', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const { address } = hostWords(1024);
    const pointer = at(address, 4);
    assert.equal(cu.cuMemHostGetDevicePointer_v2(OUT0, address, 0), 1);
    emulated.ok(cu.cuMemHostRegister_v2(address, 4096, 1));
    assert.equal(cu.cuMemHostRegister_v2((address + 8) as Address, 16, 0), 712);
    emulated.ok(cu.cuMemHostGetDevicePointer_v2(OUT0, (address + 4) as Address, 0));
    assert.equal(readSize(OUT0), pointer);
    assert.equal(emulated.attribute(2, pointer), 1);
    assert.equal(emulated.attribute(10, pointer), 0);
    assert.deepEqual(emulated.range(pointer), { base: address, byteLength: 4096 });
    assert.equal(cu.cuMemHostUnregister((address + 4) as Address), 1);
    emulated.ok(cu.cuMemHostUnregister(address));
    assert.equal(cu.cuMemHostUnregister(address), 713);
  });

  test('two registrations share no byte, but pages', () => {
    const { cu } = Emulated.inContext();
    const page = 4096;
    const pages = hostWords(page).address;
    const first = (pages - (pages % page) + page) as Address;
    assert.equal(cu.cuMemHostRegister_v2((first + 8) as Address, 8, 0), 0);
    for (const [offset, byteLength] of [
      [0, 9],
      [8, 8],
      [15, 8],
      [12, 2],
      [16 - page, page],
    ] as const)
      assert.equal(cu.cuMemHostRegister_v2((first + offset) as Address, byteLength, 0), 712);
    for (const offset of [0, 16, page])
      assert.equal(cu.cuMemHostRegister_v2((first + offset) as Address, 8, 0), 0);
    for (const offset of [8, 0, 16, page])
      assert.equal(cu.cuMemHostUnregister((first + offset) as Address), 0);
  });

  test('memory that may not be written, or is a file, is registered to be read, and only read', () => {
    const [PROT_READ, PROT_READ_WRITE, SHARED, PRIVATE, ANONYMOUS] = [1, 3, 1, 2, 0x20];
    const READ_ONLY = 8;
    const { cu } = Emulated.inContext();
    assert.equal(cu.cuMemAlloc_v2(OUT0, 4096), 0);
    const memory = readSize(OUT0) as CUdeviceptr;
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-registered-'));
    try {
      const path = join(folder, 'file');
      writeFileSync(path, Buffer.alloc(4096, 3));
      const fd = openSync(path, 'r+');
      const memfd = createMemfd('registered', 4096);
      const map = (protection: number, flags: number, of: number): Address =>
        libc.mmap(0, 4096, protection, flags, of, 0) as Address;
      for (const [address, isWritable] of [
        [map(PROT_READ_WRITE, PRIVATE | ANONYMOUS, -1), true],
        [map(PROT_READ_WRITE, SHARED | ANONYMOUS, -1), true],
        [map(PROT_READ_WRITE, SHARED, memfd), true],
        [map(PROT_READ_WRITE, PRIVATE, fd), true],
        [map(PROT_READ, PRIVATE | ANONYMOUS, -1), false],
        [map(PROT_READ_WRITE, SHARED, fd), false],
        [map(PROT_READ, SHARED, fd), false],
      ] as const) {
        assert.equal(cu.cuMemHostRegister_v2(address, 4096, 0), isWritable ? 0 : 1);
        if (isWritable) assert.equal(cu.cuMemcpyDtoH_v2(address, memory, 4096), 0);
        if (isWritable) assert.equal(cu.cuMemHostUnregister(address), 0);
        assert.equal(cu.cuMemHostRegister_v2(address, 4096, READ_ONLY), 0);
        assert.equal(cu.cuMemcpyHtoD_v2(memory, address, 4096), 0);
        assert.equal(cu.cuMemcpyDtoH_v2(address, memory, 4096), 1);
        assert.equal(cu.cuMemHostUnregister(address), 0);
        libc.munmap(address, 4096);
      }
      closeSync(fd);
      closeSync(memfd);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('unmapped host memory cannot be registered', () => {
    const { cu } = Emulated.inContext();
    assert.equal(cu.cuMemHostRegister_v2(unmappedAddress(), 64, 0), 1);
    assert.equal(cu.cuMemHostRegister_v2(0 as Address, 64, 0), 1);
    assert.equal(cu.cuMemHostRegister_v2(hostWords(1).address, 0, 0), 1);
    assert.equal(cu.cuMemHostRegister_v2(hostWords(1).address, 4, 0x100), 1);
  });
});
