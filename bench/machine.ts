/** Where a run took place: a number without its machine says nothing. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { Device } from 'cuffi';
import type { DriverChoice } from './driver.ts';
import { LINK_ASKED, memoryBandwidth, readLink } from './limits.ts';
import type { Machine } from './result-schema.ts';

/** Reads it off, for device 0. */
export function describeMachine(driver: DriverChoice): Machine {
  const device = Device.get(0);
  const { name, uuid } = device;
  const processors = cpus();
  const smi = driver.emulated ? undefined : askSmi(ASKED, uuid);
  return {
    date: new Date().toISOString(),
    gpu: name,
    driverVersion: smi?.[0] ?? null,
    cuda: driver.version,
    clocks: smi ? readClocks(smi.slice(1)) : null,
    cpu: processors[0]?.model.trim() || 'unknown',
    cpuCount: processors.length,
    node: process.version,
    koffi: versionIn(join(dirname(locate('koffi')), 'package.json')),
    cuffi: versionIn(locate('cuffi/package.json')),
    link: driver.emulated ? null : readLink(device, () => askSmi(LINK_ASKED, uuid)),
    memoryBandwidth: driver.emulated ? null : memoryBandwidth(device),
    commit: process.env['CUFFI_COMMIT'] ?? gitCommit(),
  };
}

const locate = createRequire(import.meta.url).resolve;

const versionIn = (file: string): string =>
  (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;

const ASKED = 'driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem';

/** Its answers, in the order in which it was asked; undefined where it is not there. */
function askSmi(asked: string, uuid: string): string[] | undefined {
  const args = [`--query-gpu=${asked}`, '--format=csv,noheader,nounits', '-i', uuid];
  const { status, stdout } = spawnSync('nvidia-smi', args, { encoding: 'utf8', timeout: 30_000 });
  return status === 0 ? stdout.trim().split(', ') : undefined;
}

/** Null where it does not tell them, as of a slice of a GPU. */
function readClocks(answers: readonly string[]): Machine['clocks'] {
  const [sm, memory, smMax, memoryMax] = answers.map(Number);
  const clocks = {
    sm: sm ?? NaN,
    memory: memory ?? NaN,
    smMax: smMax ?? NaN,
    memoryMax: memoryMax ?? NaN,
  };
  return Object.values(clocks).every(Number.isInteger) ? clocks : null;
}

/** The commit of this clone; null where it is none. */
function gitCommit(): string | null {
  const git = (...args: string[]) =>
    spawnSync('git', args, { cwd: import.meta.dirname, encoding: 'utf8', timeout: 30_000 });
  const { status, stdout } = git('rev-parse', 'HEAD');
  if (status !== 0) return null;
  const isChanged = git('status', '--porcelain', '--untracked-files=no').stdout !== '';
  return `${stdout.trim()}${isChanged ? '+' : ''}`;
}
