import { discardFds } from '../../../ffi/linux/close-fd.ts';

/** File descriptors that came with a descriptor. */
export interface ReceivedFds {
  readonly numbers: readonly number[];
  /**
   * Whether the name of a pool is to be believed: where the program itself opens it, and where the
   * kernel says that the pool's maker has sent it. Any other process may state any name.
   */
  readonly isNameTrusted: boolean;
  /** All of them: whoever calls closes them. */
  take(): readonly number[];
}

/** File descriptors that came with a descriptor: closed in the end, but for those that are taken. */
export class OwnedFds implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isNameTrusted: boolean;
  #isOwner = true;

  constructor(fds: readonly number[], isNameTrusted: boolean) {
    this.numbers = fds;
    this.isNameTrusted = isNameTrusted;
  }

  take(): readonly number[] {
    this.#isOwner = false;
    return this.numbers;
  }

  [Symbol.dispose](): void {
    if (!this.#isOwner) return;
    this.#isOwner = false;
    discardFds(this.numbers);
  }
}
