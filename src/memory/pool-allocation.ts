import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { isCapturing } from '../capture.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Stream } from '../stream.ts';
import type { OrderedRelease } from './buffer-options.ts';
import type { PoolBooks } from './pool-books.ts';
import { holdUpForTransfers } from './transfer.ts';

/** Memory that a pool gave out: whose books it is in, and in which stream it will be freed. */
export class PoolAllocation implements OrderedRelease {
  readonly #context: Context;
  readonly #resets: number;
  readonly #books: PoolBooks;
  readonly #address: CUdeviceptr;
  readonly #byteLength: number;
  #stream: Stream | undefined;
  #handle: CUstream;

  /** @param stream that of the allocation; undefined for the default one */
  constructor(
    context: Context,
    books: PoolBooks,
    address: CUdeviceptr,
    byteLength: number,
    stream: Stream | undefined,
  ) {
    this.#context = context;
    this.#resets = context.resets;
    this.#books = books;
    this.#address = address;
    this.#byteLength = byteLength;
    this.#stream = stream;
    this.#handle = stream?.handle ?? (0 as CUstream);
    books.byteLength += byteLength;
  }

  freeIn(stream: Stream): void {
    this.#stream = stream;
    this.#handle = stream.handle;
  }

  /** Queues the free; nothing after a reset, before which all was freed. */
  release(): void {
    this.#books.byteLength -= this.#byteLength;
    this.#free();
  }

  #free(): void {
    if (this.#context.resets !== this.#resets) return;
    if (isCapturing()) {
      this.#freeAfterCapture();
      return;
    }
    const handle = this.#stream?.plainHandle;
    if (handle === undefined) this.#freeInQueue();
    else this.#call(handle);
  }

  // Apart, as closures would cost the rest an allocation at every call.
  #freeAfterCapture(): void {
    // Queued now, it would become a part of the graph.
    this.#context.releases.submit(() => this.#free(), { waits: false });
  }

  #freeInQueue(): void {
    const call = (handle: CUstream): void => this.#call(handle);
    const stream = this.#stream;
    if (stream && !stream.closed) stream.enqueue(call);
    else if (stream?.context.activity.streams.has(this.#handle))
      // Closed with work in it, and not destroyed before that is done.
      stream.context.run(() => call(this.#handle));
    // Closed and idle, or the default one from the beginning.
    else this.#context.run(() => call(0 as CUstream));
  }

  #call(stream: CUstream): void {
    holdUpForTransfers(this.#context, stream);
    check(cu.cuMemFreeAsync(this.#address, stream), 'cuMemFreeAsync');
  }
}
