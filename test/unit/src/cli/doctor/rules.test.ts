/** What the doctor says of a driver, its devices and what was tried: machine.test.ts has all other rules. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { describeFindings, type Finding, isSound } from '../../../../../src/cli/doctor/finding.ts';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { judge, type MachineFacts } from '../../../../../src/cli/doctor/rules.ts';
import { PROBES } from '../../../../../src/ipc/inspect/probes.ts';
import { deviceA, deviceB, machineFacts, processFacts } from './facts.ts';

/** The lines of a name, with one space for several. */
const linesOf = (facts: MachineFacts, name: string): string[] =>
  describeFindings(judge(facts).filter((found) => found.name === name))
    .slice(1)
    .map((line) => line.trim().replace(/ +/g, ' '));

const noDriver = (error: string): Partial<MachineFacts> => ({
  driver: { name: undefined, version: undefined, reason: '', error },
});
const device = (changes: Partial<typeof deviceA>): Partial<MachineFacts> => ({
  devices: [{ ...deviceA, ...changes }],
});
const read = (byteLength: number, ms: number): Partial<MachineFacts> => ({
  throughput: { byteLength, ms },
});
const emulated = { name: 'emulated', version: '13.0', reason: 'asked for', error: '' };
const failed = (name: 'event' | 'pool', changes: Partial<MachineFacts>): Partial<MachineFacts> => ({
  probes: {
    results: [{ name, ok: false, ms: undefined, code: 'failed', reason: 'refused\nmore' }],
    reason: '',
  },
  ...changes,
});
const tried = (ms: number): Partial<MachineFacts> => ({
  probes: {
    results: [{ name: 'pool', ok: true, ms, code: undefined, reason: '' }],
    reason: 'gone',
  },
});
const shm = (free: number): Partial<MachineFacts> => ({
  sharedMemory: { byteLength: 2 ** 30, free },
});
const USE_ANOTHER =
  'Other kinds that work here can be used instead: cuffi devices lists what the device supports.';
const [A, B] = [deviceA.uuid, deviceB.uuid];
const GIB = 2 ** 30;

/** What is printed behind a name, the facts that differ, and the remedy. */
const rows: Readonly<
  Record<
    string,
    readonly (readonly [said: string, facts: Partial<MachineFacts>, remedy?: string])[]
  >
