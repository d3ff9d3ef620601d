/** The limits of a GPU's bytes a second: its PCI Express link, and its memory. */
import { readFileSync, realpathSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Device } from 'cuffi';
import type { CaseResult, Machine } from './result-schema.ts';

type Link = NonNullable<Machine['link']>;
type Lanes = Link['max'];

const DEVICES = '/sys/bus/pci/devices';

/** By generation: 1e9 transfers a second of a lane. */
const SPEEDS = [2.5, 5, 8, 16, 32, 64];
/** Up to this speed a byte takes ten transfers of a lane; above, 128 bits take 130. */
const LAST_OF_TEN = 5;

/** What nvidia-smi says where the system hides the link: the most that both ends can, and what is now. */
export const LINK_ASKED =
  'pcie.link.gen.max,pcie.link.width.max,pcie.link.gen.gpucurrent,pcie.link.width.current';

/** @param ask asks nvidia-smi for {@link LINK_ASKED}, which takes its time */
export const readLink = (device: Device, ask: () => readonly string[] | undefined): Link | null =>
  linkInSystem(join(DEVICES, pciAddress(device))) ?? linkOfSmi(ask() ?? []);

/** Bytes a second by the memory's clock, which moves data twice in each period, and its bus. */
export function memoryBandwidth(device: Device): number | null {
  const hertz = device.attribute('memoryClockRate') * 1000;
  const bytes = device.attribute('globalMemoryBusWidth') / 8;
  return hertz > 0 && bytes > 0 ? 2 * hertz * bytes : null;
}

/** How many bytes a second of a case there are at most on a machine; undefined where that is not known. */
export function limitOf(
  { limit }: Pick<CaseResult, 'limit'>,
  { link, memoryBandwidth: memory }: Machine,
): number | undefined {
  const most = limit?.by === 'memory' ? memory : link && linkBandwidth(link);
  return limit && most ? most / limit.times : undefined;
}

/** Bytes a second of a link each way, less what its coding takes: packets take a tenth of it besides. */
export function linkBandwidth({ current, max }: Link): number {
  // Of a GPU at rest the speed is lowered, never the width: that is of what it is plugged in.
  const bits = max.speed * 1e9 * Math.min(current.width, max.width);
  return max.speed <= LAST_OF_TEN ? bits / 10 : (bits * 128) / 130 / 8;
}

/** As the system's files name it: `0000:1b:00.0`. */
function pciAddress(device: Device): string {
  const hex = (attribute: 'pciDomainId' | 'pciBusId' | 'pciDeviceId', digits: number): string =>
    device.attribute(attribute).toString(16).padStart(digits, '0');
  return `${hex('pciDomainId', 4)}:${hex('pciBusId', 2)}:${hex('pciDeviceId', 2)}.0`;
}

/** Undefined where the files are not there, as in many virtual machines, or say nothing. */
function linkInSystem(folder: string): Link | undefined {
  const current = lanesIn(folder, 'current');
  const own = lanesIn(folder, 'max');
  if (!current || !own) return undefined;
  const port = lanesIn(dirname(resolved(folder)), 'max');
  // A virtual machine may invent a port, which can do less than is done.
  const isReal = port && port.speed >= current.speed && port.width >= current.width;
  const { speed, width } = isReal ? port : own;
  return { current, max: { speed: Math.min(own.speed, speed), width: Math.min(own.width, width) } };
}

function lanesIn(folder: string, which: 'current' | 'max'): Lanes | undefined {
  const speed = numberIn(join(folder, `${which}_link_speed`));
  const width = numberIn(join(folder, `${which}_link_width`));
  // A port that is none has 255 lanes, or none.
  return speed > 0 && width > 0 && width <= 32 ? { speed, width } : undefined;
}

/** The number that a file begins with, as `32.0 GT/s PCIe`; NaN where there is none. */
function numberIn(file: string): number {
  try {
    return Number.parseFloat(readFileSync(file, 'utf8'));
  } catch {
    return Number.NaN;
  }
}

function resolved(folder: string): string {
  try {
    return realpathSync(folder);
  } catch {
    return folder;
  }
}

function linkOfSmi(answers: readonly string[]): Link | null {
  const [generation = NaN, width = NaN, nowGeneration = NaN, nowWidth = NaN] = answers.map(Number);
  const max = lanesOf(generation, width);
  return max ? { max, current: lanesOf(nowGeneration, nowWidth) ?? max } : null;
}

function lanesOf(generation: number, width: number): Lanes | undefined {
  const speed = SPEEDS[generation - 1];
  return speed && width > 0 ? { speed, width } : undefined;
}
