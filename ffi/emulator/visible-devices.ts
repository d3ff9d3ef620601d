/** Which devices of the emulated machine a process sees: `CUDA_VISIBLE_DEVICES`, as libcuda reads it. */
import { createHash } from 'node:crypto';
import { bootId } from '../linux/process.ts';
import { CUresult, type CUresult as Status } from '../results.ts';

/** The UUID of a device of the machine: the same in every process until the machine reboots. */
export const uuidOf = (physical: number): Uint8Array =>
  createHash('sha256').update(`${bootId()} device ${physical}`).digest().subarray(0, 16);

/** A UUID as nvidia-smi prints it. */
export function uuidText(uuid: Uint8Array): string {
  const hex = Buffer.from(uuid).toString('hex');
  const parts = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20)];
  return `GPU-${parts.join('-')}-${hex.slice(20)}`;
}

/** What a process sees. */
export interface Visible {
  /** The visible devices by their numbers in the machine; their places here are their ordinals. */
  readonly devices: readonly number[];
  /** What cuInit returns. */
  readonly status: Status;
}

/**
 * Measured with a driver of version 580 (docs/hardware.md). An entry is an index, or a UUID or the
 * beginning of one that no other device has. The first entry that names no device ends the list: an index
 * that is too large, `-1`, text, a UUID of another machine, a MIG slice. With a device that is named twice
 * before that, cuInit fails. Never throws: libcuda accepts all text.
 *
 * @param list the value of `CUDA_VISIBLE_DEVICES`. Undefined: all devices are visible
 */
export function visibleDevices(count: number, list: string | undefined): Visible {
  const machine = Array.from({ length: count }, (_, physical) => physical);
  if (list === undefined) return visible(machine);
  const devices: number[] = [];
  const isUuid = list.startsWith(UUID_PREFIX);
  for (const entry of list.split(',')) {
    const device = isUuid ? deviceOfUuid(entry, machine) : deviceOfIndex(entry, count);
    if (device === undefined) break;
    if (devices.includes(device))
      return { devices: [], status: CUresult.CUDA_ERROR_INVALID_DEVICE };
    devices.push(device);
  }
  return visible(devices);
}

const visible = (devices: readonly number[]): Visible => ({
  devices,
  status: devices.length > 0 ? CUresult.CUDA_SUCCESS : CUresult.CUDA_ERROR_NO_DEVICE,
});

const UUID_PREFIX = 'GPU-';

/** As C's strtol reads a number: what follows the digits is ignored. */
function deviceOfIndex(entry: string, count: number): number | undefined {
  const digits = /^\s*[+-]?\d+/.exec(entry)?.[0];
  const index = digits === undefined ? -1 : Number(digits);
  return index >= 0 && index < count ? Math.abs(index) : undefined;
}

/**
 * Undefined for the beginning of several UUIDs too. The digits may be upper case, `GPU-` must be. What
 * follows a whole UUID is ignored.
 */
function deviceOfUuid(entry: string, machine: readonly number[]): number | undefined {
  if (!entry.startsWith(UUID_PREFIX)) return undefined;
  const given = entry.slice(UUID_PREFIX.length).toLowerCase();
  const found = machine.filter((physical) => {
    const uuid = uuidText(uuidOf(physical)).slice(UUID_PREFIX.length);
    return uuid.startsWith(given) || given.startsWith(uuid);
  });
  return found.length === 1 ? found[0] : undefined;
}
