/** Where a run took place: a number without its machine says nothing. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { Device } from 'cuffi';
import type { DriverChoice } from './driver.ts';

/** The machine and the versions of a run. */
export interface Machine {
  readonly date: string;
  readonly gpu: string;
  /** By nvidia-smi; undefined where it is not there, and for the emulated driver. */
  readonly driverVersion: string | undefined;
  readonly cuda: string;
  readonly cpu: string;
  readonly cpuCount: number;
  readonly node: string;
  readonly koffi: string;
  readonly cuffi: string;
}

/** Reads it off, for device 0. */
export function describeMachine(driver: DriverChoice): Machine {
  const { name, uuid } = Device.get(0);
  const processors = cpus();
  return {
    date: new Date().toISOString(),
    gpu: name,
    driverVersion: driver.emulated ? undefined : smiDriverVersion(uuid),
    cuda: driver.version,
    cpu: processors[0]?.model.trim() || 'unknown',
    cpuCount: processors.length,
    node: process.version,
    koffi: versionIn(join(dirname(locate('koffi')), 'package.json')),
    cuffi: versionIn(locate('cuffi/package.json')),
  };
}

const locate = createRequire(import.meta.url).resolve;

const versionIn = (file: string): string =>
  (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;

function smiDriverVersion(uuid: string): string | undefined {
  const args = ['--query-gpu=driver_version', '--format=csv,noheader', '-i', uuid];
  const { status, stdout } = spawnSync('nvidia-smi', args, { encoding: 'utf8', timeout: 30_000 });
  return status === 0 ? stdout.trim() : undefined;
}
