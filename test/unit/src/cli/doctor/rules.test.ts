import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { describeFindings, type Finding, isSound } from '../../../../../src/cli/doctor/finding.ts';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { judge, type MachineFacts } from '../../../../../src/cli/doctor/rules.ts';
import { PROBES } from '../../../../../src/ipc/inspect/probes.ts';
import type { ProcessFacts } from '../../../../../src/ipc/inspect/process-facts.ts';
import { deviceA, deviceB, machineFacts, processFacts } from './facts.ts';

const named = (facts: MachineFacts, name: string): Finding | undefined =>
  judge(facts).find((found) => found.name === name);
const withProcess = (changes: Partial<ProcessFacts>): MachineFacts =>
  machineFacts({ process: processFacts(changes) });

describe('judge', () => {
  test('a machine on which all works has no finding but ok', () => {
    const findings = judge(machineFacts());
    assert.deepEqual(
      findings.filter(({ status }) => status !== 'ok'),
      [],
    );
    assert.ok(isSound(findings));
    assert.deepEqual(
      [...new Set(findings.map(({ group }) => group))],
      ['driver', 'devices', 'sharing', 'container', 'limits', 'libraries'],
    );
  });

  /** A cause, the name of the finding, its status, and whether it costs the exit code. */
  const causes: readonly (readonly [
    cause: string,
    facts: MachineFacts,
    name: string,
    expected: readonly [status: Finding['status'], isOptional: boolean, remedy: string],
  ])[] = [
    [
      'no driver',
      machineFacts({
        driver: {
          name: undefined,
          version: undefined,
          reason: '',
          error: 'no CUDA driver (libcuda.so.1) was found. Tried:\n  x: y\nInstall it.',
        },
      }),
      'GPU driver',
      ['no', false, remedies.driver],
    ],
    [
      'a broken driver',
      machineFacts({
        driver: {
          name: undefined,
          version: undefined,
          reason: '',
          error: 'cuInit failed: unknown error (CUDA_ERROR_UNKNOWN, 999)\nCheck dmesg.',
        },
      }),
      'GPU driver',
      ['no', false, 'Check dmesg.'],
    ],
    ['no device', machineFacts({ devices: [] }), 'devices', ['no', false, remedies.driver]],
    [
      'a compute mode for one process',
      machineFacts({ devices: [{ ...deviceA, computeMode: 3 }] }),
      'compute mode',
      ['no', false, remedies.computeMode],
    ],
    [
      'a MIG slice',
      machineFacts({ devices: [{ ...deviceA, uuid: 'MIG-aaaa' }] }),
      'MIG',
      ['ok', false, remedies.mig],
    ],
    [
      'another GPU without peer access',
      machineFacts({ devices: [{ ...deviceA, peers: [deviceB.uuid] }, deviceB] }),
      'peer access',
      ['no', true, remedies.peerAccess],
    ],
    [
      'memory without a handle',
      machineFacts({
        handles: [
          { of: 'of a pool', status: 1 },
          { of: 'of ManagedMemory', status: 1 },
        ],
      }),
      'legacy handle',
      ['ok', false, remedies.noHandle],
    ],
    [
      'a fall-back to TCP',
      machineFacts({ throughput: { byteLength: 64 << 20, ms: 200 } }),
      'speed',
      ['no', false, remedies.slow],
    ],
    [
      'expandable segments of PyTorch',
      withProcess({ environment: { PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True' } }),
      'PYTORCH_CUDA_ALLOC_CONF',
      [
        'no',
        false,
        `Tensors of such memory have no legacy handle (status 1). ${remedies.expandableSegments}`,
      ],
    ],
    [
      'Yama without SYS_PTRACE',
      machineFacts({
        ptraceScope: 1,
        process: processFacts({ capabilities: '00000000a80425fb' }),
      }),
      'pidfd_getfd',
      ['no', true, remedies.ptrace],
    ],
    [
      'no /dev/shm',
      withProcess({ sharedMemory: undefined }),
      '/dev/shm',
      ['no', false, remedies.sharedMemorySize],
    ],
    [
      'a full /dev/shm',
      machineFacts({ sharedMemory: { byteLength: 64 << 20, free: 4096 } }),
      '/dev/shm',
      ['no', false, remedies.sharedMemorySize],
    ],
    ['WSL', withProcess({ isWsl: true }), 'WSL', ['no', false, remedies.wsl]],
    [
      'no IMEX channel',
      machineFacts({ fabric: { hasDriver: true, channels: 0 } }),
      'fabric handles',
      ['no', true, remedies.fabric],
    ],
    [
      'MPS without its daemon',
      withProcess({ environment: { CUDA_MPS_PIPE_DIRECTORY: '/tmp/nvidia-mps' } }),
      'MPS',
      ['no', false, remedies.mps],
    ],
    [
      'MPS in another ipc namespace',
      machineFacts({ mps: { pipeDirectory: '/x', hasControl: true, daemonIpcNamespace: 99 } }),
      'MPS',
      ['no', false, remedies.mps],
    ],
    [
      'MPS whose daemon is not seen',
      machineFacts({
        mps: { pipeDirectory: '/x', hasControl: true, daemonIpcNamespace: undefined },
      }),
      'MPS',
      ['unknown', false, remedies.mps],
    ],
    [
      'a container whose programs have pid 1',
      machineFacts({ container: 'yes: /.dockerenv', process: processFacts({ pid: 1 }) }),
      'own pid',
      ['ok', false, `Plain memory and events fail between equal numbers. ${remedies.pidNamespace}`],
    ],
    [
      'hidden devices',
      withProcess({ environment: { CUDA_VISIBLE_DEVICES: '-1' } }),
      'CUDA_VISIBLE_DEVICES',
      ['no', false, 'It hides every GPU: unset it, or name devices.'],
    ],
    [
      'few descriptors',
      withProcess({ limits: { descriptors: { soft: 256, hard: 4096 } } }),
      'descriptors',
      [
        'no',
        false,
        'Raise it (ulimit -n 65536): pools, virtual memory and connections need some each.',
      ],
    ],
    [
      'descriptors that are used up',
      withProcess({ openDescriptors: 60_000 }),
      'descriptors',
      [
        'no',
        false,
        'Raise it (ulimit -n 65536): pools, virtual memory and connections need some each.',
      ],
    ],
    [
      'a library that is missing',
      machineFacts({ libraries: [{ name: 'NCCL', found: undefined, remedy: 'Install it.' }] }),
      'NCCL',
      ['no', true, 'Install it.'],
    ],
  ];
  for (const [cause, facts, name, [status, isOptional, remedy]] of causes)
    test(`finds ${cause}`, () => {
      const found = named(facts, name);
      assert.deepEqual(
        [found?.status, found?.isOptional, found?.remedy],
        [status, isOptional, remedy],
      );
      assert.equal(isSound(judge(facts)), status !== 'no' || isOptional);
    });

  test('what was not tried is unknown, and what failed says why', () => {
    const none = judge(machineFacts({ probes: { results: [], reason: 'no second process' } }));
    const sharing = none.filter(({ group, name }) => group === 'sharing' && name !== 'speed');
    assert.equal(sharing.length, PROBES.length);
    for (const { status, fact } of sharing)
      assert.deepEqual([status, fact], ['unknown', 'not tried: no second process']);
    const results = [
      { name: 'event', ok: false, ms: undefined, code: 'ipc-failed', reason: 'refused\nmore' },
    ] as const;
    const facts = machineFacts({
      probes: { results, reason: '' },
      sharedMemory: { byteLength: 0, free: 0 },
    });
    const event = named(facts, 'event');
    assert.deepEqual(
      [event?.status, event?.fact, event?.remedy],
      ['no', 'refused', remedies.sharedMemorySize],
    );
  });

  test('speed says nothing with the emulated driver', () => {
    const driver = { name: 'emulated', version: '13.0', reason: 'asked for', error: '' };
    const facts = machineFacts({ driver, throughput: { byteLength: 64 << 20, ms: 9000 } });
    assert.equal(named(facts, 'speed')?.status, 'ok');
    assert.match(String(named(facts, 'driver')?.fact), /^emulated, asked for: .* no GPU$/);
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
