/** The receiver of copies, from the side of the bench. */
import { type PinnedArrays, pin } from 'cuffi';
import { closeFd, createMemfd, mapShared } from 'cuffi/ffi';
import type { DriverChoice } from '../driver.ts';
import { Child } from './child.ts';
import { type Copied, SHARED_FD } from './child-messages.ts';

const PROGRAM = new URL('./copying-child.ts', import.meta.url);

/** Memory of both processes, mapped twice here: pageable, and page-locked. */
class SharedMemory {
  readonly pageable: Uint8Array;
  readonly pageLocked: Uint8Array;
  readonly #mappings: readonly ReturnType<typeof mapShared>[];
  readonly #lock: PinnedArrays;

  constructor(fd: number, byteLength: number) {
    this.#mappings = [mapShared(fd, byteLength), mapShared(fd, byteLength)];
    [this.pageable, this.pageLocked] = this.#mappings.map(
      (mapping) => new Uint8Array(mapping.view()),
    ) as [Uint8Array, Uint8Array];
    this.#lock = pin(this.pageLocked);
  }

  close(): void {
    this.#lock.close();
    for (const mapping of this.#mappings) mapping.unmap();
  }
}

/** A process that copies so many bytes to its own device memory, and answers with the first word there. */
export class CopyingChild {
  readonly byteLength: number;
  readonly #child: Child;
  readonly #shared: SharedMemory;
  #isEnded = false;

  private constructor(child: Child, shared: SharedMemory, byteLength: number) {
    this.#child = child;
    this.#shared = shared;
    this.byteLength = byteLength;
  }

  /** Resolves when the child has its memory. */
  static async start(driver: DriverChoice, byteLength: number): Promise<CopyingChild> {
    const fd = createMemfd('cuffi-bench', byteLength);
    const shared = new SharedMemory(fd, byteLength);
    try {
      const options = { args: [String(byteLength)], fds: { [SHARED_FD]: fd } };
      return new CopyingChild(await Child.start(PROGRAM, driver, options), shared, byteLength);
    } catch (error) {
      shared.close();
      throw error;
    } finally {
      closeFd(fd);
    }
  }

  /** Whether it has ended, or is about to. */
  get isEnded(): boolean {
    return this.#isEnded;
  }

  /** The memory that both have, to be written before {@link share}. */
  memory({ isPageLocked }: Copied): Uint8Array {
    return isPageLocked ? this.#shared.pageLocked : this.#shared.pageable;
  }

  /** Has the child copy the shared memory to its device. */
  share(copied: Copied): Promise<unknown> {
    return this.#ask(copied);
  }

  /** Sends the bytes themselves, through the socket. */
  send(bytes: Uint8Array): Promise<unknown> {
    this.#child.socket.write(bytes);
    return this.#child.peer.receive();
  }

  /** Has the child compare the whole of what comes next, and answer `COMPARED`. */
  async compareNext(): Promise<void> {
    await this.#ask(null);
  }

  /** Kills the child; resolves when it is gone. The second time does nothing. */
  async end(): Promise<void> {
    if (this.#isEnded) return;
    this.#isEnded = true;
    await this.#child.end();
    this.#shared.close();
  }

  async #ask(value: Copied | null): Promise<unknown> {
    await this.#child.peer.send(value);
    return this.#child.peer.receive();
  }
}
