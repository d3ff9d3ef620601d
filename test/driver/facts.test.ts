/**
 * What drivers answer. On hardware the facts are written to hardware.json; the emulated driver
 * must answer the same, fact by fact.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { Device } from '../../src/device.ts';
import { driverVersion } from '../../src/driver.ts';
import { onHardware } from '../support/driver.ts';
import { contextFacts } from './facts/context.ts';
import { eventFacts } from './facts/event.ts';
import { collectFacts, type FactValue } from './facts/facts.ts';
import { ipcFacts } from './facts/ipc.ts';
import { graphFacts, kernelFacts } from './facts/kernel.ts';
import { memoryFacts } from './facts/memory.ts';
import { memoryKindFacts } from './facts/memory-kinds.ts';
import { waitingFacts } from './facts/waiting.ts';

interface HardwareRecord {
  readonly gpu: string;
  readonly driver: string;
  readonly cuda: string;
  readonly date: string;
  readonly facts: Record<string, FactValue>;
}

const path = new URL('./hardware.json', import.meta.url);
const groups = [
  contextFacts,
  memoryFacts,
  ipcFacts,
  eventFacts,
  waitingFacts,
  kernelFacts,
  graphFacts,
  ...memoryKindFacts,
];

const kernelDriverVersion = (): string =>
  execFileSync('nvidia-smi', ['--query-gpu=driver_version', '--format=csv,noheader', '-i', '0'], {
    encoding: 'utf8',
  }).trim();

test('the driver answers as the hardware did', { timeout: 240_000 }, async (t) => {
  const facts = await collectFacts(groups);
  if (onHardware) {
    const { major, minor } = driverVersion();
    const record: HardwareRecord = {
      gpu: Device.get(0).name,
      driver: kernelDriverVersion(),
      cuda: `${major}.${minor}`,
      date: new Date().toISOString().slice(0, 10),
      facts: Object.fromEntries(facts),
    };
    writeFileSync(path, `${JSON.stringify(record, null, 2)}\n`);
    t.diagnostic(`${facts.size} facts written to test/driver/hardware.json`);
    return;
  }
  const record = JSON.parse(readFileSync(path, 'utf8')) as HardwareRecord;
  t.diagnostic(`compared with ${record.gpu}, driver ${record.driver}, ${record.date}`);
  const names = new Set([...Object.keys(record.facts), ...facts.keys()]);
  const differences = [...names]
    .filter((name) => facts.get(name) !== record.facts[name])
    .map((name) => `${name}: ${facts.get(name)} here, ${record.facts[name]} on hardware`);
  assert.deepEqual(differences, []);
});
