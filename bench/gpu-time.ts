/** GPU time: what a stream takes by the GPU's own clock, between two events. */
import { CudaEvent, type HostVisibleBuffer, MappedMemory, Stream } from 'cuffi';
import { CU_STREAM_WAIT_VALUE_GEQ, cu } from 'cuffi/ffi';
import { requireSuccess } from './cases/names.ts';
import type { Contestant } from './measure.ts';

/** What V8 needs for a loop of calls: slow ones would not fill the queue sooner, but keep others waiting. */
const WARM_UP_MS = 50;

/**
 * Times what is queued in a stream. A gate before it opens when all of it is there: what is measured is
 * the GPU's work alone, not how soon the host can name it.
 */
export class GpuTimer {
  readonly stream: Stream;
  readonly #begin: CudaEvent;
  readonly #end: CudaEvent;
  readonly #gate: HostVisibleBuffer;
  readonly #word: Uint32Array<ArrayBuffer>;
  #opened = 0;

  private constructor() {
    this.stream = Stream.create({ nonBlocking: true });
    this.#begin = CudaEvent.create();
    this.#end = CudaEvent.create();
    this.#gate = MappedMemory.create().allocate(Uint32Array.BYTES_PER_ELEMENT);
    this.#word = new Uint32Array(this.#gate.buffer, 0, 1);
  }

  static create(): GpuTimer {
    return new GpuTimer();
  }

  /** A contestant whose calls `queue` puts in the stream, and waits for none of them. */
  contestant(name: string, queue: (calls: number) => void): Contestant {
    return {
      name,
      warmUpMs: WARM_UP_MS,
      run: (calls, untimed) => this.#time(queue, calls, untimed),
    };
  }

  close(): void {
    for (const resource of [this.#gate, this.#end, this.#begin, this.stream]) resource.close();
  }

  #time(queue: (calls: number) => void, calls: number, untimed: number): number {
    const { stream } = this;
    // At least one: what is loaded at its first use would wait for the gate.
    queue(Math.max(1, untimed));
    stream.synchronizeSync();
    this.#shut();
    try {
      this.#begin.record(stream);
      queue(calls);
      this.#end.record(stream);
    } finally {
      Atomics.store(this.#word, 0, this.#opened);
    }
    stream.synchronizeSync();
    return CudaEvent.elapsedMs(this.#begin, this.#end) * 1e6;
  }

  #shut(): void {
    this.#opened += 1;
    const { address } = this.#gate;
    const { handle } = this.stream;
    const status = cu.cuStreamWaitValue32_v2(
      handle,
      address,
      this.#opened,
      CU_STREAM_WAIT_VALUE_GEQ,
    );
    requireSuccess(status === 0, 'cuStreamWaitValue32_v2');
  }
}
