import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, readBytes } from '../../../../ffi/arena.ts';
import type { CUevent, CUstream } from '../../../../ffi/types.ts';
import { device, Emulated, INTERPROCESS, LEGACY, NON_BLOCKING } from './support.ts';

const DISABLE_TIMING = 2;
const NOT_READY = 600;

describe('emulated events', () => {
  test('an event that was never recorded is done', () => {
    const emulated = Emulated.inContext();
    for (const flags of [0, DISABLE_TIMING, INTERPROCESS]) {
      const event = emulated.event(flags);
      assert.equal(emulated.cu.cuEventQuery(event), 0);
      assert.equal(emulated.cu.cuEventSynchronize(event), 0);
    }
  });

  test('a wait is for the record made before it, not for a later one', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const word = emulated.allocate(4);
    emulated.write(word, 0);
    for (const flags of [0, INTERPROCESS]) {
      const [held, waiting, other] = [1, 1, 1].map((blocking) => emulated.stream(blocking));
      const event = emulated.event(flags);
      emulated.ok(cu.cuEventRecord(event, held as CUstream));
      emulated.ok(cu.cuStreamWaitEvent(waiting as CUstream, event, 0));
      emulated.ok(cu.cuStreamWaitValue32_v2(held as CUstream, word, 1, 1));
      emulated.ok(cu.cuEventRecord(event, held as CUstream));
      emulated.ok(cu.cuStreamWaitEvent(other as CUstream, event, 0));
      assert.equal(cu.cuStreamQuery(waiting as CUstream), 0);
      assert.equal(cu.cuStreamQuery(other as CUstream), NOT_READY);
      assert.equal(cu.cuEventQuery(event), NOT_READY);
      emulated.write(word, 1);
      emulated.ok(cu.cuEventSynchronize(event));
      assert.equal(cu.cuStreamQuery(other as CUstream), 0);
      emulated.write(word, 0);
    }
  });

  test('elapsed time needs two recorded, reached events with timing', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const stream = emulated.stream(NON_BLOCKING);
    const word = emulated.allocate(4);
    emulated.write(word, 0);
    const [start, end] = [emulated.event(), emulated.event()];
    assert.equal(cu.cuEventElapsedTime(OUT0, start, end), 400);
    emulated.ok(cu.cuEventRecord(start, stream));
    assert.equal(cu.cuEventElapsedTime(OUT0, start, end), 400);
    emulated.ok(cu.cuStreamWaitValue32_v2(stream, word, 1, 0));
    emulated.ok(cu.cuEventRecord(end, stream));
    assert.equal(cu.cuEventElapsedTime(OUT0, start, end), NOT_READY);
    emulated.write(word, 1);
    emulated.ok(cu.cuEventSynchronize(end));
    assert.ok(emulated.elapsed(start, end) >= 0);
    for (const flags of [DISABLE_TIMING, INTERPROCESS]) {
      const untimed = emulated.event(flags);
      emulated.ok(cu.cuEventRecord(untimed, stream));
      assert.equal(cu.cuEventElapsedTime(OUT0, start, untimed), 400);
    }
    emulated.ok(cu.cuCtxCreate_v2(OUT0, 0, device(0)));
    const elsewhere = emulated.event();
    emulated.ok(cu.cuEventRecord(elsewhere, LEGACY));
    emulated.ok(cu.cuEventSynchronize(elsewhere));
    assert.equal(cu.cuEventElapsedTime(OUT0, start, elsewhere), 400);
    assert.equal(cu.cuEventElapsedTime(OUT0, elsewhere, start), 400);
    assert.equal(emulated.elapsed(elsewhere, elsewhere), 0);
  });

  test('flags that do not fit are refused, as are unknown events', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    assert.equal(cu.cuEventCreate(OUT0, 4), 1);
    assert.equal(cu.cuEventCreate(OUT0, 8), 1);
    const event = emulated.event();
    assert.equal(cu.cuIpcGetEventHandle(BLOCK, event), 400);
    emulated.ok(cu.cuEventDestroy_v2(event));
    assert.equal(cu.cuEventRecord(4711 as CUevent, emulated.stream()), 400);
    assert.equal(cu.cuStreamWaitEvent(emulated.stream(), 4711 as CUevent, 0), 400);
  });

  test('a process has 4096 interprocess events at a time', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const events = Array.from({ length: 4096 }, () => emulated.event(INTERPROCESS));
    assert.equal(cu.cuEventCreate(OUT0, INTERPROCESS), 2);
    emulated.event();
    for (const event of events) emulated.ok(cu.cuEventDestroy_v2(event));
    emulated.event(INTERPROCESS);
  });

  test('an event cannot be opened in its own process, nor from invented bytes', () => {
    const emulated = Emulated.inContext();
    const handle = emulated.eventHandle(emulated.event(INTERPROCESS));
    assert.equal(emulated.cu.cuIpcOpenEventHandle(OUT0, handle), 201);
    for (let at = 0; at < 64; at += 1) {
      const reserved = handle.reserved.slice();
      reserved[at] = (reserved[at] as number) ^ 0x55;
      const status = emulated.cu.cuIpcOpenEventHandle(OUT0, { reserved });
      // Another pid or start time (8 to 11, 16 to 23) means a process that has ended.
      const isOfAnother = (at >= 8 && at < 12) || (at >= 16 && at < 24);
      assert.ok(isOfAnother ? [0, 1, 205].includes(status) : status !== 0, `byte ${at}`);
    }
    assert.equal(emulated.cu.cuIpcOpenEventHandle(OUT0, { reserved: new Uint8Array(64) }), 205);
    assert.equal(readBytes(BLOCK, 64).length, 64);
  });
});
