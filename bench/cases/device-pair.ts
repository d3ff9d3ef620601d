import { DeviceBuffer } from 'cuffi';
import { requirePattern, writePattern } from '../bytes.ts';

/** Two buffers of a device: the pattern is in one, and what is copied from it is looked for in the other. */
export class DevicePair {
  readonly source: DeviceBuffer;
  readonly target: DeviceBuffer;
  readonly #host: Uint8Array;

  constructor(byteLength: number) {
    this.source = DeviceBuffer.allocate(byteLength);
    this.target = DeviceBuffer.allocate(byteLength);
    this.#host = new Uint8Array(byteLength);
    writePattern(this.#host);
    this.source.copyFromSync(this.#host);
    // Its pages are there, and hold something else.
    this.target.fill(0);
    this.target.context.synchronizeSync();
  }

  /** @throws Error where anything but the pattern was copied */
  verify(what: string): void {
    requirePattern(this.target.copyToHostSync(this.#host.fill(0)), what);
  }

  close(): void {
    this.source.close();
    this.target.close();
  }
}
