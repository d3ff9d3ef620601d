import { closeFd } from '../../ffi/libc.ts';

/** File descriptors that came with a descriptor. */
export interface ReceivedFds {
  readonly numbers: readonly number[];
  /**
   * Whether the descriptor of a pool that is open may be missing, as the pool was named before by the
   * same program: false for what comes over a connection, whose other end may state any name.
   */
  readonly isByName: boolean;
  /** All of them: whoever calls closes them. */
  take(): readonly number[];
}

/** File descriptors that came with a descriptor: closed in the end, but for those that are taken. */
export class OwnedFds implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isByName: boolean;
  #isOwner = true;

  constructor(fds: readonly number[], isByName: boolean) {
    this.numbers = fds;
    this.isByName = isByName;
  }

  take(): readonly number[] {
    this.#isOwner = false;
    return this.numbers;
  }

  [Symbol.dispose](): void {
    if (!this.#isOwner) return;
    this.#isOwner = false;
    for (const fd of this.numbers) closeFd(fd);
  }
}
