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
const namespaces = processFacts().namespaces;

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
    [
      'the same pid in two pid namespaces',
      pair({ pid: 1, namespaces: { ...namespaces, pid: 77 } }, {}, { pid: 1 }),
      'pid number',
      remedies.pidNamespace,
      { ...every('unknown'), 'plain memory': 'no', event: 'no' },
    ],
    [
      'no common pid namespace',
      pair({ namespaces: { ...namespaces, pid: 77 } }),
      'pid namespace',
      remedies.pidNamespace,
      every('unknown'),
    ],
    ['another GPU', pair({ devices: [deviceB] }), 'GPU', remedies.otherDevice, onDevice],
    ['another MIG slice', pair({ devices: [MIG] }), 'GPU', remedies.mig, onDevice],
    [
      'another /dev/shm',
      pair({ sharedMemory: 99 }),
      '/dev/shm',
      remedies.sharedMemory,
      { ...every('unknown'), event: 'no' },
    ],
    ['WSL', pair({ isWsl: true }), 'WSL', remedies.wsl, onDevice],
    [
      'a compute mode for one process',
      pair({ devices: [{ ...deviceA, computeMode: 3 }] }),
      'compute mode',
      remedies.computeMode,
      onDevice,
    ],
    ['another user', pair({ user: 0 }), 'user', remedies.otherUser, every('no')],
    ['another machine', pair({ machine: 'x' }), 'machine', remedies.otherMachine, every('no')],
    [
      'the emulated driver at one side',
      pair({ driver: { name: 'emulated', version: '13.0' } }),
      'driver',
      'One uses the emulated driver: give both the same CUFFI_DRIVER.',
      onDevice,
    ],
    [
      'MPS without a common ipc namespace',
      pair({
        namespaces: { ...namespaces, ipc: 88 },
        environment: { CUDA_MPS_PIPE_DIRECTORY: '/tmp/mps' },
      }),
      'ipc namespace',
      remedies.mps,
      onDevice,
    ],
    [
      'expandable segments of PyTorch',
      pair({ environment: { PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True' } }),
      'PyTorch',
      remedies.expandableSegments,
      every('unknown'),
    ],
    [
      'Yama without SYS_PTRACE',
      pair({ capabilities: '0' }, { ptraceScope: 1 }),
      'pidfd_getfd',
      remedies.ptrace,
      every('unknown'),
    ],
  ];
  for (const [cause, facts, name, remedy, kinds] of causes)
    test(`finds ${cause}`, () => {
      const found = named(facts, name);
      assert.deepEqual([found?.status, found?.remedy], ['no', remedy]);
      assert.deepEqual(kindsOf(facts), kinds);
    });

  test('an ipc namespace of its own matters with MPS only', () => {
    const facts = pair({ namespaces: { ...namespaces, ipc: 88 } });
    assert.equal(named(facts, 'ipc namespace')?.status, 'ok');
    assert.deepEqual(kindsOf(facts), every('unknown'));
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
