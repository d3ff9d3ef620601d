/** A latch: holds a stream up until a word in shared host memory says go. */
import { openSync } from 'node:fs';
import { OUT0, readHandle } from '../../ffi/arena.ts';
import {
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
  CU_STREAM_WAIT_VALUE_GEQ,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { closeFd, createMemfd, type Mapping, mapShared } from '../../ffi/linux/libc.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../../src/check.ts';
import { Context } from '../../src/context.ts';
import type { Stream } from '../../src/stream.ts';

const BYTE_LENGTH = 4096;

/** The word of a latch, made here or by another process. */
export class LatchWord implements Disposable {
  readonly fd: number;
  readonly mapping: Mapping;
  readonly #word: Int32Array;

  private constructor(fd: number) {
    this.fd = fd;
    this.mapping = mapShared(fd, BYTE_LENGTH);
    this.#word = new Int32Array(this.mapping.view());
  }

  static create(): LatchWord {
    const fd = createMemfd('latch', BYTE_LENGTH);
    try {
      return new LatchWord(fd);
    } catch (error) {
      closeFd(fd);
      throw error;
    }
  }

  /** The word that another process made, by its pid and descriptor number. */
  static of(pid: number, fd: number): LatchWord {
    return new LatchWord(openSync(`/proc/${pid}/fd/${fd}`, 'r+'));
  }

  get isOpen(): boolean {
    return Atomics.load(this.#word, 0) !== 0;
  }

  open(): void {
    Atomics.store(this.#word, 0, 1);
  }

  shut(): void {
    Atomics.store(this.#word, 0, 0);
  }

  [Symbol.dispose](): void {
    this.mapping.unmap();
    closeFd(this.fd);
  }
}

/**
 * Holds streams of a context up until it is opened. Dispose opens it and waits for the context.
 */
export class Latch implements Disposable {
  readonly word = LatchWord.create();
  readonly devicePointer: CUdeviceptr;
  readonly context: Context;

  constructor(context: Context = Context.primary()) {
    this.context = context;
    const { address } = this.word.mapping;
    this.devicePointer = context.run(() => {
      check(
        cu.cuMemHostRegister_v2(
          address,
          BYTE_LENGTH,
          CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP,
        ),
        'cuMemHostRegister_v2',
      );
      check(cu.cuMemHostGetDevicePointer_v2(OUT0, address, 0), 'cuMemHostGetDevicePointer_v2');
      return readHandle<CUdeviceptr>(OUT0);
    });
  }

  /** Queues the wait in `stream`: what is queued there afterwards does not begin. */
  hold(stream: Stream): void {
    stream.enqueue((handle: CUstream) =>
      check(
        cu.cuStreamWaitValue32_v2(handle, this.devicePointer, 1, CU_STREAM_WAIT_VALUE_GEQ),
        'cuStreamWaitValue32_v2',
      ),
    );
  }

  open(): void {
    this.word.open();
  }

  [Symbol.dispose](): void {
    this.open();
    this.context.synchronizeSync();
    this.context.run(() =>
      check(cu.cuMemHostUnregister(this.word.mapping.address), 'cuMemHostUnregister'),
    );
    this.word[Symbol.dispose]();
  }
}
