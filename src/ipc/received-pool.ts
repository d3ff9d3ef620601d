import { discardFd } from '../../ffi/discard.ts';
import { DeviceArray } from '../array/device-array.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { ImportedPool } from './imported-pool.ts';
import type { ReceivedFds } from './owned-fds.ts';

/**
 * A pool that came over a connection: its file descriptor comes once, and memory of it any number
 * of times. It stays open for the next memory of it, until the connection ends.
 */
export class ReceivedPool implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isByName: boolean;
  #pool: ImportedPool | undefined;

  /**
   * @param fd the pool's, which becomes this object's
   * @param isByName whether its maker has sent it
   */
  constructor(fd: number, isByName: boolean) {
    this.numbers = [fd];
    this.isByName = isByName;
  }

  /** Nobody takes it: it is there for the next one too. */
  take(): readonly number[] {
    return [];
  }

  /** Keeps what was opened: the pool, or the one that memory is of. */
  keep(opened: object): void {
    const memory = opened instanceof DeviceArray ? opened.buffer : opened;
    const pool = memory instanceof DeviceBuffer ? memory.resource : memory;
    if (!(pool instanceof ImportedPool) || pool === this.#pool) return;
    pool.hold();
    this.#pool?.drop();
    this.#pool = pool;
  }

  [Symbol.dispose](): void {
    const [fd] = this.numbers;
    discardFd(fd as number);
    const pool = this.#pool;
    this.#pool = undefined;
    pool?.drop();
  }
}
