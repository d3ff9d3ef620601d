import { CudaEvent, type HostVisibleBuffer, MappedMemory, Stream } from 'cuffi';
import { CU_STREAM_WAIT_VALUE_GEQ, cu } from 'cuffi/ffi';
import type { Contestant } from '../measure.ts';
import { requireSuccess } from './case.ts';

/** Shorter than for host times: slow calls do not affect the GPU's clock. */
const GPU_WARM_UP_MS = 50;

/**
 * Times the work of a stream by the GPU's clock, between two events. The stream waits for a word in
 * host memory until all calls are queued, so that the host's speed does not count.
 */
export class GpuTimer {
  readonly stream: Stream = Stream.create({ nonBlocking: true });
  readonly #begin = CudaEvent.create();
  readonly #end = CudaEvent.create();
  readonly #gate: HostVisibleBuffer = MappedMemory.create().allocate(4);
  readonly #word = new Uint32Array(this.#gate.buffer, 0, 1);
  #batches = 0;

  /** @param queue queues so many calls in {@link stream}, and does not wait */
  contestant(name: string, queue: (calls: number) => void): Contestant {
    return {
      name,
      warmUpMs: GPU_WARM_UP_MS,
      run: (calls, untimed) => this.#time(queue, calls, untimed),
    };
  }

  close(): void {
    for (const resource of [this.#gate, this.#end, this.#begin, this.stream]) resource.close();
  }

  #time(queue: (calls: number) => void, calls: number, untimed: number): number {
    const { stream } = this;
    // At least one call: loading a kernel at its first launch would wait for the gate.
    queue(Math.max(1, untimed));
    stream.synchronizeSync();
    this.#batches += 1;
    const { address } = this.#gate;
    const flag = CU_STREAM_WAIT_VALUE_GEQ;
    const status = cu.cuStreamWaitValue32_v2(stream.handle, address, this.#batches, flag);
    requireSuccess(status === 0, 'cuStreamWaitValue32_v2');
    try {
      this.#begin.record(stream);
      queue(calls);
      this.#end.record(stream);
    } finally {
      Atomics.store(this.#word, 0, this.#batches);
    }
    stream.synchronizeSync();
    return CudaEvent.elapsedMs(this.#begin, this.#end) * 1e6;
  }
}
