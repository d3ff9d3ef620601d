import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, OUT1, readInt32, readSize, writeStruct } from '../../../../ffi/arena.ts';
import { libc, libcSymbol } from '../../../../ffi/linux/libc.ts';
import { allocatePermanent, viewMemory } from '../../../../ffi/native.ts';
import type { Address, CUcontext, CUdeviceptr } from '../../../../ffi/types.ts';
import { at, device, Emulated, hostWords, LEGACY, unmappedAddress } from './support.ts';

const [HOST, DEVICE, ARRAY, UNIFIED] = [1, 2, 3, 4] as const;

function hostBytes(byteLength: number): { address: Address; bytes: Uint8Array } {
  const address = allocatePermanent(byteLength);
  const bytes = new Uint8Array(viewMemory(address, byteLength));
  bytes.forEach((_, n) => {
    bytes[n] = n;
  });
  return { address, bytes };
}

describe('emulated copies of two and three dimensions', () => {
  test('rows are copied between pitches: to the device, on it, and back', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const { address, bytes } = hostBytes(64);
    emulated.ok(cu.cuMemAllocPitch_v2(OUT0, OUT1, 6, 3, 4));
    const [memory, pitch] = [readSize(OUT0) as CUdeviceptr, readSize(OUT1)];
    assert.equal(pitch, 512);
    const up = {
      srcMemoryType: HOST,
      srcHost: address,
      srcPitch: 10,
      srcXInBytes: 1,
      srcY: 1,
      dstMemoryType: DEVICE,
      dstDevice: memory,
      dstPitch: pitch,
      WidthInBytes: 6,
      Height: 3,
    };
    emulated.ok(cu.cuMemcpy2DAsync_v2(writeStruct('CUDA_MEMCPY2D', up), LEGACY));
    bytes.fill(0);
    const down = {
      srcMemoryType: UNIFIED,
      srcDevice: memory,
      srcPitch: pitch,
      dstMemoryType: UNIFIED,
      dstDevice: address,
      dstPitch: 8,
      WidthInBytes: 6,
      Height: 3,
    };
    emulated.ok(cu.cuMemcpy2DUnaligned_v2(writeStruct('CUDA_MEMCPY2D', down)));
    assert.deepEqual(
      [...bytes.subarray(0, 24)],
      [0, 10, 20].flatMap((row) =>
        [11, 12, 13, 14, 15, 16, 0 - row, 0 - row].map((b) => (b > 0 ? b + row : 0)),
      ),
    );
  });

  test('slices are copied by their heights', () => {
    const emulated = Emulated.inContext();
    const { address, bytes } = hostBytes(96);
    const memory = emulated.allocate(4096);
    const copy = {
      srcMemoryType: HOST,
      srcHost: address,
      srcPitch: 8,
      srcHeight: 4,
      srcZ: 1,
      dstMemoryType: DEVICE,
      dstDevice: memory,
      dstPitch: 16,
      dstHeight: 3,
      WidthInBytes: 4,
      Height: 2,
      Depth: 2,
    };
    emulated.ok(emulated.cu.cuMemcpy3DAsync_v2(writeStruct('CUDA_MEMCPY3D', copy), LEGACY));
    const first = (offset: number): number => emulated.read(at(memory, offset)) & 0xff;
    assert.deepEqual(
      [0, 16, 48, 64].map(first),
      [32, 40, 64, 72].map((n) => bytes[n]),
    );
    const back = { ...copy, srcMemoryType: DEVICE, srcDevice: memory, srcZ: 0, srcPitch: 16 };
    const result = hostBytes(64);
    emulated.ok(
      emulated.cu.cuMemcpy3D_v2(
        writeStruct('CUDA_MEMCPY3D', {
          ...back,
          srcHeight: 3,
          dstMemoryType: HOST,
          dstHost: result.address,
          dstPitch: 4,
          dstHeight: 2,
        }),
      ),
    );
    assert.deepEqual([...result.bytes.subarray(0, 4)], [32, 33, 34, 35]);
    assert.deepEqual([...result.bytes.subarray(12, 16)], [72, 73, 74, 75]);
  });

  test('what a struct describes wrongly is refused', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.allocate(4096);
    const base = {
      srcMemoryType: DEVICE,
      srcDevice: memory,
      srcPitch: 64,
      dstMemoryType: DEVICE,
      dstDevice: at(memory, 2048),
      dstPitch: 64,
      WidthInBytes: 32,
      Height: 4,
    };
    const copy = (values: object): number =>
      cu.cuMemcpy2DAsync_v2(writeStruct('CUDA_MEMCPY2D', { ...base, ...values }), LEGACY);
    assert.equal(copy({}), 0);
    assert.equal(copy({ Height: 0 }), 0);
    assert.equal(copy({ srcPitch: 0 }), 0);
    assert.equal(copy({ srcPitch: 16 }), 1);
    assert.equal(copy({ srcMemoryType: 9 }), 1);
    assert.equal(copy({ srcMemoryType: ARRAY }), 801);
    assert.equal(copy({ Height: 1000 }), 1);
    assert.equal(copy({ srcMemoryType: HOST, srcHost: unmappedAddress() }), 1);
    assert.equal(cu.cuMemcpy2DAsync_v2(unmappedAddress(), LEGACY), 1);
  });

  test('a fill of rows leaves what is between them', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.allocate(4096);
    emulated.ok(cu.cuMemsetD8Async(memory, 0xff, 4096, LEGACY));
    emulated.ok(cu.cuMemsetD2D16Async(memory, 16, 0x0102, 2, 3, LEGACY));
    assert.deepEqual(
      [0, 4, 16, 32, 48].map((offset) => emulated.read(at(memory, offset))),
      [0x0102_0102, -1, 0x0102_0102, 0x0102_0102, -1],
    );
    emulated.ok(cu.cuMemsetD2D32Async(memory, 4096, 5, 1, 1, LEGACY));
    emulated.ok(cu.cuMemsetD2D8Async(memory, 8, 1, 8, 0, LEGACY));
    assert.equal(cu.cuMemsetD2D8Async(memory, 4, 1, 8, 2, LEGACY), 1);
    assert.equal(cu.cuMemsetD2D32Async(at(memory, 2), 16, 1, 2, 2, LEGACY), 1);
  });

  test('devices copy from each other with and without access, which is enabled once', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_DEVICES: '2' });
    const { cu } = emulated;
    const [zero, one] = [emulated.retain(0), emulated.retain(1)];
    const here = emulated.allocate(4096);
    emulated.push(one);
    const there = emulated.allocate(4096);
    emulated.write(there, 6);
    emulated.ok(cu.cuCtxPopCurrent_v2(OUT0));
    emulated.ok(cu.cuMemcpyPeerAsync(here, zero, there, one, 4, LEGACY));
    assert.equal(emulated.read(here), 6);
    emulated.ok(cu.cuMemcpyPeerAsync(here, 0 as CUcontext, there, 0 as CUcontext, 4, LEGACY));
    assert.equal(cu.cuMemcpyPeerAsync(here, zero, there, 5 as CUcontext, 4, LEGACY), 201);
    const copy = {
      srcMemoryType: DEVICE,
      srcDevice: there,
      srcContext: one,
      dstMemoryType: DEVICE,
      dstDevice: at(here, 4),
      dstContext: zero,
      WidthInBytes: 4,
      Height: 1,
      Depth: 1,
    };
    emulated.ok(cu.cuMemcpy3DPeerAsync(writeStruct('CUDA_MEMCPY3D_PEER', copy), LEGACY));
    assert.equal(emulated.read(at(here, 4)), 6);
    emulated.ok(cu.cuDeviceCanAccessPeer(OUT0, device(0), device(1)));
    assert.equal(readInt32(OUT0), 1);
    emulated.ok(cu.cuDeviceGetP2PAttribute(OUT0, 2, device(0), device(1)));
    assert.equal(readInt32(OUT0), 1);
    assert.equal(cu.cuDeviceGetP2PAttribute(OUT0, 2, device(0), device(0)), 101);
    assert.deepEqual(
      [
        cu.cuCtxDisablePeerAccess(one),
        cu.cuCtxEnablePeerAccess(one, 0),
        cu.cuCtxEnablePeerAccess(one, 0),
        cu.cuCtxDisablePeerAccess(one),
        cu.cuCtxEnablePeerAccess(zero, 0),
        cu.cuCtxEnablePeerAccess(one, 1),
      ],
      [705, 0, 704, 0, 217, 1],
    );
  });

  test('a host function is called when the stream gets there, if it is one of libc’s two', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const { address } = hostWords(8);
    libc.sem_init(address, 0, 0);
    emulated.ok(cu.cuLaunchHostFunc(LEGACY, libcSymbol('sem_post'), address));
    assert.equal(libc.sem_trywait(address), -1);
    emulated.ok(cu.cuStreamSynchronize(LEGACY));
    assert.equal(libc.sem_trywait(address), 0);
    assert.equal(cu.cuLaunchHostFunc(LEGACY, libcSymbol('free'), address), 801);
    assert.equal(cu.cuLaunchHostFunc(LEGACY, 0 as Address, address), 1);
  });

  test('64-bit values are compared and written whole, and cyclically', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const word = emulated.allocate(16);
    const [waiting, writing] = [emulated.stream(1), emulated.stream(1)];
    emulated.write(word, 0, 0);
    emulated.ok(cu.cuStreamWaitValue64_v2(waiting, word, 2n ** 40n + 1n, 0));
    emulated.ok(cu.cuStreamWriteValue64_v2(writing, word, 2n ** 40n, 0));
    assert.equal(cu.cuStreamQuery(waiting), 600);
    emulated.ok(cu.cuStreamWriteValue64_v2(writing, word, 2n ** 40n + 1n, 0));
    assert.equal(cu.cuStreamQuery(waiting), 0);
    emulated.ok(cu.cuStreamWriteValue64_v2(writing, word, 5, 0));
    // 2^64 - 1 is -1, and 5 comes after it.
    emulated.ok(cu.cuStreamWaitValue64_v2(writing, word, 2n ** 64n - 1n, 0));
    assert.equal(cu.cuStreamQuery(writing), 0);
    assert.equal(cu.cuStreamWaitValue64_v2(waiting, at(word, 4), 1, 0), 1);
  });

  test('rows may lie further apart than 2^31 - 1 bytes, on either side', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '16G' });
    const { cu } = emulated;
    const most = 2 ** 31 - 1;
    const memory = emulated.allocate(2 ** 32);
    emulated.write(at(memory, most + 1), 0);
    const near = emulated.allocate(4096);
    const rows = { srcMemoryType: DEVICE, dstMemoryType: DEVICE, WidthInBytes: 4, Height: 2 };
    const up = { ...rows, srcDevice: near, srcPitch: 8, dstDevice: memory };
    const down = { ...rows, srcDevice: memory, dstDevice: near, dstPitch: 8 };
    emulated.write(at(near, 8), 7);
    for (const pitch of [most, most + 1]) {
      for (const copy of [
        { ...up, dstPitch: pitch },
        { ...down, srcPitch: pitch },
      ]) {
        emulated.ok(cu.cuMemcpy2DAsync_v2(writeStruct('CUDA_MEMCPY2D', copy), LEGACY));
        const box = writeStruct('CUDA_MEMCPY3D', { ...copy, Depth: 1 });
        emulated.ok(cu.cuMemcpy3DAsync_v2(box, LEGACY));
      }
    }
    emulated.ok(cu.cuStreamSynchronize(LEGACY));
    assert.equal(emulated.read(at(memory, most + 1)), 7);
  });
});
