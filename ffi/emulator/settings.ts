/** Settings of the emulated driver, from environment variables. */
import { type DeviceAttribute, deviceAttributes } from '../attributes.ts';
import { type FunctionName, functionNames } from '../functions.ts';
import type { CUresult } from '../results.ts';
import { invalidSetting } from '../settings.ts';
import { type Visible, visibleDevices } from './visible-devices.ts';

/**
 * - `CUFFI_EMULATED_DEVICES`: the number of devices of the machine; 1 by default.
 * - `CUDA_VISIBLE_DEVICES`: which of them this process sees, as on hardware: see {@link visibleDevices}.
 * - `CUFFI_EMULATED_MEMORY`: bytes of memory of each, with suffix K, M or G; 4G by default.
 * - `CUFFI_EMULATED_ATTRIBUTES`: device attributes by number, as `125=0,20=3`.
 * - `CUFFI_EMULATED_SAME_HANDLES=1`: an allocation at the address of a freed one has the same IPC
 *   handle, byte by byte, as with the drivers of some machines.
 * - `CUFFI_EMULATED_TEARDOWN_MS`: how long mappings of a process persist after its end.
 * - `CUFFI_EMULATED_VERSION`: the CUDA version of the driver, as `11.4` (the oldest) or `13.0` (the
 *   default). Functions and device attributes that a driver of that version lacks are not there.
 * - `CUFFI_EMULATED_FAULTS`: see {@link parseFaults}.
 * - `CUFFI_EMULATED_SHARED_QUEUES`: from so many waiting streams on, every second stream that gets work
 *   shares the queue of one of them, as if all had unfinished work. Without it only if they have.
 * - `CUFFI_EMULATED_PEERS`: which devices of the machine can access the memory of which others, as
 *   `0>1,2>0`; by default all can.
 * - `CUFFI_EMULATED_FOREIGN_CONTEXT=1`: cuInit makes a context of the last device current, as if
 *   another library of the process had made it.
 * - `CUDA_DEVICE_MAX_CONNECTIONS`: the number of queues of a device, 1 to 32, as on hardware; 8 by default.
 */
export interface Settings {
  readonly visible: Visible;
  readonly memoryByteLength: number;
  readonly attributes: ReadonlyMap<number, number>;
  /** Whether devices support the feature of an attribute: all that are not set to 0. */
  readonly supports: (attribute: DeviceAttribute) => boolean;
  /** Whether an IPC handle identifies only the place of memory, not the allocation. */
  readonly reusesHandles: boolean;
  /** Whether a device can access the memory of another one, by their numbers in the machine. */
  readonly canAccessPeer: (device: number, peer: number) => boolean;
  /** Whether a context that is not cuffi's is current from the beginning. */
  readonly hasForeignContext: boolean;
  readonly teardownMs: number;
  readonly faults: FaultInjector;
  /** As cuDriverGetVersion returns it: 12040 is CUDA 12.4. */
  readonly version: number;
  /** While so many streams of a context wait for words of memory, no other one runs. */
  readonly queueCount: number;
  /** While so many do, every second stream that gets work shares the queue of one of them. */
  readonly queuesSharedFrom: number;
}

/** Reads the settings. @throws RangeError for an invalid value */
export const readSettings = (env: NodeJS.ProcessEnv): Settings => {
  const given = attributes(env);
  return {
    visible: visibleDevices(deviceCount(env), env['CUDA_VISIBLE_DEVICES']),
    memoryByteLength: memoryByteLength(env),
    attributes: given,
    supports: (attribute) => given.get(deviceAttributes[attribute]) !== 0,
    reusesHandles: isSet(env, 'CUFFI_EMULATED_SAME_HANDLES'),
    canAccessPeer: peers(env),
    hasForeignContext: isSet(env, 'CUFFI_EMULATED_FOREIGN_CONTEXT'),
    teardownMs: teardownMs(env),
    faults: parseFaults(setting(env, 'CUFFI_EMULATED_FAULTS') ?? ''),
    queueCount: queueCount(env),
    queuesSharedFrom: queuesSharedFrom(env),
    version: version(env),
  };
};

const UNITS: Readonly<Record<string, number>> = { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 };

/** The value of a variable, or undefined if it is unset or empty. */
const setting = (env: NodeJS.ProcessEnv, name: string): string | undefined =>
  env[name] || undefined;

const throwInvalid = (name: string, value: string, expected: string): never => {
  throw invalidSetting(name, expected, value);
};

function deviceCount(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_DEVICES';
  const value = setting(env, name) ?? '1';
  return /^\d{1,2}$/.test(value)
    ? Number(value)
    : throwInvalid(name, value, 'a number from 0 to 99');
}

