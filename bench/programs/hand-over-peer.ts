/** The connected child of a hand-over, from the parent's side. */
import { once } from 'node:events';
import type { DeviceBuffer } from 'cuffi';
import { type ChildPeer, spawnPeer } from 'cuffi/ipc';
import type { DriverChoice } from '../driver.ts';

const PROGRAM = new URL('./hand-over-peer-child.ts', import.meta.url);
const DEADLINE_MS = 60_000;

/** A process that is sent one buffer again and again, and keeps it mapped. */
export class HandOverPeer {
  readonly #peer: ChildPeer;
  readonly #buffer: DeviceBuffer;

  private constructor(peer: ChildPeer, buffer: DeviceBuffer) {
    this.#peer = peer;
    this.#buffer = buffer;
  }

  /** Resolves when the child has mapped the buffer. */
  static async start(driver: DriverChoice, buffer: DeviceBuffer): Promise<HandOverPeer> {
    const env = { ...process.env, CUFFI_DRIVER: driver.name };
    const started = new HandOverPeer(spawnPeer(PROGRAM, { env }), buffer);
    try {
      await started.#peer.send(buffer);
      await started.#peer.receive({ timeoutMs: DEADLINE_MS });
      return started;
    } catch (error) {
      await started.end();
      throw error;
    }
  }

  /** Sends the buffer; answers with the first bytes that the child read through it. */
  async share(): Promise<readonly number[]> {
    await this.#peer.send(this.#buffer);
    return Array.from((await this.#peer.receive()) as Uint8Array);
  }

  /** Kills the child; resolves when it is gone. */
  async end(): Promise<void> {
    const { process: child } = this.#peer;
    const isRunning = child.pid !== undefined && child.exitCode === null;
    const exited = isRunning && once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
    this.#peer.close();
  }
}
