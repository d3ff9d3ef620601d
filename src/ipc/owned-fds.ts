import { discardFds } from '../../ffi/discard.ts';

/** File descriptors that came with a descriptor. */
export interface ReceivedFds {
  readonly numbers: readonly number[];
  /** All of them: whoever calls closes them. */
  take(): readonly number[];
}

/** File descriptors that came with a descriptor: closed in the end, but for those that are taken. */
export class OwnedFds implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  #isOwner = true;

  constructor(fds: readonly number[]) {
    this.numbers = fds;
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
