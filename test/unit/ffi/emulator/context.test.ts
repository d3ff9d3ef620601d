import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, OUT1, readInt32, readSize } from '../../../../ffi/arena.ts';
import type { Address, CUcontext, CUstream } from '../../../../ffi/types.ts';
import { device, Emulated } from './support.ts';

describe('emulated contexts', () => {
  test('calls that need a current context return 201 without one', () => {
    const emulated = new Emulated();
    const { cu } = emulated;
    assert.equal(cu.cuMemAlloc_v2(OUT0, 1), 201);
    assert.equal(cu.cuCtxPopCurrent_v2(OUT0), 201);
    assert.equal(cu.cuStreamQuery(0 as CUstream), 201);
    assert.equal(cu.cuStreamQuery(2 as CUstream), 201);
    emulated.push(emulated.retain());
    const stream = emulated.stream();
    assert.equal(cu.cuCtxPopCurrent_v2(OUT0), 0);
    assert.equal(cu.cuStreamQuery(stream), 0);
    assert.equal(cu.cuCtxGetCurrent(OUT0), 0);
    assert.equal(readSize(OUT0), 0);
  });

  test('a device has one primary context, which can be used again after a reset', () => {
    const emulated = new Emulated();
    const { cu } = emulated;
    const active = (): number => {
      emulated.ok(cu.cuDevicePrimaryCtxGetState(device(0), OUT0, OUT1));
      return readInt32(OUT1);
    };
    assert.equal(active(), 0);
    const context = emulated.retain();
    assert.equal(emulated.retain(), context);
    assert.equal(active(), 1);
    emulated.push(context);
    const before = emulated.freeBytes();
    const memory = emulated.allocate(2 ** 22);
    const stream = emulated.stream();
    const event = emulated.event();
    emulated.ok(cu.cuCtxSetLimit(0, 4096));
    emulated.ok(cu.cuDevicePrimaryCtxReset_v2(device(0)));
    assert.equal(active(), 0);
    assert.equal(cu.cuMemAlloc_v2(OUT0, 1), 709);
    assert.throws(() => cu.cuStreamQuery(stream), /was destroyed/);
    assert.throws(() => cu.cuEventQuery(event), /was destroyed/);
    assert.equal(cu.cuMemGetAddressRange_v2(OUT0, OUT1, memory), 709);
    assert.equal(cu.cuMemFree_v2(memory), 1);
    emulated.ok(cu.cuCtxPopCurrent_v2(OUT0));
    assert.equal(emulated.retain(), context);
    emulated.push(context);
    assert.equal(emulated.freeBytes(), before);
    // With the limits of a new one.
    emulated.ok(cu.cuCtxGetLimit(OUT0, 0));
    assert.equal(readSize(OUT0), 1024);
  });

  test('the last release ends the primary context, and one more is refused', () => {
    const emulated = new Emulated();
    const context = emulated.retain();
    emulated.retain();
    emulated.ok(emulated.cu.cuDevicePrimaryCtxRelease_v2(device(0)));
    emulated.push(context);
    emulated.ok(emulated.cu.cuDevicePrimaryCtxRelease_v2(device(0)));
    assert.equal(emulated.cu.cuCtxPushCurrent_v2(context), 0);
    assert.equal(emulated.cu.cuMemAlloc_v2(OUT0, 1), 709);
    assert.equal(emulated.cu.cuDevicePrimaryCtxRelease_v2(device(0)), 201);
    assert.equal(emulated.cu.cuDevicePrimaryCtxRelease_v2(device(7)), 101);
  });

  test('a created context is current at once, and unknown once it is destroyed', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    emulated.ok(cu.cuCtxGetCurrent(OUT0));
    const primary = readSize(OUT0) as CUcontext;
    emulated.ok(cu.cuCtxCreate_v2(OUT0, 0, device(0)));
    const own = readSize(OUT0) as CUcontext;
    emulated.ok(cu.cuCtxGetCurrent(OUT0));
    assert.equal(readSize(OUT0), own);
    emulated.ok(cu.cuCtxDestroy_v2(own));
    emulated.ok(cu.cuCtxGetCurrent(OUT0));
    assert.equal(readSize(OUT0), primary);
    assert.equal(cu.cuCtxDestroy_v2(primary), 201);
    assert.throws(() => cu.cuCtxPushCurrent_v2(own), /was destroyed/);
    assert.equal(cu.cuCtxPushCurrent_v2(12_345 as CUcontext), 201);
    assert.equal(cu.cuCtxPushCurrent_v2(0 as CUcontext), 1);
  });

  test('limits are remembered, and unknown ones refused', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    emulated.ok(cu.cuCtxGetLimit(OUT0, 0));
    assert.equal(readSize(OUT0), 1024);
    emulated.ok(cu.cuCtxSetLimit(0, 4096));
    emulated.ok(cu.cuCtxGetLimit(OUT0, 0));
    assert.equal(readSize(OUT0), 4096);
    assert.equal(cu.cuCtxSetLimit(3, 1), 215);
    assert.equal(cu.cuCtxGetLimit(OUT0, 99), 1);
  });

  test('null and unmapped out-values are refused, before anything is made', () => {
    const emulated = Emulated.inContext();
    const before = emulated.freeBytes();
    assert.equal(emulated.cu.cuMemAlloc_v2(0 as Address, 2 ** 22), 1);
    assert.equal(emulated.cu.cuMemAlloc_v2(0x1000 as Address, 2 ** 22), 1);
    assert.equal(emulated.freeBytes(), before);
  });
});
