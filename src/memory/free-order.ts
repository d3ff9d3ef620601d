import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { isCapturing } from '../capture.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Stream } from '../stream.ts';
import { holdUpForTransfers } from './transfer.ts';

/** Where an allocation was queued, and its free will be. */
export class FreeOrder {
  readonly #context: Context;
  readonly #resets: number;
  #stream: Stream | undefined;
  #handle: CUstream;

  constructor(context: Context, stream: Stream | undefined) {
    this.#context = context;
    this.#resets = context.resets;
    this.#stream = stream;
    this.#handle = stream?.handle ?? (0 as CUstream);
  }

  /** Frees in another stream than that of the allocation. */
  follow(stream: Stream): void {
    this.#stream = stream;
    this.#handle = stream.handle;
  }

  /** The stream's handle where a call that names it needs nothing else: the quick way. */
  get plainHandle(): CUstream | undefined {
    const stream = this.#stream;
    return stream && !stream.closed ? stream.plainHandle : undefined;
  }

  /** Makes a call that names the stream. */
  queue(call: (handle: CUstream) => void): void {
    const stream = this.#stream;
    if (stream && !stream.closed) stream.enqueue(call);
    else if (stream?.context.activity.streams.has(this.#handle))
      // Closed with work in it, and not destroyed before that is done.
      stream.context.run(() => call(this.#handle));
    // Closed and idle, or the default one from the beginning.
    else this.#context.run(() => call(0 as CUstream));
  }

  /** Queues the free; nothing after a reset, before which all was freed. */
  free(address: CUdeviceptr): void {
    if (this.#context.resets !== this.#resets) return;
    if (isCapturing()) {
      // Queued now, it would become a part of the graph.
      this.#context.releases.submit(() => this.free(address), { waits: false });
      return;
    }
    const handle = this.plainHandle;
    if (handle === undefined) this.#freeInQueue(address);
    else this.#freeIn(handle, address);
  }

  // Apart, as its closure would cost `free` an allocation at every call.
  #freeInQueue(address: CUdeviceptr): void {
    this.queue((handle) => this.#freeIn(handle, address));
  }

  #freeIn(stream: CUstream, address: CUdeviceptr): void {
    holdUpForTransfers(this.#context, stream);
    check(cu.cuMemFreeAsync(address, stream), 'cuMemFreeAsync');
  }
}
