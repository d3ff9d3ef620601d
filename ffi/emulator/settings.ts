/** What the environment asks of the emulated driver. */
import { type DeviceAttribute, deviceAttributes } from '../attributes.ts';
import { type FaultInjector, parseFaults } from './faults.ts';

/**
 * - `CUFFI_EMULATED_DEVICES`: how many devices; 1 by default.
 * - `CUFFI_EMULATED_MEMORY`: bytes of memory of each, with suffix K, M or G; 4G by default.
 * - `CUFFI_EMULATED_ATTRIBUTES`: device attributes by number, as `125=0,20=3`.
 * - `CUFFI_EMULATED_SAME_HANDLES=1`: memory that is allocated where other memory was freed has the
 *   same IPC handle, byte by byte, as some machines' drivers give.
 * - `CUFFI_EMULATED_TEARDOWN_MS`: how long what a process had mapped stays so after its end.
 * - `CUFFI_EMULATED_FAULTS`: see {@link parseFaults}.
 */
export interface Settings {
  readonly deviceCount: number;
  readonly memoryByteLength: number;
  readonly attributes: ReadonlyMap<number, number>;
  /** Whether devices can do what an attribute of theirs stands for: all but what is set to 0. */
  readonly supports: (attribute: DeviceAttribute) => boolean;
  /** Whether a handle says where memory is, and not which. */
  readonly reusesHandles: boolean;
  readonly teardownMs: number;
  readonly faults: FaultInjector;
}

const UNITS: Readonly<Record<string, number>> = { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 };

/** The value of a variable, where it is set to anything. */
const setting = (env: NodeJS.ProcessEnv, name: string): string | undefined =>
  env[name] || undefined;

const throwInvalid = (name: string, value: string, wanted: string): never => {
  throw new RangeError(`${name}=${value}: expected ${wanted}`);
};

function deviceCount(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_DEVICES';
  const value = setting(env, name) ?? '1';
  return /^\d{1,2}$/.test(value)
    ? Number(value)
    : throwInvalid(name, value, 'a number from 0 to 99');
}

function memoryByteLength(env: NodeJS.ProcessEnv): number {
  const name = 'CUFFI_EMULATED_MEMORY';
  const value = setting(env, name) ?? '4G';
  const [, digits, unit] = /^(\d+)([KMG]?)$/i.exec(value) ?? [];
  const byteLength = Number(digits) * (UNITS[unit?.toUpperCase() ?? ''] ?? 1);
  return Number.isSafeInteger(byteLength) && byteLength > 0
    ? byteLength
    : throwInvalid(name, value, 'bytes, with suffix K, M or G or without');
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

/** @throws RangeError for a value that says nothing sensible */
export const readSettings = (env: NodeJS.ProcessEnv): Settings => {
  const given = attributes(env);
  return {
    deviceCount: deviceCount(env),
    memoryByteLength: memoryByteLength(env),
    attributes: given,
    supports: (attribute) => given.get(deviceAttributes[attribute]) !== 0,
    reusesHandles: setting(env, 'CUFFI_EMULATED_SAME_HANDLES') === '1',
    teardownMs: teardownMs(env),
    faults: parseFaults(setting(env, 'CUFFI_EMULATED_FAULTS') ?? ''),
  };
};
