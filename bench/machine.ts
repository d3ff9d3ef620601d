/** The driver that is measured, the machine that it runs on, and the limits of that machine. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { Device, driverVersion, isAvailable } from 'cuffi';
import { driverName, selectDriver } from 'cuffi/ffi';
import { speed } from './format.ts';
import type { CaseResult, DriverChoice, Machine } from './results.ts';

/**
 * Chooses the driver that `CUFFI_DRIVER` names; by default the real one if there is a GPU, else the
 * emulated one. Throws if there is a GPU that does not work.
 */
export function chooseDriver(): DriverChoice {
  const asked = process.env['CUFFI_DRIVER'];
  if (asked) return describeDriver(asked, 'CUFFI_DRIVER is set');
  if (isAvailable()) return describeDriver('cuda', 'there is a GPU');
  // It was meant for GPUs, and may be what hides them.
  delete process.env['CUDA_VISIBLE_DEVICES'];
  selectDriver('emulated');
  return describeDriver('emulated', 'there is no GPU');
}

function describeDriver(name: string, reason: string): DriverChoice {
  const { major, minor } = driverVersion();
  const library = driverName();
  const emulated = library === 'emulated';
  return { name, library, reason, emulated, version: `${major}.${minor}` };
}

const ASKED = [
  'driver_version',
  ...['clocks.sm', 'clocks.mem', 'clocks.max.sm', 'clocks.max.mem'],
  // The maximum is that of the GPU and of the slot that it is in.
  ...['pcie.link.gen.max', 'pcie.link.width.max'],
  ...['pcie.link.gen.gpucurrent', 'pcie.link.width.current'],
];

/** Describes device 0 and the host. */
export function describeMachine({ emulated, version }: DriverChoice): Machine {
  const device = Device.get(0);
  const processors = cpus();
  const [driverVersion, ...answers] = emulated ? [] : askNvidiaSmi(device.uuid);
  const numbers = answers.map(Number);
  const [sm = NaN, memory = NaN, smMax = NaN, memoryMax = NaN] = numbers;
  const clocks = { sm, memory, smMax, memoryMax };
  const require = createRequire(import.meta.url);
  const versionIn = (file: string): string =>
    (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;
  return {
    date: new Date().toISOString(),
    gpu: device.name,
    driverVersion: driverVersion ?? null,
    cuda: version,
    // A MIG slice has no clocks of its own.
    clocks: Object.values(clocks).every(Number.isInteger) ? clocks : null,
    cpu: processors[0]?.model.trim() || 'unknown',
    cpuCount: processors.length,
    node: process.version,
    koffi: versionIn(join(dirname(require.resolve('koffi')), 'package.json')),
    cuffi: versionIn(require.resolve('cuffi/package.json')),
    link: linkOf(numbers.slice(4)),
    memoryBandwidth: emulated ? null : memoryBandwidth(device),
    commit: process.env['CUFFI_COMMIT'] || gitCommit(),
  };
}

/** Returns an empty list if there is no nvidia-smi. */
function askNvidiaSmi(uuid: string): string[] {
  const args = [`--query-gpu=${ASKED.join(',')}`, '--format=csv,noheader,nounits', '-i', uuid];
  const { status, stdout } = spawnSync('nvidia-smi', args, { encoding: 'utf8', timeout: 30_000 });
  return status === 0 ? stdout.trim().split(', ') : [];
}

function gitCommit(): string | null {
  const git = (...args: string[]) =>
    spawnSync('git', args, { cwd: import.meta.dirname, encoding: 'utf8', timeout: 30_000 });
  const { status, stdout } = git('rev-parse', 'HEAD');
  if (status !== 0) return null;
  const isChanged = git('status', '--porcelain', '--untracked-files=no').stdout !== '';
  return `${stdout.trim()}${isChanged ? '+' : ''}`;
}

/** By generation: 1e9 transfers a second per lane. */
const SPEEDS = [2.5, 5, 8, 16, 32, 64];
/** Up to this speed a byte takes ten transfers; above, 128 bits take 130. */
const LAST_OF_TEN = 5;

function linkOf([generation = NaN, width = NaN, now = NaN, nowWidth = NaN]: readonly number[]) {
  const lanes = (of: number, wide: number) => {
    const speed = SPEEDS[of - 1];
    return speed && wide > 0 ? { speed, width: wide } : undefined;
  };
  const max = lanes(generation, width);
  return max ? { max, current: lanes(now, nowWidth) ?? max } : null;
}

/** Bytes per second: the memory transfers twice in each period of its clock. */
function memoryBandwidth(device: Device): number | null {
  const hertz = device.attribute('memoryClockRate') * 1000;
  const bytes = device.attribute('globalMemoryBusWidth') / 8;
  return hertz > 0 && bytes > 0 ? 2 * hertz * bytes : null;
}

/** Bytes per second in one direction, without the line coding; packet headers take some more. */
export function linkBandwidth({ current, max }: NonNullable<Machine['link']>): number {
  // An idle GPU lowers the speed of its link, but never the width.
  const bits = max.speed * 1e9 * Math.min(current.width, max.width);
  return max.speed <= LAST_OF_TEN ? bits / 10 : (bits * 128) / 130 / 8;
}

/** The most bytes per second that a case can reach; undefined if that is unknown. */
export function limitOf(
  { limit }: Pick<CaseResult, 'limit'>,
  { link, memoryBandwidth: memory }: Machine,
): number | undefined {
  const most = limit?.by === 'memory' ? memory : link && linkBandwidth(link);
  return limit && most ? most / limit.times : undefined;
}

/** Describes the limit of a case: `memory / 2: 1674 GB/s`. */
export function describeLimit(result: CaseResult, machine: Machine): string | undefined {
  const { limit } = result;
  const most = limitOf(result, machine);
  if (most === undefined || !limit) return undefined;
  const by = limit.by === 'memory' ? 'memory' : 'PCI Express';
  return `${by}${limit.times === 2 ? ' / 2' : ''}: ${speed(most, 1e9)} GB/s`;
}