> = {
  'GPU driver': [
    [
      'no no CUDA driver (libcuda.so.1) was found',
      noDriver('no CUDA driver (libcuda.so.1) was found. Tried:\n  x: y\nInstall it.'),
      remedies.driver,
    ],
    [
      'no cuInit failed (999)',
      noDriver('cuInit failed (999)\nMore.\n Check dmesg.'),
      'Check dmesg.',
    ],
    ['no cuInit failed (999)', noDriver('cuInit failed (999)'), remedies.driver],
  ],
  driver: [
    ['ok /usr/lib/libcuda.so.1 (a GPU is here)', {}],
    ['ok emulated, asked for: real processes and shared memory, but no GPU', { driver: emulated }],
  ],
  devices: [
    ['unknown no driver could be asked', noDriver('x')],
    ['no the driver shows none', { devices: [] }, remedies.driver],
    [
      'no the driver shows none',
      { devices: [], process: processFacts({ environment: { CUDA_VISIBLE_DEVICES: '' } }) },
      'CUDA_VISIBLE_DEVICES hides them.',
    ],
  ],
  'device 0': [[`ok NVIDIA H100, 80 GiB, compute capability 9.0, ${A}`, device({})]],
  MIG: [
    ['ok device 0 is a slice of a GPU', device({ uuid: 'MIG-aaaa' }), remedies.mig],
    ['', device({ uuid: 'GPU-MIG-' })],
  ],
  'peer access': [
    [
      '',
      {
        devices: [
          { ...deviceA, peers: [B] },
          { ...deviceB, peers: [A] },
        ],
      },
    ],
    [
      '(no) device 1 cannot access the memory of device 0',
      { devices: [{ ...deviceA, peers: [B] }, deviceB] },
      remedies.peerAccess,
    ],
    [
      '(no) device 0 cannot access the memory of device 1',
      { devices: [deviceA, { ...deviceB, peers: [A] }] },
      remedies.peerAccess,
    ],
  ],
  'legacy handle': [
    ['', { handles: [{ of: 'of a pool', status: 0 }] }],
    [
      'ok none for memory of a pool, of MappedMemory (status 1, 801), by design',
      {
        handles: [
          { of: 'of a pool', status: 1 },
          { of: 'of ManagedMemory', status: 0 },
          { of: 'of MappedMemory', status: 801 },
        ],
      },
      remedies.noHandle,
    ],
  ],
  speed: [
    ['ok 64 MiB of the other process read at 1.0 GiB/s', read(GIB / 16, 62.5)],
    ['no 64 MiB of the other process read at 1.0 GiB/s', read(GIB / 16, 62.6), remedies.slow],
    [
      'ok 64 MiB of the other process read at 0.1 GiB/s, which says nothing about a GPU',
      { ...read(GIB / 16, 625), driver: emulated },
    ],
    ['', { throughput: undefined }],
  ],
  pool: [
    ['ok memory of a pool, by file descriptor: 9.9 ms', tried(9.94)],
    ['ok memory of a pool, by file descriptor: 10 ms', tried(10)],
    ['no refused', failed('pool', shm(0)), USE_ANOTHER],
  ],
  event: [
    ['unknown not tried: gone', tried(1)],
    ['unknown not tried: no answer', { probes: { results: [], reason: '' } }],
    ['no refused', failed('event', shm(2 ** 20 - 1)), remedies.sharedMemorySize],
    ['no refused', failed('event', { sharedMemory: undefined }), remedies.sharedMemorySize],
    ['no refused', failed('event', shm(2 ** 20)), USE_ANOTHER],
    ['no refused', failed('event', device({ computeMode: 2 })), remedies.computeMode],
    ['no refused', failed('event', { process: processFacts({ isWsl: true }) }), remedies.wsl],
  ],
};

describe('judge', () => {
  test('a machine on which all works has no finding but ok', () => {
    const findings = judge(machineFacts());
    assert.deepEqual([...new Set(findings.map(({ status }) => status))], ['ok']);
    assert.deepEqual(
      [...new Set(findings.map(({ group }) => group))],
      ['driver', 'devices', 'sharing', 'container', 'limits', 'libraries'],
    );
    assert.equal(findings.filter(({ group }) => group === 'sharing').length, PROBES.length + 1);
  });

  for (const [name, lines] of Object.entries(rows))
    test(`judges the ${name}`, () => {
      for (const [said, changes, remedy] of lines) {
        const facts = machineFacts(changes);
        const expected = [said.replace(' ', ` ${name} `), ...(remedy ? [`→ ${remedy}`] : [])];
        assert.deepEqual(linesOf(facts, name), said === '' ? [] : expected);
        assert.equal(
          isSound(judge(facts).filter((each) => each.name === name)),
          !/^no /.test(said),
        );
      }
    });
});

describe('describeFindings', () => {
  test('writes a heading for a group, a line for a finding, and its remedy below', () => {
    const common = { group: 'limits', isOptional: false, remedy: '' };
    const findings: Finding[] = [
      { ...common, name: 'a', status: 'ok', fact: 'fine' },
      { ...common, name: 'b', status: 'no', fact: 'bad', remedy: 'mend it' },
      { ...common, group: 'libraries', name: 'c', status: 'no', fact: 'none', isOptional: true },
    ];
    assert.deepEqual(describeFindings(findings), [
      'limits',
      '  ok       a              fine',
      '  no       b              bad',
      '                          → mend it',
      '',
      'libraries',
      '  (no)     c              none',
    ]);
  });
});
