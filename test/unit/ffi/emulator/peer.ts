/** A second process, driven call by call. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import type { Driver } from '../../../../ffi/functions.ts';
import { programFile } from '../../../support/program.ts';
import type { Emulated } from './support.ts';

type Calls = Omit<Emulated, 'cu'> & Driver;
type Answer = { readonly result?: unknown; readonly error?: string };

/** A child process with an emulated driver; kill it in `finally`. */
export class EmulatorProcess {
  readonly #child: ChildProcess;

  constructor() {
    const { path, execArgv } = programFile(new URL('./fixtures/peer.ts', import.meta.url));
    this.#child = fork(path, {
      execArgv,
      serialization: 'advanced',
    });
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  /** Makes a call in the other process: a method of `Emulated`, or a driver function. */
  async ask<K extends keyof Calls>(
    name: K,
    ...args: Parameters<Calls[K]>
  ): Promise<ReturnType<Calls[K]>> {
    // Answers come in the order of the questions, and one question waits at a time.
    const answered = once(this.#child, 'message');
    this.#child.send({ name, args });
    const [answer] = (await answered) as [Answer];
    if (answer.error !== undefined) throw new Error(`${name} in the peer: ${answer.error}`);
    return answer.result as ReturnType<Calls[K]>;
  }

  /** As the driver's users are killed: at once, with nothing cleaned up. */
  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exited = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await exited;
  }
}

/** Runs `use` with a peer that does not outlive it. */
export async function withPeer(use: (peer: EmulatorProcess) => Promise<void>): Promise<void> {
  const peer = new EmulatorProcess();
  try {
    await use(peer);
  } finally {
    await peer.kill();
  }
}
