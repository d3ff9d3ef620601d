/** The programs of other languages, built and started where that is possible. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Device } from 'cuffi';
import type { PeerName } from '../cases/case.ts';
import type { DriverChoice } from '../driver.ts';
import { Peer, type PeerProgram, type Skipped } from './peer.ts';

const COMPILERS = ['cc', 'gcc', 'clang'];
const PYTHON_PROGRAMS = {
  ctypes: 'ctypes_calls.py',
  'cuda.bindings': 'cuda_bindings.py',
  'cuda.core': 'cuda_core.py',
  cupy: 'cupy_memory.py',
  numba: 'numba_arrays.py',
  torch: 'torch_memory.py',
} as const;

const folder = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The peers of a run. */
export interface Peers {
  readonly running: readonly Peer[];
  readonly skipped: readonly Skipped[];
  close(): Promise<void>;
}

/** Starts those that can run here; aborting kills them. @throws Error for one that starts and then fails */
export async function startPeers(
  driver: DriverChoice,
  names: ReadonlySet<PeerName>,
  signal: AbortSignal,
): Promise<Peers> {
  const { uuid } = Device.get(0);
  const running: Peer[] = [];
  const skipped: Skipped[] = [];
  const built = mkdtempSync(join(tmpdir(), 'cuffi-bench-'));
  const close = async (): Promise<void> => {
    await Promise.all(running.map((peer) => peer.close()));
    rmSync(built, { recursive: true, force: true });
  };
  // Together: the packages of Python take seconds to load.
  const starts = await Promise.allSettled(
    [...names].map((name) => {
      const program = name === 'C' ? cProgram(driver, built) : pythonProgram(driver, name);
      return 'reason' in program ? program : Peer.start(program, uuid, signal);
    }),
  );
  const errors: unknown[] = [];
  for (const start of starts) {
    if (start.status === 'rejected') errors.push(start.reason);
    else if (start.value instanceof Peer) running.push(start.value);
    else skipped.push(start.value);
  }
  if (errors.length > 0) {
    await close();
    throw errors[0];
  }
  return { running, skipped, close };
}

const NO_GPU = 'it needs a GPU: there is no libcuda behind the emulated driver';

function cProgram(driver: DriverChoice, built: string): PeerProgram | Skipped {
  const name = 'C';
  if (driver.emulated) return { name, reason: NO_GPU };
  const compiler = COMPILERS.find((command) => spawnSync(command, ['--version']).status === 0);
  if (!compiler) return { name, reason: `no C compiler is here (${COMPILERS.join(', ')})` };
  const command = join(built, 'peer');
  const sources = readdirSync(folder('c'))
    .filter((file) => file.endsWith('.c'))
    .map((file) => join(folder('c'), file));
  const ptx = ['kernels', 'saxpy'].map(
    (file) => `-D${file.toUpperCase()}_PTX=${JSON.stringify(folder(`${file}.ptx`))}`,
  );
  const args = ['-O2', ...ptx, '-o', command, ...sources, '-ldl'];
  const { status, stderr } = spawnSync(compiler, args, { encoding: 'utf8' });
  if (status !== 0) return { name, reason: `${compiler} could not build it: ${stderr.trim()}` };
  return { name, command, args: [driver.library] };
}

function pythonProgram(
  driver: DriverChoice,
  name: keyof typeof PYTHON_PROGRAMS,
): PeerProgram | Skipped {
  if (driver.emulated) return { name, reason: NO_GPU };
  // It opens libcuda by itself: with another one in use here, the two would not be comparable.
  if (driver.name !== 'cuda')
    return { name, reason: `it opens its own libcuda, not ${driver.library}` };
  // -B: it leaves no __pycache__ in the tree.
  const program = join(folder('python'), PYTHON_PROGRAMS[name]);
  return { name, command: 'python3', args: ['-B', program] };
}
