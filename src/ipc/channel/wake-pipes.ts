import { closeSync, constants, openSync, readSync, writeSync } from 'node:fs';
import { closeFd, createPipe, isPipe } from '../../../ffi/linux/libc.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { IpcError } from '../../errors.ts';

/** The ends of two pipes that another process gets. */
export interface SentEnds {
  readonly readEnd: number;
  readonly writeEnd: number;
}

/**
 * One end of two pipes between two processes. Each end wakes up the other, and sees its end: the
 * kernel closes the pipes of a process that ends.
 */
export class WakePipes {
  readonly #readEnd: number;
  readonly #writeEnd: number;
  readonly #watch: FdWatch;
  #hasEnded = false;
  #isClosed = false;

  /** @param onWake called when the other end wakes this one up, or has ended */
  private constructor(readEnd: number, writeEnd: number, onWake: () => void) {
    this.#readEnd = readEnd;
    this.#writeEnd = writeEnd;
    this.#watch = watchFd(readEnd, { readable: true }, () => {
      this.#read();
      onWake();
    });
    this.#watch.unref();
  }

  /** Creates both pipes. The caller owns the ends that are returned for the other process. @throws SystemError */
  static create(onWake: () => void): { readonly pipes: WakePipes; readonly sent: SentEnds } {
    const [theirRead, ourWrite] = createPipe();
    let ends: readonly [number, number] | undefined;
    try {
      ends = createPipe();
      const [ourRead, theirWrite] = ends;
      const pipes = WakePipes.#open(ourRead, ourWrite, onWake);
      closeFd(ourRead);
      closeFd(ourWrite);
      return { pipes, sent: { readEnd: theirRead, writeEnd: theirWrite } };
    } catch (error) {
      for (const fd of [theirRead, ourWrite, ...(ends ?? [])]) closeFd(fd);
      throw error;
    }
  }

  /**
   * Opens the ends that another process has sent. The caller keeps them.
   *
   * @throws IpcError for anything but pipes
   */
  static accept({ readEnd, writeEnd }: SentEnds, onWake: () => void): WakePipes {
    if (!(isPipe(readEnd) && isPipe(writeEnd)))
      throw new IpcError('received a channel without its pipes');
    try {
      return WakePipes.#open(readEnd, writeEnd, onWake);
    } catch (error) {
      throw new IpcError('received a channel whose pipes cannot be opened', error as Error);
    }
  }

  /**
   * Opens own descriptions of both ends: their non-blocking mode is this process's alone, and Node
   * closes them when a worker thread is terminated.
   */
  static #open(readEnd: number, writeEnd: number, onWake: () => void): WakePipes {
    const ownRead = reopen(readEnd, constants.O_RDONLY);
    try {
      const ownWrite = reopen(writeEnd, constants.O_WRONLY);
      try {
        return new WakePipes(ownRead, ownWrite, onWake);
      } catch (error) {
        closeSync(ownWrite);
        throw error;
      }
    } catch (error) {
      closeSync(ownRead);
      throw error;
    }
  }

  /** Whether the other end has ended. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Wakes up the other end. Does nothing if it has not read many earlier wake-ups, or has ended. */
  wake(): void {
    if (this.#isClosed || this.#hasEnded) return;
    try {
      writeSync(this.#writeEnd, WAKE_UP);
    } catch {
      // A full pipe wakes up the other end as well. Its end is seen by the watch.
    }
  }

  /** Closes this end, which the other end sees. The second call does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#watch.close();
    closeSync(this.#readEnd);
    closeSync(this.#writeEnd);
  }

  #read(): void {
    try {
      if (readSync(this.#readEnd, received) > 0) return;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return;
    }
    this.#hasEnded = true;
    // The end would be reported for ever.
    this.#watch.close();
  }
}

const WAKE_UP = new Uint8Array(1);
const received = new Uint8Array(256);

/** @throws SystemError, Error with a code */
const reopen = (fd: number, mode: number): number =>
  openSync(`/proc/self/fd/${fd}`, mode | constants.O_NONBLOCK);
