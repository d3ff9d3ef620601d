import { readFileSync } from 'node:fs';
import { type Kernel, Module, type Stream } from 'cuffi';
import { registerKernel } from 'cuffi/ffi';

registerKernel('spin', { params: ['uint64'], run() {} });

/** A kernel that takes so many microseconds. */
export class Work {
  readonly #module: Module;
  readonly #kernel: Kernel<['uint64']>;
  readonly #ns: bigint;

  constructor(us: number) {
    const ptx = readFileSync(new URL('../peers/kernels.ptx', import.meta.url), 'utf8');
    this.#module = Module.load(ptx);
    this.#kernel = this.#module.kernel('spin', ['uint64']);
    this.#ns = BigInt(us * 1000);
    // The first launch would block while a stream waits.
    this.#kernel.launch({ grid: 1, block: 1 }, 0n);
  }

  queue(stream: Stream): void {
    this.#kernel.launch({ grid: 1, block: 1, stream }, this.#ns);
  }

  close(): void {
    this.#module.close();
  }
}
