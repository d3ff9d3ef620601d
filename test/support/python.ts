/** The companion for Python in a process of its own, on the driver of the test. */
import { spawnSync } from 'node:child_process';
import { type ChildPeer, type SpawnPythonOptions, spawnPython } from '../../src/ipc/index.ts';
import { killed } from './program.ts';

export const workerProgram: URL = new URL('../ipc/fixtures/python-worker.py', import.meta.url);

/** Why no test can run Python here; false if all can. */
export const noPython: string | false =
  spawnSync('python3', ['--version']).status === 0 ? false : 'python3 cannot be started';

/** Runs test/ipc/fixtures/python-worker.py, or another program that answers such requests. */
export class PythonWorker implements AsyncDisposable {
  readonly peer: ChildPeer;

  constructor(mode = 'serve', options: SpawnPythonOptions = {}, program: URL = workerProgram) {
    this.peer = spawnPython(program, { args: [mode], ...options });
  }

  /** Calls a function of the worker. */
  ask<T = unknown>(name: string, given: Readonly<Record<string, unknown>> = {}): Promise<T> {
    const request = { ...given, do: name };
    return this.peer.request(request as never, { timeoutMs: 20_000 }) as Promise<T>;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.peer.close();
    await killed(this.peer.process);
  }
}
