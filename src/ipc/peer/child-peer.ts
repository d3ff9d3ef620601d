import type { ChildProcess } from 'node:child_process';
import { requireMade } from '../../arguments.ts';
import { IpcError } from '../../errors.ts';
import { PeerProcess } from '../lease/peer-process.ts';
import { Peer } from './peer.ts';
import type { BusyPollOptions } from './peer-options.ts';

/**
 * A child process that this one started with {@link spawnPeer}. Its exit is the end of the peer,
 * after the last values that it sent, also where a process of its own still holds the connection.
 */
export class ChildPeer extends Peer {
  /** The child itself: its exit code, its standard streams, `kill()`. */
  readonly process: ChildProcess;

  /** @internal */
  constructor(socket: number, child: ChildProcess, options: BusyPollOptions) {
    requireMade(child, Object, 'ChildPeer', 'spawnPeer');
    const pid = child.pid ?? 0;
    const ended = PeerProcess.child(pid);
    const init = { process: ended, busyPollUs: options.busyPollUs };
    super(socket, { pid, uid: process.getuid?.() ?? 0 }, init);
    this.process = child;
    const { connection } = this;
    connection.awaitExit();
    child.once('exit', (exitCode, signal) => {
      ended.exit = { exitCode: exitCode ?? undefined, signal: signal ?? undefined };
      ended.hasEnded();
      connection.exitIsKnown();
    });
    child.on('error', (error) => {
      // Also told of a kill that failed.
      if (child.pid === undefined)
        connection.fail(new IpcError(`the child could not be started: ${error.message}`));
    });
  }

  override ref(): void {
    super.ref();
    this.process.ref();
  }

  /** Lets this process end although the child and the peer are open. */
  override unref(): void {
    super.unref();
    this.process.unref();
  }
}
