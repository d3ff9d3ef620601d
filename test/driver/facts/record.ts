/**
 * hardware.json: what the driver of a machine with one GPU answered, and of one with two. The facts
 * of a machine with GPUs are written to the file that `CUFFI_RECORD_FACTS` names, which may be
 * hardware.json itself; nothing is compared then.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Device } from '../../../src/device.ts';
import { driverVersion } from '../../../src/driver.ts';
import { onHardware } from '../../support/driver.ts';
import type { FactValue } from './facts.ts';

type Facts = Readonly<Record<string, FactValue>>;

export interface HardwareRecord {
  readonly gpu: string;
  readonly driver: string;
  readonly cuda: string;
  readonly date: string;
  readonly facts: Facts;
  /** The groups of facts that were asked in processes of their own, by name. */
  readonly questions: Readonly<Record<string, Facts>>;
}

type Records = Partial<Record<'1' | '2', HardwareRecord>>;

/** `reason`, for facts whose names begin so. */
const because = (reason: string, starts: readonly string[]): Readonly<Record<string, string>> =>
  Object.fromEntries(starts.map((start) => [start, reason]));

/**
 * What the emulated driver does not imitate, by how the facts' names begin, and why. A question
 * that has no other facts is not asked of it.
 */
export const notEmulated: Readonly<Record<string, string>> = {
  ...because(
    'it throws an Error for what was destroyed, so that a test finds it: hardware answers 709, or crashes',
    [
      'a destroyed stream',
      'a destroyed event',
      'a destroyed context: ',
      'a destroyed module',
      'a destroyed pool',
      'a destroyed graph',
      'in a capture (global): the stream is destroyed, and it ends',
      'in a capture (relaxed): the stream is destroyed, and it ends',
      'in a capture (global): the primary context is reset, and it ends',
      'in a capture (relaxed): the primary context is reset, and it ends',
    ],
  ),
  ...because(
    'it gives what was given back out at once, the last first, so that a test finds who still uses it',
    [
      ...[
        'stream',
        'event',
        'interprocess event',
        'pool',
        'context',
        'memory',
        'pinned memory',
      ].map((kind) => `a handle given out again: ${kind}, `),
      'a handle given out again: event destroyed behind held work',
      'a handle given out again: stream destroyed with held work',
    ],
  ),
  ...because(
    'it fills fresh memory, so that a test finds who counts on zeros',
    [
      'plain memory',
      'plain memory used before',
      'small plain memory',
      'small plain memory used before',
      'memory of a pool',
      'managed memory',
      'managed memory used before',
      'pinned memory',
      'pinned memory used before',
    ].map((kind) => `fresh: ${kind} holds`),
  ),
  ...because(
    'rows of 2 GiB, or a million of them, take it seconds and as much memory of the host',
    [
      'rows: memset of a row of ',
      'rows: copy of a row of ',
      'rows: memset of 1048576 rows',
      'rows: copy of 1048576 rows',
    ],
  ),
  ...because('it jumps into no code but that of two functions of libc', [
    'in a capture (global): a host function is called',
    'in a capture (relaxed): a host function is called',
  ]),
  ...because('it refuses what goes over a border, as cuffi never asks for that', [
    'a copy over the border to another mapping',
  ]),
  ...because('fresh memory is a number below zero there, which no wait for 0 takes', [
    'plain memory of another device, with access of its context: waited for: the stream',
  ]),
  ...because('it does not imitate these yet', [
    'a pool of another device: lets device 0 only read',
    'a handle opened on both devices: the first closed from the second context',
    'a handle opened on both devices: the first read',
  ]),
  ...because(
    'it waits for all streams wherever code may come to the device, so that a test finds it: an H100 ' +
      'did not for a small kernel, in a process that had loaded others; elsewhere a first launch waited',
    ['a non-blocking stream', 'the legacy stream', 'a blocking stream'].flatMap((waiting) =>
      ['cuFuncLoad', 'cuLaunchKernel', 'cuFuncGetAttribute', 'cuFuncSetAttribute'].map(
        (name) => `beside ${waiting} that waits: ${name} of a kernel that is not loaded`,
      ),
    ),
  ),
  ...because(
    'it neither links code nor computes an occupancy, and returns 801',
    ['global', 'of this thread', 'relaxed'].flatMap((mode) =>
      ['cuLinkCreate_v2', 'cuOccupancyMaxActiveBlocksPerMultiprocessor'].map(
        (name) => `once in a capture (${mode}): ${name}`,
      ),
    ),
  ),
  ...because('it has no rules of its own for graphs with memory', [
    'a graph with memory, while it waits in a held stream: instantiated again',
    'a graph with memory, while it waits in a held stream: updated',
  ]),
};

