import { discardFds } from '../../../ffi/linux/close-fd.ts';

/** File descriptors that came with a descriptor. */
export interface ReceivedFds {
  readonly numbers: readonly number[];
  /**
   * Whether the stated identity of a pool is trusted: if the program itself opens it, or if the
   * kernel says that the pool's maker sent it. Any other process may state any identity.
   */
  readonly isNameTrusted: boolean;
  /** Returns all of them. The caller then owns them. */
  take(): readonly number[];
}

/** File descriptors that came with a descriptor. Those that are not taken are closed. */
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
