import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Finding, isSound } from '../../../../../src/cli/doctor/finding.ts';
import { judgePair, type PairFacts } from '../../../../../src/cli/doctor/pair-rules.ts';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { PROBES } from '../../../../../src/ipc/inspect/probes.ts';
import type { DeviceFacts, ProcessFacts } from '../../../../../src/ipc/inspect/process-facts.ts';
import { deviceA, deviceB, machineFacts, processFacts } from './facts.ts';

const NONE = { results: [], reason: 'not tried' };
const tried = machineFacts().probes;

const pair = (
  there: Partial<ProcessFacts>,
  rest: Partial<PairFacts> = {},
  here: Partial<ProcessFacts> = {},
): PairFacts => ({
  here: processFacts({ pid: 100, ...here }),
  there: processFacts({ pid: 200, ...there }),
  source: 'its socket',
  ptraceScope: undefined,
  probes: NONE,
  ...rest,
});

/** The status of each kind, by its name: `ok` for all kinds that are not given. */
const kindsOf = (facts: PairFacts): Record<string, string> =>
  Object.fromEntries(
    judgePair(facts)
      .filter(({ group }) => group === 'works between them')
      .map(({ name, status }) => [name, status]),
  );
const named = (facts: PairFacts, name: string): Finding | undefined =>
  judgePair(facts).find((found) => found.name === name);

const every = (status: string): Record<string, string> =>
  Object.fromEntries(PROBES.map(({ title }) => [title, status]));

const MIG = { ...deviceA, uuid: 'MIG-aaaa' };
const [oneOfA, oneOfB] = [deviceA, deviceB].map((each) => ({ ...each, computeMode: 3 }));
const two = [deviceA, deviceB];
const devices = (here: unknown[], there: unknown[]): PairFacts =>
  pair({ devices: there as DeviceFacts[] }, {}, { devices: here as DeviceFacts[] });
const driver = (name: string): PairFacts => pair({ driver: { name, version: '12.8' } });
const [A, B] = [deviceA.uuid, deviceB.uuid];
const LIBRARY = '/usr/lib/libcuda.so.1 (CUDA 13.0)';
const SAME_DRIVER = 'One uses the emulated driver: give both the same CUFFI_DRIVER.';

/** Two processes, what is printed of them (empty if no such line is), and the remedy or its name. */
const rows: readonly (readonly [facts: PairFacts, said: string, remedy?: string])[] = [
  [devices([deviceA], [deviceB]), `no GPU none in common: here ${A}, there ${B}`, 'otherDevice'],
  [devices([deviceA], [MIG]), `no GPU none in common: here ${A}, there MIG-aaaa`, 'mig'],
  [devices([MIG], two), `no GPU none in common: here MIG-aaaa, there ${A}, ${B}`, 'mig'],
  [devices([deviceA], []), `no GPU none in common: here ${A}, there none`, 'otherDevice'],
  [devices([deviceA], two), `ok GPU in common: ${A}`],
  [
    devices([deviceA], [deviceB, { ...deviceA, ordinal: 1 }]),
    `ok GPU in common: ${A} (here 0, there 1)`,
  ],
  [devices(two, [oneOfA]), `no compute mode ${A} admits one process`, 'computeMode'],
  [devices([deviceA, oneOfB], two), `no compute mode ${B} admits one process`, 'computeMode'],
  [devices([deviceA], [deviceA, oneOfB]), ''],
  [devices([deviceA, oneOfB], [deviceA]), ''],
  [driver('/x.so'), `ok driver here ${LIBRARY}, there /x.so (CUDA 12.8)`],
  [driver('emulated'), `no driver here ${LIBRARY}, there emulated (CUDA 12.8)`, SAME_DRIVER],
  [pair({ isWsl: true }), 'no WSL WSL has no CUDA IPC', 'wsl'],
  [pair({}, {}, { isWsl: true }), 'no WSL WSL has no CUDA IPC', 'wsl'],
  [pair({ machine: 'x' }), `no machine here ${processFacts().machine}, there x`, 'otherMachine'],
];

/** What /proc alone tells is compared in machine.test.ts. */
describe('judgePair', () => {
  test('two processes of one place share every kind, once that was tried', () => {
    assert.deepEqual(kindsOf(pair({}, { probes: tried })), every('ok'));
    const findings = judgePair(pair({}, { probes: tried }));
    assert.deepEqual([...new Set(findings.map(({ status }) => status))], ['ok']);
    // Nothing is called working that was not tried.
    assert.deepEqual(kindsOf(pair({})), every('unknown'));
    assert.ok(isSound(judgePair(pair({}))));
  });

  for (const [facts, said, remedy = ''] of rows)
    test(said || 'a compute mode that only one of two processes sees is no obstacle', () => {
      const found = judgePair(facts).filter(({ group }) => group === 'both sides');
      const line = found.find(({ status, name, fact }) => `${status} ${name} ${fact}` === said);
      assert.equal(line?.remedy ?? '', remedies[remedy as keyof typeof remedies] ?? remedy);
      if (said === '') assert.ok(!found.some(({ name }) => name === 'compute mode'));
      else assert.ok(line);
      const kinds = every(said.startsWith('no ') ? 'no' : 'unknown');
      // It needs no GPU.
      if (!said.startsWith('no machine')) kinds['timeline'] = 'unknown';
      assert.deepEqual(kindsOf(facts), kinds);
    });

  test('what was tried counts for more than what it follows from', () => {
    const facts = pair({ sharedMemory: 99 }, { probes: tried });
    assert.equal(kindsOf(facts)['event'], 'ok');
    assert.deepEqual([named(facts, '/dev/shm')?.status, isSound(judgePair(facts))], ['no', true]);
    // One of the kinds that another GPU prevents.
    const one = { results: tried.results.slice(0, 1), reason: '' };
    assert.equal(named(pair({ devices: [deviceB] }, { probes: one }), 'GPU')?.isOptional, false);
  });

  test('a kind that failed says why, with the cause that is known', () => {
    const results = PROBES.map(({ name }) => ({
      name,
      ok: name !== 'event',
      ms: 1,
      code: undefined,
      reason: name === 'event' ? 'status 400\nmore' : '',
    }));
    const probes = { results, reason: '' };
    const event = named(pair({ sharedMemory: 99 }, { probes }), 'event');
    assert.deepEqual(
      [event?.status, event?.fact, event?.remedy],
      ['no', '/dev/shm: here 27, there 99; tried: status 400', remedies.sharedMemory],
    );
    const unexplained = named(pair({}, { probes }), 'event');
    assert.deepEqual([unexplained?.fact, unexplained?.remedy], ['tried: status 400', '']);
    assert.ok(!isSound(judgePair(pair({}, { probes }))));
  });

  test('what /proc does not tell is unknown, and no failure', () => {
    const facts = pair(
      {
        driver: undefined,
        devices: undefined,
        sharedMemory: undefined,
        capabilities: undefined,
        namespaces: {},
        machine: undefined,
      },
      { source: '/proc', ptraceScope: 1 },
    );
    const names = ['asked', 'machine', 'driver', 'GPU', 'pid namespace', '/dev/shm', 'pidfd_getfd'];
    for (const name of names) assert.equal(named(facts, name)?.status, 'unknown', name);
    assert.deepEqual(kindsOf(facts), every('unknown'));
    assert.ok(isSound(judgePair(facts)));
  });
});
