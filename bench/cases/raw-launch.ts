import type { Stream } from 'cuffi';
import { type Address, addressOf, structs } from 'cuffi/ffi';

/** The driver's launch with all that it reads written before: configuration and arguments. */
export class RawLaunch {
  readonly #config = new Uint8Array(new ArrayBuffer(structs.CUlaunchConfig.byteLength));
  /** Where each argument is, then each argument. */
  readonly #arguments = new BigUint64Array(new ArrayBuffer(16 * 8 * 2));
  readonly config: Address;
  readonly arguments: Address;

  constructor(stream: Stream) {
    const { fields } = structs.CUlaunchConfig;
    const view = new DataView(this.#config.buffer);
    for (const size of ['gridDimX', 'gridDimY', 'gridDimZ', 'blockDimY', 'blockDimZ'] as const)
      view.setUint32(fields[size][0], 1, true);
    view.setUint32(fields.blockDimX[0], 32, true);
    view.setBigUint64(fields.hStream[0], BigInt(stream.handle), true);
    this.config = addressOf(this.#config);
    this.arguments = addressOf(this.#arguments);
    for (let at = 0; at < 16; at += 1) this.#arguments[at] = BigInt(this.arguments + 8 * (16 + at));
  }

  /** Writes arguments in place of those that there were, which are zeros at first. */
  pass(words: readonly bigint[]): void {
    this.#arguments.set(words, 16);
  }
}