/** What hardware answers now so and now so, by how the facts' names begin, and why. */
export const varying: Readonly<Record<string, string>> = {
  ...because(
    'the first call that needs a lock of the one that waits does not return: not always the same',
    ['while a call waits for a full stream, another thread: '],
  ),
  ...because('these handles are addresses of host memory, and what else frees memory decides', [
    ...['stream', 'event', 'interprocess event', 'pool', 'context'].map(
      (kind) => `a handle given out again: ${kind}, `,
    ),
    'a handle given out again: event destroyed behind held work',
    'a handle given out again: stream destroyed with held work',
  ]),
  ...because('it reads memory that was given back, which may be in use again, or unmapped', [
    ...['stream', 'event', 'context: ', 'module', 'pool', 'graph', 'memory of'].map(
      (kind) => `a destroyed ${kind}`,
    ),
    ...['global', 'relaxed'].flatMap((mode) => [
      `in a capture (${mode}): the stream is destroyed, and it ends`,
      `in a capture (${mode}): the primary context is reset, and it ends`,
      `in a capture (${mode}): the primary context is released, and it ends`,
    ]),
  ]),
};

const path = fileURLToPath(new URL('../hardware.json', import.meta.url));
const output = process.env['CUFFI_RECORD_FACTS'];

export const isRecording: boolean = output !== undefined;
/** How many devices there are to be asked about. */
export const devices: '1' | '2' = Device.count > 1 ? '2' : '1';

const read = (file: string): Records => JSON.parse(readFileSync(file, 'utf8')) as Records;

/** All records, and that of as many devices as there are here. */
export const records: Records = read(path);
export const record: HardwareRecord | undefined = records[devices];

const isIn = (starts: Readonly<Record<string, string>>, name: string): boolean =>
  Object.keys(starts).some((start) => name.startsWith(start));

/** Whether the driver is to answer what is on record, to what begins with this. */
const isCompared = (name: string): boolean =>
  !isIn(varying, name) && (onHardware || !isIn(notEmulated, name));

/** Whether to ask for what begins with this: all of it is on hardware. */
export const isAsked = (name: string): boolean => onHardware || isCompared(name);

/** Compares facts with those on record. */
export function compare(facts: ReadonlyMap<string, FactValue>, expected: Facts | undefined): void {
  assert.ok(expected, `there is no record of this for ${devices} devices: set CUFFI_RECORD_FACTS`);
  const differences = [...new Set([...Object.keys(expected), ...facts.keys()])]
    .filter((name) => isCompared(name) && facts.get(name) !== expected[name])
    .map((name) => `${name}: ${facts.get(name)} here, ${expected[name]} on record`);
  assert.deepEqual(differences, []);
}

const kernelDriverVersion = (): string =>
  execFileSync('nvidia-smi', ['--query-gpu=driver_version', '--format=csv,noheader', '-i', '0'], {
    encoding: 'utf8',
  }).trim();

/** Writes what has changed: after each group, so that a machine that fails leaves something. */
export function write(change: (record: HardwareRecord) => HardwareRecord): void {
  const file = resolve(output as string);
  const written = read(existsSync(file) ? file : path);
  const { major, minor } = driverVersion();
  const about = {
    gpu: Device.get(0).name,
    driver: onHardware ? kernelDriverVersion() : 'emulated',
    cuda: `${major}.${minor}`,
    date: new Date().toISOString().slice(0, 10),
  };
  const { facts = {}, questions = {} } = written[devices] ?? {};
  const next = { ...written, [devices]: change({ ...about, facts, questions }) };
  writeFileSync(file, `${JSON.stringify(next, null, 2)}\n`);
}
