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

/** What the emulated driver does not imitate, by how the facts' names begin, and why. */
export const notEmulated: Readonly<Record<string, string>> = {};

const path = fileURLToPath(new URL('../hardware.json', import.meta.url));
const output = process.env['CUFFI_RECORD_FACTS'];

export const isRecording: boolean = output !== undefined;
/** How many devices there are to be asked about. */
export const devices: '1' | '2' = Device.count > 1 ? '2' : '1';

const read = (file: string): Records => JSON.parse(readFileSync(file, 'utf8')) as Records;

/** All records, and that of as many devices as there are here. */
export const records: Records = read(path);
export const record: HardwareRecord | undefined = records[devices];

const isImitated = (name: string): boolean =>
  onHardware || !Object.keys(notEmulated).some((start) => name.startsWith(start));

/** Compares facts with those on record. */
export function compare(facts: ReadonlyMap<string, FactValue>, expected: Facts | undefined): void {
  assert.ok(expected, `there is no record of this for ${devices} devices: set CUFFI_RECORD_FACTS`);
  const differences = [...new Set([...Object.keys(expected), ...facts.keys()])]
    .filter((name) => isImitated(name) && facts.get(name) !== expected[name])
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
