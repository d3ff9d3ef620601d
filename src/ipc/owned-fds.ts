import { closeFd, isOpenFd } from '../../ffi/libc.ts';

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

  /** @throws TypeError for anything but a list of open descriptors: none of it is taken then */
  constructor(fds: unknown) {
    const list: unknown[] = Array.isArray(fds) ? fds : [];
    const isSound =
      Array.isArray(fds) &&
      new Set(list).size === list.length &&
      list.every((fd) => typeof fd === 'number' && isOpenFd(fd));
    if (!isSound) throw new TypeError('fds must be a list of open file descriptors, each once');
    this.numbers = list as number[];
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