function isSet(env: NodeJS.ProcessEnv, name: string): boolean {
  const value = setting(env, name) ?? '0';
  return /^[01]$/.test(value) ? value === '1' : throwInvalid(name, value, '1 or 0');
}

function peers(env: NodeJS.ProcessEnv): Settings['canAccessPeer'] {
  const name = 'CUFFI_EMULATED_PEERS';
  const value = setting(env, name);
  if (value === undefined) return () => true;
  const pairs = value.split(',');
  if (!pairs.every((pair) => /^\d{1,2}>\d{1,2}$/.test(pair)))
    throwInvalid(name, value, 'pairs of devices, as 0>1,2>0');
  return (device, peer) => pairs.includes(`${device}>${peer}`);
}

/** The driver ignores other values. */
function queueCount(env: NodeJS.ProcessEnv): number {
  const given = Number(setting(env, 'CUDA_DEVICE_MAX_CONNECTIONS'));
  return Number.isInteger(given) && given >= 1 && given <= 32 ? given : 8;
}

function queuesSharedFrom(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_SHARED_QUEUES';
  const value = setting(env, name);
  if (value === undefined) return Number.POSITIVE_INFINITY;
  return /^[1-9]\d?$/.test(value)
    ? Number(value)
    : throwInvalid(name, value, 'a number of waiting streams from 1 to 99');
}

function memoryByteLength(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_MEMORY';
  const value = setting(env, name) ?? '4G';
  const [, digits, unit] = /^(\d+)([KMG]?)$/i.exec(value) ?? [];
  const byteLength = Number(digits) * (UNITS[unit?.toUpperCase() ?? ''] ?? 1);
  return Number.isSafeInteger(byteLength) && byteLength > 0
    ? byteLength
    : throwInvalid(name, value, 'bytes above 0, with suffix K, M or G or without');
}

const OLDEST_VERSION = 11_040;
const NEWEST_VERSION = 13_000;

function version(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_VERSION';
  const value = setting(env, name) ?? '13.0';
  const [, major, minor] = /^(\d{2})\.(\d)$/.exec(value) ?? [];
  const given = Number(major) * 1000 + Number(minor) * 10;
  return given >= OLDEST_VERSION && given <= NEWEST_VERSION
    ? given
    : throwInvalid(name, value, 'a version of CUDA from 11.4 to 13.0');
}

function attributes(env: NodeJS.ProcessEnv): Map<number, number> {
  const name = 'CUFFI_EMULATED_ATTRIBUTES';
  const value = setting(env, name) ?? '';
  const entries = value.split(',').filter((entry) => entry.trim() !== '');
  return new Map(
    entries.map((entry) => {
      const [, number, to] = /^\s*(\d+)=(-?\d+)\s*$/.exec(entry) ?? [];
      return number === undefined || to === undefined
        ? throwInvalid(name, value, 'NUMBER=VALUE, comma-separated')
        : ([Number(number), Number(to)] as const);
    }),
  );
}

function teardownMs(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_TEARDOWN_MS';
  const value = setting(env, name) ?? '0';
  return /^\d{1,6}$/.test(value) ? Number(value) : throwInvalid(name, value, 'milliseconds');
}

// ---- Fault injection ----

interface InjectedFault {
  readonly name: FunctionName;
  /** The number of the call that fails, from 1. Undefined: every call. */
  readonly call: number | undefined;
  readonly status: CUresult;
}

/** Counts a call of a function. Returns the status that the call must fail with, if any. */
export type FaultInjector = (name: FunctionName) => CUresult | undefined;

/**
 * Parses `cuMemAlloc_v2:3=2`: the third call of that function returns 2 and does nothing. Several
 * faults are separated by commas; `*` in place of the number means every call.
 *
 * @throws RangeError for anything else
 */
function parseFaults(text: string): FaultInjector {
  const faults: InjectedFault[] = text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '')
    .map((entry) => {
      const [, name, call, status] = /^(\w+):(\d+|\*)=(\d+)$/.exec(entry) ?? [];
      if (!functionNames.includes(name as FunctionName))
        return throwInvalid(
          'CUFFI_EMULATED_FAULTS',
          entry,
          'FUNCTION:CALL=STATUS, as cuMemAlloc_v2:3=2',
        );
      return {
        name: name as FunctionName,
        call: call === '*' ? undefined : Number(call),
        status: Number(status),
      };
    });
  const counts = new Map<FunctionName, number>();
  return (name) => {
    if (faults.length === 0) return undefined;
    const count = (counts.get(name) ?? 0) + 1;
    counts.set(name, count);
    return faults.find(
      (fault) => fault.name === name && (fault.call === undefined || fault.call === count),
    )?.status;
  };
}
