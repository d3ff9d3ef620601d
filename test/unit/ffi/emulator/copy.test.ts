import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { OUT0 } from '../../../../ffi/arena.ts';
import type { Address, CUdeviceptr, CUstream } from '../../../../ffi/types.ts';
import { at, Emulated, hostWords, LEGACY, unmappedAddress } from './support.ts';

describe('emulated copies and fills', () => {
  test('bytes come back as they went in', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4096);
    const from = hostWords(1024);
    const into = hostWords(1024);
    from.words.forEach((_, index) => {
      from.words[index] = index * 7;
    });
    emulated.ok(emulated.cu.cuMemcpyHtoD_v2(memory, from.address, 4096));
    emulated.ok(emulated.cu.cuMemcpyDtoH_v2(into.address, memory, 4096));
    assert.deepEqual(into.words, from.words);
  });

  test('a copy behind the end, from nowhere or to nowhere is refused', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.allocate(1024);
    const host = hostWords(1024).address;
    const nowhere = unmappedAddress();
    assert.equal(cu.cuMemcpyHtoD_v2(at(memory, 4), host, 1024), 1);
    assert.equal(cu.cuMemcpyHtoD_v2(at(4096), host, 4), 1);
    for (const bad of [nowhere, 0, 8, -1, 2 ** 60, 2 ** 52] as Address[]) {
      assert.equal(cu.cuMemcpyHtoD_v2(memory, bad, 4), 1);
      assert.equal(cu.cuMemcpyDtoH_v2(bad, memory, 4), 1);
      assert.equal(cu.cuMemcpyHtoDAsync_v2(memory, bad, 4, LEGACY), 1);
      assert.equal(cu.cuMemcpyDtoHAsync_v2(bad, memory, 4, LEGACY), 1);
      assert.equal(cu.cuMemcpyDtoDAsync_v2(memory, bad as number as CUdeviceptr, 4, LEGACY), 1);
    }
    assert.equal(cu.cuMemcpyHtoD_v2(memory, host, 0), 0);
    assert.equal(cu.cuMemcpyHtoDAsync_v2(memory, host, 4, 9999 as CUstream), 400);
  });

  test('ordinary host memory is read when the copy is queued', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4);
    const stream = emulated.stream();
    const host = hostWords(1);
    host.words[0] = 1;
    emulated.ok(emulated.cu.cuMemcpyHtoDAsync_v2(memory, host.address, 4, stream));
    host.words[0] = 2;
    emulated.ok(emulated.cu.cuStreamSynchronize(stream));
    assert.equal(emulated.read(memory), 1);
  });

  test('registered host memory is read when the copy runs', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4);
    const stream = emulated.stream();
    const host = hostWords(1);
    emulated.ok(emulated.cu.cuMemHostRegister_v2(host.address, 4, 0));
    host.words[0] = 1;
    emulated.ok(emulated.cu.cuMemcpyHtoDAsync_v2(memory, host.address, 4, stream));
    host.words[0] = 2;
    emulated.ok(emulated.cu.cuStreamSynchronize(stream));
    assert.equal(emulated.read(memory), 2);
    host.words[0] = 0;
    emulated.ok(emulated.cu.cuMemcpyDtoHAsync_v2(host.address, memory, 4, stream));
    assert.equal(host.words[0], 0);
    emulated.ok(emulated.cu.cuStreamSynchronize(stream));
    assert.equal(host.words[0], 2);
    emulated.ok(emulated.cu.cuMemHostUnregister(host.address));
  });

  test('a copy into ordinary host memory is done when the call returns', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4);
    const stream = emulated.stream();
    const host = hostWords(1);
    emulated.ok(emulated.cu.cuMemsetD32Async(memory, 0xdead_beef, 1, stream));
    emulated.ok(emulated.cu.cuMemcpyDtoHAsync_v2(host.address, memory, 4, stream));
    assert.equal(host.words[0], 0xdead_beef | 0);
  });

  test('fills repeat their element, of each width, and refuse misaligned addresses', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.allocate(3 * 2 ** 20);
    const last = at(memory, 3 * 2 ** 20 - 4);
    emulated.ok(cu.cuMemsetD8Async(memory, 0x12, 3 * 2 ** 20, LEGACY));
    assert.equal(emulated.read(last), 0x1212_1212);
    emulated.ok(cu.cuMemsetD16Async(memory, 0x1234, 3 * 2 ** 19, LEGACY));
    assert.equal(emulated.read(last), 0x1234_1234);
    emulated.ok(cu.cuMemsetD32Async(memory, 0x1234_5678, 3 * 2 ** 18, LEGACY));
    assert.equal(emulated.read(last), 0x1234_5678);
    assert.equal(cu.cuMemsetD16Async(at(memory, 1), 0, 1, LEGACY), 1);
    assert.equal(cu.cuMemsetD32Async(at(memory, 2), 0, 1, LEGACY), 1);
    assert.equal(cu.cuMemsetD32Async(last, 0, 2, LEGACY), 1);
  });

  test('work goes on in a turn of the event loop, without being asked about', async () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4);
    const host = hostWords(1);
    emulated.ok(emulated.cu.cuMemHostRegister_v2(host.address, 4, 0));
    emulated.ok(emulated.cu.cuMemsetD32Async(memory, 5, 1, LEGACY));
    emulated.ok(emulated.cu.cuMemcpyDtoHAsync_v2(host.address, memory, 4, LEGACY));
    assert.equal(host.words[0], 0);
    await turn();
    await turn();
    assert.equal(host.words[0], 5);
    emulated.ok(emulated.cu.cuMemHostUnregister(host.address));
  });

  test('the default stream may be named by its number too', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4);
    for (const stream of [0, 1, 2] as CUstream[]) {
      emulated.ok(emulated.cu.cuMemsetD32Async(memory, stream, 1, stream));
      emulated.ok(emulated.cu.cuStreamSynchronize(stream));
      assert.equal(emulated.read(memory), stream);
    }
    assert.equal(emulated.cu.cuStreamGetPriority(LEGACY, OUT0), 0);
  });
});
