/** A process beside the bench, from the side of the bench. */
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { type ChildPeer, spawnPeer } from 'cuffi/ipc';
import type { DriverChoice } from '../driver.ts';
import { SOCKET_FD } from './child-messages.ts';

/** How it is started. */
interface ChildOptions {
  readonly args?: readonly string[];
  /** Descriptors that it has as well, by their numbers there. */
  readonly fds?: Readonly<Record<number, number>>;
  /** For how long this end looks at the connection before it sleeps. */
  readonly busyPollUs?: number;
}

const START_TIMEOUT_MS = 60_000;

/** A started program that has a connection to the bench, and a pair of sockets of node:net. */
export class Child {
  readonly peer: ChildPeer;
  /** This end of the pair. */
  readonly socket: Duplex;

  private constructor(peer: ChildPeer) {
    this.peer = peer;
    this.socket = peer.process.stdio[SOCKET_FD] as Duplex;
    // A child that died is told of by its exit.
    this.socket.on('error', () => {});
  }

  /** Resolves when it has opened the driver and what it needs, and has said so. */
  static async start(
    program: URL,
    driver: DriverChoice,
    { args = [], fds = {}, busyPollUs = 0 }: ChildOptions = {},
  ): Promise<Child> {
    const stdio: (number | 'inherit' | 'ipc' | 'pipe')[] = ['inherit', 'inherit', 'inherit', 'ipc'];
    stdio[SOCKET_FD] = 'pipe';
    for (const [there, here] of Object.entries(fds)) stdio[Number(there)] = here;
    const env = { ...process.env, CUFFI_DRIVER: driver.name };
    const child = new Child(spawnPeer(program, { env, args: [...args], stdio, busyPollUs }));
    try {
      await child.peer.receive({ timeoutMs: START_TIMEOUT_MS });
    } catch (error) {
      await child.end();
      throw error;
    }
    return child;
  }

  /** Kills it; resolves when it is gone. */
  async end(): Promise<void> {
    const { process: child } = this.peer;
    const isRunning =
      child.pid !== undefined && child.exitCode === null && child.signalCode === null;
    const exited = isRunning && once(child, 'exit');
    child.kill('SIGKILL');
    this.socket.destroy();
    await exited;
    this.peer.close();
  }
}
