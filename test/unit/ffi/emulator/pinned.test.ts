import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, readInt32, readSize } from '../../../../ffi/arena.ts';
import { closeFd, createMemfd, libc } from '../../../../ffi/linux/libc.ts';
import { mapAnonymous, mapMemfd } from '../../../../ffi/linux/mmap.ts';
import { viewMemory } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { at, device, Emulated, hostWords, LEGACY } from './support.ts';

const allocate = (emulated: Emulated, byteLength: number, flags: number): Address => {
  emulated.ok(emulated.cu.cuMemHostAlloc(OUT0, byteLength, flags));
  return readSize(OUT0) as Address;
};
const allocateManaged = (emulated: Emulated, byteLength: number): number => {
  emulated.ok(emulated.cu.cuMemAllocManaged(OUT0, byteLength, 1));
  return readSize(OUT0);
};

describe('emulated pinned and managed memory', () => {
  test('pinned memory is read when the copy runs, by the CPU’s and the device’s address', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const address = allocate(emulated, 100, 3);
    const words = new Int32Array(viewMemory(address, 100));
    emulated.ok(cu.cuMemHostGetDevicePointer_v2(OUT0, address, 0));
    assert.equal(readSize(OUT0), address);
    emulated.ok(cu.cuMemHostGetFlags(OUT0, (address + 8) as Address));
    assert.equal(readInt32(OUT0), 3);
    assert.equal(emulated.attribute(2, at(address)), 1);
    assert.equal(emulated.attribute(4, at(address), true), address);
    assert.equal(emulated.range(at(address)).byteLength, 100);
    const memory = emulated.allocate(64);
    words[0] = 1;
    emulated.ok(cu.cuMemcpyHtoDAsync_v2(memory, address, 4, LEGACY));
    words[0] = 2;
    assert.equal(emulated.read(memory), 2);
    emulated.ok(cu.cuStreamWriteValue64_v2(LEGACY, at(address), 2n ** 33n + 5n, 0));
    emulated.ok(cu.cuCtxSynchronize());
    assert.deepEqual([...words.subarray(0, 2)], [5, 2]);
    assert.equal(cu.cuMemHostRegister_v2(address, 64, 0), 1);
    assert.equal(cu.cuMemHostUnregister(address), 1);
    assert.equal(cu.cuMemFree_v2(at(address)), 1);
    assert.equal(cu.cuMemFreeHost((address + 8) as Address), 1);
    emulated.ok(cu.cuMemFreeHost(address));
    assert.equal(cu.cuMemFreeHost(address), 1);
    assert.equal(allocate(emulated, 0, 0), 0);
    assert.equal(cu.cuMemHostAlloc(OUT0, 64, 8), 1);
    assert.equal(cu.cuMemHostAlloc(OUT0, 64, 4), 0);
  });

  test('the flags of registered memory can be read, those of other memory cannot', () => {
    const emulated = Emulated.inContext();
    const { address } = hostWords(1024);
    assert.equal(emulated.cu.cuMemHostGetFlags(OUT0, address), 1);
    emulated.ok(emulated.cu.cuMemHostRegister_v2(address, 4096, 1));
    emulated.ok(emulated.cu.cuMemHostGetFlags(OUT0, address));
    assert.equal(readInt32(OUT0), 3);
    emulated.ok(emulated.cu.cuMemHostUnregister(address));
  });

  test('memory is registered if all of it can be read, and written unless it is only for reading', () => {
    const { cu } = Emulated.inContext();
    const PAGE = 4096;
    const [PROT_NONE, PROT_READ] = [0, 1];
    const fd = createMemfd('cuffi-test', PAGE);
    const file = mapMemfd(fd, 2 * PAGE);
    const pages = mapAnonymous(3 * PAGE);
    const middle = (pages.address + PAGE) as Address;
    const FIXED_PRIVATE_ANONYMOUS = 0x32;
    const remap = (protection: number) =>
      assert.equal(libc.mmap(middle, PAGE, protection, FIXED_PRIVATE_ANONYMOUS, -1, 0), middle);
    const register = (address: Address, byteLength: number, flags = 0): number => {
      const status = cu.cuMemHostRegister_v2(address, byteLength, flags);
      if (status === 0) assert.equal(cu.cuMemHostUnregister(address), 0);
      return status;
    };
    const all = 3 * PAGE;
    const READ_ONLY = 8;
    try {
      assert.equal(register(pages.address, all), 0);
      remap(PROT_READ);
      assert.deepEqual(
        [register(pages.address, all), register(pages.address, all, READ_ONLY)],
        [1, 0],
      );
      remap(PROT_NONE);
      assert.equal(register(pages.address, all, READ_ONLY), 1);
      assert.equal(libc.munmap(middle, PAGE), 0);
      assert.equal(register(pages.address, all, READ_ONLY), 1);
      assert.equal(register(pages.address, PAGE), 0);
      // The second page is mapped, but lies behind the end of the file.
      assert.deepEqual([register(file.address, PAGE), register(file.address, PAGE + 1)], [0, 1]);
    } finally {
      pages.unmap();
      file.unmap();
      closeFd(fd);
    }
  });

  test('managed memory is one for the CPU and the device, and takes memory where it is', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '64M' });
    const { cu } = emulated;
    const total = emulated.freeBytes();
    const address = allocateManaged(emulated, 2 ** 21);
    const words = new Int32Array(viewMemory(address as Address, 4096));
    emulated.write(at(address), 8);
    assert.equal(words[0], 8);
    assert.equal(emulated.attribute(8, at(address)), 1);
    assert.equal(emulated.freeBytes(), total);
    emulated.ok(cu.cuMemPrefetchAsync(at(address), 2 ** 21, device(0), LEGACY));
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(emulated.freeBytes(), total - 2 ** 21);
    emulated.ok(cu.cuMemPrefetchAsync(at(address), 2 ** 21, device(-1), LEGACY));
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(emulated.freeBytes(), total);
    assert.equal(cu.cuMemPrefetchAsync(at(address), 2 ** 21 + 1, device(0), LEGACY), 1);
    assert.equal(cu.cuMemPrefetchAsync(at(address), 64, device(4), LEGACY), 101);
    emulated.ok(cu.cuMemAdvise(at(address), 2 ** 21, 1, device(0)));
    emulated.ok(cu.cuMemAdvise(at(address), 2 ** 21, 3, device(-1)));
    assert.equal(cu.cuMemAdvise(at(address), 2 ** 21, 3, device(4)), 101);
    assert.equal(cu.cuMemAdvise(at(address), 2 ** 21, 7, device(0)), 1);
    assert.equal(cu.cuMemAdvise(emulated.allocate(64), 64, 1, device(0)), 1);
    const stream = emulated.stream();
    assert.equal(cu.cuStreamWriteValue64_v2(stream, at(address), 1, 0), 1);
    emulated.ok(cu.cuStreamAttachMemAsync(stream, at(address), 0, 4));
    assert.equal(cu.cuStreamAttachMemAsync(LEGACY, at(address), 0, 4), 1);
    assert.equal(cu.cuIpcGetMemHandle(BLOCK, at(address)), 1);
    assert.equal(cu.cuMemFree_v2(at(address, 8)), 1);
    emulated.free(at(address));
    assert.equal(cu.cuMemFree_v2(at(address)), 1);
    assert.equal(cu.cuMemAllocManaged(OUT0, 64, 4), 1);
    assert.equal(cu.cuMemAllocManaged(OUT0, 0, 1), 1);
  });

  test('a device without managed memory refuses it', () => {
    const { cu } = Emulated.inContext({ CUFFI_EMULATED_ATTRIBUTES: '83=0' });
    assert.equal(cu.cuMemAllocManaged(OUT0, 64, 1), 801);
  });

  test('pinned and managed memory go with their context', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const pinned = allocate(emulated, 64, 0);
    const managed = allocateManaged(emulated, 64);
    emulated.ok(cu.cuDevicePrimaryCtxReset_v2(device(0)));
    emulated.push(emulated.retain());
    assert.equal(cu.cuMemFreeHost(pinned), 1);
    assert.equal(cu.cuMemFree_v2(at(managed)), 1);
  });
});
