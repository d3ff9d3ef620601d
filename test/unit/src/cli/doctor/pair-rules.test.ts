import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Finding, isSound } from '../../../../../src/cli/doctor/finding.ts';
import { judgePair, type PairFacts } from '../../../../../src/cli/doctor/pair-rules.ts';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { PROBES } from '../../../../../src/ipc/inspect/probes.ts';
import type { ProcessFacts } from '../../../../../src/ipc/inspect/process-facts.ts';
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

const every = (status: string): Record<string, string> => ({
  'plain memory': status,
  pool: status,
  'virtual memory': status,
  'read-only': status,
  event: status,
  timeline: status,
});

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

  const MIG = { ...deviceA, uuid: 'MIG-aaaa' };
  const onDevice = { ...every('no'), timeline: 'unknown' };
  /** A cause, the line that names it, its remedy, and what it does to the kinds. */
  const causes: readonly (readonly [
    cause: string,
    facts: PairFacts,
    name: string,
    remedy: string,
    kinds: Record<string, string>,
  ])[] = [
    ['another GPU', pair({ devices: [deviceB] }), 'GPU', remedies.otherDevice, onDevice],
    ['another MIG slice', pair({ devices: [MIG] }), 'GPU', remedies.mig, onDevice],
    [
      'a slice there for a GPU here',
      pair({ devices: [MIG] }, {}, { devices: [deviceB, deviceA] }),
      'GPU',
      remedies.mig,
      onDevice,
    ],
    [
      'a compute mode for one process, that only the other tells',
      pair({ devices: [{ ...deviceA, computeMode: 3 }] }),
      'compute mode',
      remedies.computeMode,
      onDevice,
    ],
    [
      'a compute mode for one process, of one of two devices',
      pair(
        { devices: [deviceA, deviceB] },
        {},
        { devices: [deviceA, { ...deviceB, computeMode: 3 }] },
      ),
      'compute mode',
      remedies.computeMode,
      onDevice,
    ],
    ['another machine', pair({ machine: 'x' }), 'machine', remedies.otherMachine, every('no')],
    [
      'the emulated driver at one side',
      pair({ driver: { name: 'emulated', version: '13.0' } }),
      'driver',
      'One uses the emulated driver: give both the same CUFFI_DRIVER.',
      onDevice,
    ],
  ];
  for (const [cause, facts, name, remedy, kinds] of causes)
    test(`finds ${cause}`, () => {
      const found = named(facts, name);
      assert.deepEqual([found?.status, found?.remedy], ['no', remedy]);
      assert.deepEqual(kindsOf(facts), kinds);
    });

  test('what was tried counts for more than what it follows from', () => {
    const facts = pair({ sharedMemory: 99 }, { probes: tried });
    assert.equal(kindsOf(facts)['event'], 'ok');
    assert.deepEqual([named(facts, '/dev/shm')?.status, isSound(judgePair(facts))], ['no', true]);
  });

  test('a kind that failed says why, with the cause that is known', () => {
    const results = PROBES.map((name) => ({
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

  test('a device that has another ordinal there is the same device', () => {
    const facts = pair({ devices: [deviceB, { ...deviceA, ordinal: 1 }] });
    assert.equal(named(facts, 'GPU')?.fact, `in common: ${deviceA.uuid} (here 0, there 1)`);
    assert.equal(named(pair({}), 'GPU')?.fact, `in common: ${deviceA.uuid}`);
  });

  test('a device in a compute mode for one process that only one side sees is no obstacle', () => {
    const exclusive = { ...deviceB, computeMode: 3 };
    for (const facts of [
      pair({ devices: [deviceA, exclusive] }),
      pair({}, {}, { devices: [deviceA, exclusive] }),
    ])
      assert.equal(named(facts, 'compute mode'), undefined);
  });

  test('two versions of one driver, or two paths of it, are no obstacle', () => {
    const facts = pair({ driver: { name: '/opt/libcuda.so.1', version: '12.8' } });
    assert.deepEqual(
      [named(facts, 'driver')?.status, named(facts, 'driver')?.fact],
      ['ok', 'here /usr/lib/libcuda.so.1 (CUDA 13.0), there /opt/libcuda.so.1 (CUDA 12.8)'],
    );
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
    for (const name of [
      'asked',
      'machine',
      'driver',
      'GPU',
      'pid namespace',
      '/dev/shm',
      'pidfd_getfd',
    ])
      assert.equal(named(facts, name)?.status, 'unknown', name);
    assert.deepEqual(kindsOf(facts), every('unknown'));
    assert.ok(isSound(judgePair(facts)));
  });
});
