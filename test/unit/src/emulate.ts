/** What the unit tests of src/ share: an emulated driver of a test's own, and child programs. */
import { spawnSync } from 'node:child_process';
import { arena, OUT0, readHandle } from '../../../ffi/arena.ts';
import { cu, selectDriver } from '../../../ffi/driver.ts';
import { emulatedKernels } from '../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../ffi/emulator/index.ts';
import type { Driver } from '../../../ffi/functions.ts';
import type { CUcontext } from '../../../ffi/types.ts';
import { check } from '../../../src/check.ts';
import { Device } from '../../../src/device.ts';
import { programFile } from '../../support/program.ts';

/** Makes an emulated driver with these `CUFFI_EMULATED_*` settings, and selects it. */
export function emulate(env: NodeJS.ProcessEnv = {}): Driver {
  const driver = createEmulatedDriver({ arena, env, kernels: emulatedKernels });
  selectDriver(driver);
  return driver;
}

/** A context that another library made and left current; dispose destroys it. */
export class ForeignContext implements Disposable {
  readonly handle: CUcontext;

  constructor() {
    check(cu.cuCtxCreate_v2(OUT0, 0, Device.get().handle), 'cuCtxCreate_v2');
    this.handle = readHandle<CUcontext>(OUT0);
  }

  get isCurrent(): boolean {
    return currentContext() === this.handle;
  }

  [Symbol.dispose](): void {
    check(cu.cuCtxDestroy_v2(this.handle), 'cuCtxDestroy_v2');
  }
}

/** The handle of the current context; 0 where none is. */
export function currentContext(): number {
  check(cu.cuCtxGetCurrent(OUT0), 'cuCtxGetCurrent');
  return readHandle(OUT0);
}

/** How a program ended and what it printed. */
export interface Outcome {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

const DEADLINE_MS = 60_000;

/** Runs a TypeScript program to its end. Variables given as undefined are taken away. */
export function runProgram(
  url: URL,
  args: readonly string[] = [],
  env: NodeJS.ProcessEnv = {},
  execArgv: readonly string[] = [],
): Outcome {
  const program = programFile(url);
  const { status, stdout, stderr, error } = spawnSync(
    process.execPath,
    [...execArgv, ...program.execArgv, program.path, ...args],
    {
      env: { ...process.env, CUFFI_DRIVER: 'emulated', ...env },
      encoding: 'utf8',
      timeout: DEADLINE_MS,
      killSignal: 'SIGKILL',
    },
  );
  if (error) throw error;
  return { code: status, stdout, stderr };
}
