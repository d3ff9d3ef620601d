/**
 * Files that wake the event loop when C code calls `fflush` with one, on any thread. All files of a thread
 * lie over one eventfd, which its event loop watches; each holds eight unflushed bytes: a number with a
 * bit of its own. The eventfd adds these numbers up, so one read tells which files were flushed.
 */

import { allocatePermanent, viewMemory } from '../native.ts';
import { isMainThread } from '../thread.ts';
import type { Address } from '../types.ts';
import { closeFd, libc, libcSymbol, SystemError, succeeded } from './libc.ts';
import { runtimeWithoutWatches, watchFd } from './poll.ts';

/** A file that holds its bytes until something flushes it. */
export interface WakeFile {
  /** The `FILE *`: the argument of `fflush`. Valid as long as the process. */
  readonly address: Address;
  /** Gives the file back although nothing will flush it. Not while a call of `fflush` is pending. */
  release(): void;
}

/**
 * Takes a file whose flush calls `onFlush`, once, on the event loop, which it does not keep alive. The
 * file is taken until then, however long that is: it is never closed.
 *
 * @returns undefined if this thread has none: all are taken, or the system refuses
 */
export function takeWakeFile(onFlush: () => void): WakeFile | undefined {
  try {
    wakeFiles ??= new WakeFiles();
  } catch (error) {
    if (error instanceof SystemError) return undefined;
    throw error;
  }
  return wakeFiles.take(onFlush);
}

/** The address of `fflush`, for C to call with the address of a {@link WakeFile}. */
export const fflushAddress = (): Address => libcSymbol('fflush');

let wakeFiles: WakeFiles | undefined;

const EFD_CLOEXEC = 0x8_0000;
const EFD_NONBLOCK = 0x800;
const IO_FULLY_BUFFERED = 0;
/** With less than 128 bytes, glibc writes at once. */
const BUFFER_BYTE_LENGTH = 1024;
/** The sum of all numbers must stay below the eventfd's limit. */
const MAX_FILES = 60;

class File implements WakeFile {
  readonly address: Address;
  readonly bit: bigint;
  /** Undefined while nobody has taken it. */
  onFlush: (() => void) | undefined;
  /** Whether it holds its bytes. */
  isLoaded = false;

  constructor(address: Address, bit: bigint) {
    this.address = address;
    this.bit = bit;
  }

  release(): void {
    this.onFlush = undefined;
  }
}

/** The files of this thread. */
class WakeFiles {
  readonly #fd: number;
  readonly #files: File[] = [];
  readonly #scratch = allocatePermanent(8);
  readonly #number = new BigUint64Array(viewMemory(this.#scratch, 8));

  /** @throws SystemError */
  constructor() {
    const runtime = runtimeWithoutWatches();
    if (runtime !== undefined) throw new SystemError('poll', 38, runtime);
    const fd = succeeded(libc.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), 'eventfd');
    this.#fd = fd;
    try {
      watchFd(fd, { readable: true }, () => this.#onReadable()).unref();
    } catch (error) {
      closeFd(fd);
      throw error;
    }
    if (!isMainThread()) process.on('exit', () => this.#closeUnlessPending());
  }

  take(onFlush: () => void): File | undefined {
    const file = this.#files.find((known) => known.onFlush === undefined) ?? this.#open();
    if (!file) return undefined;
    if (!file.isLoaded) {
      this.#number[0] = file.bit;
      if (libc.fwrite(this.#scratch, 8, 1, file.address) !== 1) return undefined;
    }
    file.isLoaded = true;
    file.onFlush = onFlush;
    return file;
  }

  #open(): File | undefined {
    if (this.#files.length >= MAX_FILES) return undefined;
    this.#number[0] = WRITE_MODE;
    const address = libc.fdopen(this.#fd, this.#scratch) as Address;
    if (address === 0) return undefined;
    const buffer = allocatePermanent(BUFFER_BYTE_LENGTH);
    libc.setvbuf(address, buffer, IO_FULLY_BUFFERED, BUFFER_BYTE_LENGTH);
    const file = new File(address, 1n << BigInt(this.#files.length));
    this.#files.push(file);
    return file;
  }

  #onReadable(): void {
    if (libc.read(this.#fd, this.#scratch, 8) !== 8) return;
    const sum = this.#number[0] as bigint;
    const flushed = this.#files.filter(({ bit }) => (sum & bit) !== 0n);
    for (const file of flushed) {
      const { onFlush } = file;
      file.isLoaded = false;
      file.onFlush = undefined;
      onFlush?.();
    }
  }

  /**
   * At the end of a worker thread. While a file has bytes, its flush would write them to whatever has
   * the descriptor's number by then.
   */
  #closeUnlessPending(): void {
    if (this.#files.every(({ isLoaded }) => !isLoaded)) closeFd(this.#fd);
  }
}

/** The string "w". */
const WRITE_MODE = BigInt('w'.charCodeAt(0));
