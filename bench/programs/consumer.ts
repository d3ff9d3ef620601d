/** A consumer of shared buffers, from the producer's side. */
import { once } from 'node:events';
import type { DeviceBuffer } from 'cuffi';
import { type ChildPeer, spawnPeer } from 'cuffi/ipc';
import type { DriverChoice } from '../driver.ts';

const PROGRAM = new URL('./scale-child.ts', import.meta.url);
const DEADLINE_MS = 60_000;

/** What a consumer is sent. */
export type Parcel = {
  readonly buffers: readonly DeviceBuffer[];
  /** Whether they stay open there. */
  readonly keep: boolean;
};

/** A process that opens what it is sent and acknowledges it. */
export class Consumer {
  readonly #peer: ChildPeer;

  constructor(driver: DriverChoice) {
    this.#peer = spawnPeer(PROGRAM, { env: { ...process.env, CUFFI_DRIVER: driver.name } });
  }

  /** Answers with the first word of the last buffer, as it read it. */
  async take(parcel: Parcel): Promise<number> {
    await this.#peer.send(parcel);
    const [word = Number.NaN] = (await this.#peer.receive({
      timeoutMs: DEADLINE_MS,
    })) as Uint32Array;
    return word;
  }

  /** Kills it; resolves when it is gone. */
  async end(): Promise<void> {
    const { process: child } = this.#peer;
    const isRunning = child.pid !== undefined && child.exitCode === null;
    const exited = isRunning && child.signalCode === null && once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
    this.#peer.close();
  }
}
