/** What the doctor says of a driver, its devices and what was tried: machine.test.ts has all other rules. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { describeFindings, type Finding } from '../../../../../src/cli/doctor/finding.ts';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { judge, type MachineFacts } from '../../../../../src/cli/doctor/rules.ts';
import { type Line, textOf } from '../../../../../src/cli/text.ts';
import { PROBES } from '../../../../../src/ipc/inspect/probes.ts';
import { deviceA, deviceB, machineFacts, processFacts } from './facts.ts';

/** The lines, with one space for several. */
const linesOf = (facts: MachineFacts): string[] =>
  describeFindings(judge(facts)).map((line) => plain(line).trim().replace(/ +/g, ' '));

const plain = (line: Line): string => (typeof line === 'string' ? line : line.map(textOf).join(''));

const noDriver = (error: string): Partial<MachineFacts> => ({
  driver: { name: undefined, version: undefined, reason: '', error },
});
const device = (changes: Partial<typeof deviceA>): Partial<MachineFacts> => ({
  devices: [{ ...deviceA, ...changes }],
});
const read = (ms: number): Partial<MachineFacts> => ({ throughput: { byteLength: 64 << 20, ms } });
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

const withPeers = (a: string[], b: string[]): Partial<MachineFacts> => ({
  devices: [
    { ...deviceA, peers: a },
    { ...deviceB, peers: b },
  ],
});
const handles = (...statuses: number[]): Partial<MachineFacts> => ({
  handles: statuses.map((status, at) => ({ of: ['of A', 'of B', 'of C'][at] ?? '', status })),
});
const LIBCUDA = 'no CUDA driver (libcuda.so.1) was found';
const HIDDEN = processFacts({ environment: { CUDA_VISIBLE_DEVICES: '' } });
const EXCLUSIVE = { ...deviceB, computeMode: 2 };
const WSL = processFacts({ isWsl: true });
const SPEED = 'speed 64 MiB of the other process read at';
const POOL = 'pool memory of a pool, by file descriptor:';

/** Facts that differ from those of a machine on which all works, the line or the name that has none, and the remedy or its name. */
const rows: readonly (readonly [Partial<MachineFacts>, said: string, remedy?: string])[] = [
  [noDriver(`${LIBCUDA}. Tried:\n  x: y\nInstall it.`), `no GPU driver ${LIBCUDA}`, 'driver'],
  [noDriver('cuInit (999)\nMore.\n Check dmesg.'), 'no GPU driver cuInit (999)', 'Check dmesg.'],
  [noDriver('cuInit (999)'), 'no GPU driver cuInit (999)', 'driver'],
  [{}, 'ok driver /usr/lib/libcuda.so.1 (a GPU is here)'],
  [
    { driver: emulated },
    'ok driver emulated, asked for: real processes and shared memory, but no GPU',
  ],
  [noDriver('x'), 'CUDA'],
  [noDriver('x'), 'unknown devices no driver could be asked'],
  [{ devices: [] }, 'no devices the driver shows none', 'driver'],
  [
    { devices: [], process: HIDDEN },
    'no devices the driver shows none',
    'CUDA_VISIBLE_DEVICES hides them.',
  ],
  [device({}), `ok device 0 NVIDIA H100, 80 GiB, compute capability 9.0, ${A}`],
  [device({ uuid: 'MIG-aaaa' }), 'ok MIG device 0 is a slice of a GPU', 'mig'],
  [device({ uuid: 'GPU-MIG-' }), 'MIG'],
  [withPeers([B], [A]), 'peer access'],
  [
    withPeers([B], []),
    '(no) peer access device 1 cannot access the memory of device 0',
    'peerAccess',
  ],
  [
    withPeers([], [A]),
    '(no) peer access device 0 cannot access the memory of device 1',
    'peerAccess',
  ],
  [handles(0), 'legacy handle'],
  [
    handles(1, 0, 801),
    'ok legacy handle none for memory of A, of C (status 1, 801), by design',
    'noHandle',
  ],
  [read(62.5), `ok ${SPEED} 1.0 GiB/s`],
  [read(62.51), `no ${SPEED} 1.0 GiB/s`, 'slow'],
  [{ ...read(625), driver: emulated }, `ok ${SPEED} 0.1 GiB/s, which says nothing about a GPU`],
  [{ throughput: undefined }, 'speed'],
  [tried(9.94), `ok ${POOL} 9.9 ms`],
  [tried(10), `ok ${POOL} 10 ms`],
  [tried(1), 'unknown event not tried: gone'],
  [{ probes: { results: [], reason: '' } }, 'unknown event not tried: no answer'],
  [failed('pool', shm(0)), 'no pool refused', USE_ANOTHER],
  [failed('event', shm(2 ** 20 - 1)), 'no event refused', 'sharedMemorySize'],
  [failed('event', shm(2 ** 20)), 'no event refused', USE_ANOTHER],
  [failed('event', { sharedMemory: undefined }), 'no event refused', 'sharedMemorySize'],
  [failed('event', { devices: [deviceA, EXCLUSIVE] }), 'no event refused', 'computeMode'],
  [failed('event', { process: WSL }), 'no event refused', 'wsl'],
];

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

  for (const [changes, said, remedy] of rows)
    test(said, () => {
      const lines = linesOf(machineFacts(changes));
      const at = lines.indexOf(said);
      if (!/^(ok|no|\(no\)|unknown) /.test(said))
        return assert.ok(!lines.some((line) => line.includes(` ${said} `)));
      assert.notEqual(at, -1, lines.join('\n'));
      const next = lines[at + 1]?.startsWith('→ ') ? lines[at + 1]?.slice(2) : undefined;
      assert.equal(next, remedies[remedy as keyof typeof remedies] ?? remedy);
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
    const lines = describeFindings(findings);
    assert.deepEqual(lines.map(plain), [
      'limits',
      '  ok       a              fine',
      '  no       b              bad',
      '                          → mend it',
      '',
      'libraries',
      '  (no)     c              none',
    ]);
    const styles = (line: Line | undefined) =>
      typeof line === 'object' && line.map((part) => typeof part === 'object' && part.style);
    assert.deepEqual([lines[0], lines[1], lines[2], lines[6]].map(styles), [
      ['heading'],
      ['good', 'good', false],
      ['bad', 'bad', false],
      ['faint', 'faint', false],
    ]);
  });
});
