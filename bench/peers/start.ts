/** The programs of other languages, built and started where that is possible. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Device } from 'cuffi';
import type { DriverChoice } from '../driver.ts';
import { Peer, type PeerProgram, type Skipped } from './peer.ts';

const COMPILERS = ['cc', 'gcc', 'clang'];
const C = 'C';
const PYTHON = 'cuda.bindings';

const source = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The peers of a run. */
export interface Peers {
  readonly running: readonly Peer[];
  readonly skipped: readonly Skipped[];
  close(): Promise<void>;
}

/** Starts every peer that can run here. @throws Error for one that starts and then fails */
export async function startPeers(driver: DriverChoice): Promise<Peers> {
  const running: Peer[] = [];
  const skipped: Skipped[] = [];
  const folder = mkdtempSync(join(tmpdir(), 'cuffi-bench-'));
  const close = async (): Promise<void> => {
    await Promise.all(running.map((peer) => peer.close()));
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    const { uuid } = Device.get(0);
    for (const program of [cProgram(driver, folder), pythonProgram(driver)]) {
      const started = 'reason' in program ? program : await Peer.start(program, uuid);
      if (started instanceof Peer) running.push(started);
      else skipped.push(started);
    }
  } catch (error) {
    await close();
    throw error;
  }
  return { running, skipped, close };
}

const NO_GPU = 'it needs a GPU: there is no libcuda behind the emulated driver';

function cProgram(driver: DriverChoice, folder: string): PeerProgram | Skipped {
  if (driver.emulated) return { name: C, reason: NO_GPU };
  const compiler = COMPILERS.find((name) => spawnSync(name, ['--version']).status === 0);
  if (!compiler) return { name: C, reason: `no C compiler is here (${COMPILERS.join(', ')})` };
  const command = join(folder, 'calls');
  const built = spawnSync(compiler, ['-O2', '-o', command, source('calls.c'), '-ldl'], {
    encoding: 'utf8',
  });
  if (built.status !== 0)
    return { name: C, reason: `${compiler} could not build it: ${built.stderr.trim()}` };
  return { name: C, command, args: [driver.library] };
}

function pythonProgram(driver: DriverChoice): PeerProgram | Skipped {
  if (driver.emulated) return { name: PYTHON, reason: NO_GPU };
  // It opens libcuda by itself: with another one in use here, the two would not be comparable.
  if (driver.name !== 'cuda')
    return { name: PYTHON, reason: `it opens its own libcuda, not ${driver.library}` };
  return { name: PYTHON, command: 'python3', args: [source('calls.py')] };
}
