/** What `cuffi doctor` prints about machines: each rule at both sides of its limit. */
import assert from 'node:assert/strict';
import { after, describe, mock, test } from 'node:test';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { runDoctor } from '../../../../../src/cli/doctor-command.ts';
import { emulate } from '../../emulate.ts';
import { type Changes, fakeMachine, OTHER_PID } from './fake-machine.ts';

/** The lines, with one space for several, and whether all that sharing needs works. */
async function doctor(changes: Changes, args: readonly string[]) {
  using machine = fakeMachine(changes);
  const { mock: log } = mock.method(console, 'log', () => {});
  try {
    const ok = await runDoctor(args, machine);
    const lines = log.calls.map(({ arguments: [line] }) => String(line).trim().replace(/ +/g, ' '));
    return { ok, lines };
  } finally {
    log.restore();
  }
}

/**
 * What is printed behind a name, on which machine, the remedy if it is another than that of the name, and
 * the kinds that don't work then.
 */
type Row = readonly [said: string, changes?: Changes, remedy?: string | undefined, kinds?: string];

/** A test of the line of a name. Only `no` without parentheses fails; what is ok needs no remedy. */
const judges = (args: readonly string[], name: string, usual: string, ...rows: Row[]): unknown =>
  test(`judges ${name}`, async () => {
    for (const [said, changes = {}, remedy, kinds = 'none'] of rows) {
      const { ok, lines } = await doctor(changes, args);
      const line = said.replace(' ', ` ${name} `);
      const at = lines.indexOf(line);
      assert.notEqual(at, -1, `${line}\nis not in\n${lines.join('\n')}`);
      const next = lines[at + 1] ?? '';
      const expected = remedy ?? (said.startsWith('ok ') ? '' : usual);
      assert.equal(next.startsWith('→ ') ? next.slice(2) : '', expected, line);
      assert.equal(ok, !said.startsWith('no '), line);
      const verdict = args.includes('--with')
        ? `Works: none. Does not: ${kinds}. Unknown: `
        : ok
          ? 'All works, with the emulated driver: this says nothing about a GPU.'
          : 'Something does not work: see the lines with no.';
      assert.equal(lines.at(-1)?.slice(0, verdict.length), verdict, line);
    }
  });

const file = (path: string, text = ''): Changes => ({ files: { [path]: text } });
const env = (name: string, value: string): Changes => ({ env: { [name]: value } });
const files = (soft: number | string, hard: number | string, open = 4): Changes => ({
  limits: { 'Max open files': [soft, hard] },
  open,
});
const locked = (soft: number | string, hard: number | string): Changes => ({
  limits: { 'Max locked memory': [soft, hard] },
});
const blocks = (size: number, count: number, free: number): Changes => ({
  blocks: [size, count, free],
});
/** Yama's scope, and the effective capabilities. */
const yama = (scope: number, CapEff = '0000000000000000'): Changes => ({
  ...file('/proc/sys/kernel/yama/ptrace_scope', `${scope}\n`),
  status: { CapEff },
});
const HELD = '0000000000080000';
const NOT_HELD = '000001fffff7ffff';
const pid = (number: number, mark: string): Changes => ({
  status: { NSpid: `31\t${number}` },
  ...file(mark),
});
const MICROSOFT = file('/proc/version', 'Linux version 5.15.0-Microsoft\n');
const imex = (...channels: string[]): Changes => ({
  files: {
    '/proc/devices': 'Character devices:\n508 nvidia-caps-imex-channels\n',
    ...Object.fromEntries(channels.map((each) => [`/dev/nvidia-caps-imex-channels/${each}`, ''])),
  },
});
const daemon = (name: string, ipc: number): Changes => ({
  files: {
    '/tmp/nvidia-mps/control': '',
    '/proc/600/comm': `${name}\n`,
    '/proc/600/ns/ipc': `-> ipc:[${ipc}]`,
  },
});
const PYTHON = `#!/bin/sh
printf '%s\\n' 'python 3.11.7' 'torch 2.5.1' 'cuda-core 0.3.0' 'nccl /site/nvidia/nccl'
`;
const OF_PYTHON = '/site/nvidia/nccl/lib/libnccl.so.2';
const OF_SYSTEM = '/usr/lib64/libnccl.so.2';

describe('cuffi doctor', () => {
  /** Nothing is shared with a device that is not there, which takes no second process. */
  const NO_DEVICE = ['--device', '9'];
  const judge = judges.bind(undefined, NO_DEVICE);

  judge(
    'descriptors',
    'Raise it (ulimit -n 65536): pools, virtual memory and connections need some each.',
    ['no 4 open, at most 1023 (hard limit 4096)', files(1023, 4096)],
    ['ok 4 open, at most 1024 (hard limit 4096)', files(1024, 4096)],
    ['ok 4 open, at most unlimited (hard limit none)', files('unlimited', 'unlimited')],
    ['ok 1024 open, at most 1280 (hard limit none)', files(1280, 'unlimited', 1024)],
    ['no 1025 open, at most 1280 (hard limit none)', files(1280, 'unlimited', 1025)],
    ['unknown the limit could not be read', file('/proc/self/limits'), ''],
  );
  const NOT_COUNTED = "CUDA's pinned memory is not counted; RDMA is (ulimit -l unlimited).";
  judge(
    'locked memory',
    '',
    ['ok 64 KiB', locked(65_536, 'unlimited'), NOT_COUNTED],
    ['ok unlimited', locked('unlimited', 'unlimited')],
    ['unknown it could not be read', file('/proc/self/limits')],
  );
  judge(
    '/dev/shm',
    remedies.sharedMemorySize,
    ['ok device 27, 1 MiB free of 64 MiB', blocks(4096, 16_384, 256)],
    ['no device 27, 1020 KiB free of 64 MiB', blocks(4096, 16_384, 255)],
    ['ok device 3, 1 GiB free of 2 GiB', { ...blocks(65_536, 32_768, 16_384), device: 3 }],
    ['no there is none: events cannot be shared', { files: { '/dev/shm/.keep': undefined } }],
  );
  judge(
    'pidfd_getfd',
    remedies.ptrace,
    ['ok Yama absent, SYS_PTRACE not held'],
    ['ok Yama 0, SYS_PTRACE not held', yama(0, NOT_HELD)],
    ['(no) Yama 1, SYS_PTRACE not held', yama(1, NOT_HELD)],
    ['ok Yama 1, SYS_PTRACE held', yama(1, HELD)],
    ['(no) Yama 2, SYS_PTRACE not held', yama(2, NOT_HELD)],
    ['ok Yama 2, SYS_PTRACE held', yama(2, HELD)],
    ['(no) Yama 3, SYS_PTRACE held', yama(3, HELD), remedies.yama],
    ['unknown Yama 1, SYS_PTRACE unknown', yama(1, '')],
  );
  judge(
    'container',
    '',
    ['ok no sign of one'],
    ['ok yes: /.dockerenv', file('/.dockerenv')],
    ['ok yes: /run/.containerenv', file('/run/.containerenv')],
    ['ok yes: Kubernetes', env('KUBERNETES_SERVICE_HOST', '')],
    ['ok yes: kubepods (cgroup of process 1)', file('/proc/1/cgroup', '0::/kubepods/pod3\n')],
    ['ok yes: docker (cgroup of process 1)', file('/proc/1/cgroup', '1:cpu:/docker/a\n')],
    ['ok no sign of one', { files: { '/proc/1/cgroup': undefined } }],
  );
  const EQUAL_PIDS = `Plain memory and events fail between equal numbers. ${remedies.pidNamespace}`;
  judge(
    'own pid',
    '',
    [
      'ok 99: other containers have a process of that number too',
      pid(99, '/.dockerenv'),
      EQUAL_PIDS,
    ],
    ['ok 100', pid(100, '/.dockerenv')],
    ['ok 99', pid(99, '/etc/hostname')],
  );
  judge(
    'namespaces',
    '',
    ['ok pid 4026531836, ipc 4026531839, mnt 5', { namespaces: { mnt: 5 } }],
    ['unknown pid ?, ipc 4026531839, mnt 4026531841', file('/proc/self/ns/pid')],
  );
  judge('WSL', remedies.wsl, ['ok this is not WSL'], ['no WSL has no CUDA IPC', MICROSOFT]);
  judge(
    'fabric handles',
    remedies.fabric,
    ['(no) no IMEX channels'],
    ['(no) the driver knows IMEX, but there is no channel', imex()],
    ['ok 1 IMEX channel', imex('channel0')],
    ['ok 2 IMEX channels', imex('channel0', 'channel7')],
  );
  judge(
    'MPS',
    remedies.mps,
    ['no /tmp/mine has no control pipe', env('CUDA_MPS_PIPE_DIRECTORY', '/tmp/mine')],
    ['ok /tmp/nvidia-mps, in this ipc namespace', daemon('nvidia-cuda-mps', 4026531839)],
    ['no its daemon is in another ipc namespace', daemon('nvidia-cuda-mps', 4026531836)],
    ['unknown /tmp/nvidia-mps; its daemon is not seen here', daemon('nvidia-smi', 4026531839)],
  );
  const variable = (name: string, remedy: string, ...rows: [said: string, remedy?: string][]) =>
    judge(
      name,
      remedy,
      ...rows.map(
        ([said, other]): Row => [said, env(name, said.replace(/^\S+ (\(empty\))?/, '')), other],
      ),
    );
  variable(
    'CUDA_VISIBLE_DEVICES',
    'It hides every GPU: unset it, or name devices.',
    ['no (empty)'],
    ['no -1,0'],
    ['no none'],
    ['ok 1,-1', 'Ordinals are counted in this list: compare UUIDs with the other process.'],
  );
  const SEGMENTS = `Tensors of such memory have no legacy handle (status 1). ${remedies.expandableSegments}`;
  variable('PYTORCH_ALLOC_CONF', SEGMENTS, ['no expandable_segments: True']);
  variable('PYTORCH_CUDA_ALLOC_CONF', SEGMENTS, ['ok expandable_segments:False']);
  const LAUNCHES = 'Each launch waits for its kernel: for finding faults only.';
  variable('CUDA_LAUNCH_BLOCKING', '', ['ok 1', LAUNCHES], ['ok 0']);
  const UNASKED = 'cuffi ls and cuffi doctor --with cannot ask processes started like this one.';
  variable('CUFFI_INSPECT', '', ['ok 0', UNASKED], ['ok 1']);
  variable('NCCL_P2P_DISABLE', '', ['ok 1', 'NCCL copies through the host.'], ['ok 0']);

  judge(
    'Python',
    'Only spawnPython() needs it: CUFFI_PYTHON names an interpreter.',
    ['(no) not found'],
    ['(no) not found', file('/python', `${PYTHON}exit 1\n`)],
  );
  judge('Python packages', '', ['ok torch 2.5.1, cuda-core 0.3.0', file('/python', PYTHON)]);
  judge(
    'NCCL',
    'Only collectives of other libraries need it: pip install nvidia-nccl-cu13, or -cu12 for CUDA 12.',
    ['(no) not found', file('/python', PYTHON)],
    [`ok ${OF_PYTHON}`, { files: { '/python': PYTHON, [OF_PYTHON]: '', [OF_SYSTEM]: '' } }],
    [`ok ${OF_SYSTEM}`, { files: { '/python': PYTHON, [OF_SYSTEM]: '' } }],
    ['ok /b/libnccl.so.2', { ...env('LD_LIBRARY_PATH', '/a:/b'), ...file('/b/libnccl.so.2') }],
  );

  test('judges the compute mode of each device, as the driver reports it', async () => {
    after(() => emulate());
    for (const [mode, ...said] of [[0], [2, 'prohibited'], [3, 'exclusive to one process']]) {
      emulate({ CUFFI_EMULATED_ATTRIBUTES: `20=${mode}`, CUFFI_EMULATED_DEVICES: '2' });
      const { ok, lines } = await doctor({}, NO_DEVICE);
      const found = lines.filter((line) => /compute mode|peer access/.test(line));
      assert.equal(ok, mode === 0);
      assert.deepEqual(
        found,
        said.flatMap((word) => [0, 1].map((each) => `no compute mode device ${each}: ${word}`)),
      );
    }
  });

  test('says nothing about MPS on a machine without it', async () => {
    const { lines } = await doctor(file('/proc/600/comm', 'nvidia-cuda-mps\n'), NO_DEVICE);
    assert.ok(!lines.some((line) => line.includes(' MPS ')));
  });
});

describe('cuffi doctor --with', () => {
  const WITH = ['--with', String(OTHER_PID)];
  const compare = judges.bind(undefined, WITH);
  const there = (changes: Changes, here: Changes = {}): Changes => ({
    ...here,
    there: changes,
  });
  const both = (changes: Changes): Changes => ({ ...changes, there: changes });
  const ON_DEVICE = 'plain memory, pool, virtual memory, read-only, event';
  const MPS = env('CUDA_MPS_PIPE_DIRECTORY', '/tmp/nvidia-mps');

  const ANOTHER = there({ status: { Uid: '1000\t1001\t1000\t1000' } });
  compare(
    'user',
    remedies.otherUser,
    ['ok the same: 1000', there({ status: { Uid: '1001\t1000\t0\t0' } })],
    ['no here 1000, there 1001', ANOTHER, undefined, `${ON_DEVICE}, timeline`],
  );
  const SAME_NUMBER = { status: { NSpid: '9\t4711' } };
  compare(
    'pid namespace',
    remedies.pidNamespace,
    ['ok the same: 4026531836'],
    ['ok the same: 4026531836', there(SAME_NUMBER)],
    ['(no) here 4026531836, there 4', there({ namespaces: { pid: 4 } })],
    ['unknown here 4026531836, there ?', file(`/proc/${OTHER_PID}/ns/pid`), ''],
  );
  compare('pid number', remedies.pidNamespace, [
    'no both are process 4711 in their pid namespaces, so the driver takes one for the other (status 201)',
    there({ ...SAME_NUMBER, namespaces: { pid: 4 } }),
    undefined,
    'plain memory, event',
  ]);
  compare(
    '/dev/shm',
    remedies.sharedMemory,
    ['ok the same: 27'],
    ['no here 27, there 28', there({ device: 28 }), undefined, 'event'],
  );
  compare(
    'WSL',
    remedies.wsl,
    ['ok neither is in WSL'],
    ['no WSL has no CUDA IPC', MICROSOFT, undefined, ON_DEVICE],
  );
  const IPC = { namespaces: { ipc: 5 } };
  compare(
    'ipc namespace',
    remedies.mps,
    ['ok the same: 4026531839', both(MPS)],
    ['ok here 4026531839, there 5; only MPS needs one', there(IPC)],
    ['no here 4026531839, there 5', there({ ...IPC, ...MPS }), undefined, ON_DEVICE],
    ['no here 4026531839, there 5', there(IPC, MPS), undefined, ON_DEVICE],
  );
  compare(
    'net namespace',
    "Names with '@' do not reach the other: listen at a path in a folder that both see.",
    ['ok the same: 4026531840'],
    ['(no) here 4026531840, there 6', there({ namespaces: { net: 6 } })],
  );
  const UNKNOWN = there({ status: { CapEff: '' } }, yama(1, HELD));
  compare(
    'pidfd_getfd',
    remedies.ptrace,
    ['ok Yama does not restrict it', yama(0)],
    ['(no) Yama 1, SYS_PTRACE here not held, there not held', yama(1)],
    ['(no) Yama 1, SYS_PTRACE here held, there not held', yama(1, HELD)],
    ['ok both hold SYS_PTRACE', both(yama(2, HELD))],
    ['unknown Yama 1, SYS_PTRACE here held, there unknown', UNKNOWN],
    ['(no) Yama 3, SYS_PTRACE here held, there held', both(yama(3, HELD)), remedies.yama],
  );
  const EXPANDABLE = env('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True');
  const segments = (place: string): string =>
    `(no) expandable segments ${place}: such tensors have no legacy handle (status 1)`;
  compare(
    'PyTorch',
    remedies.expandableSegments,
    [segments('there'), there(EXPANDABLE)],
    [segments('here'), EXPANDABLE],
    [segments('here and there'), both(EXPANDABLE)],
  );

  test('names both processes, and where its facts come from', async () => {
    const { ok, lines } = await doctor({}, WITH);
    assert.equal(ok, true);
    assert.match(
      String(lines[0]),
      /^process 815 \(server\.mjs\), by \/proc, and this process 4711 /,
    );
    assert.ok(!lines.some((line) => line.includes('PyTorch')));
  });

  test('a process that is not there, or is this one, cannot be compared', async () => {
    const zombie = file(`/proc/${OTHER_PID}/stat`, '815 (a) Z 1 1\n');
    for (const [number, message, changes] of [
      ['4711', '4711 is the process of this command'],
      ['4194302', 'there is no process 4194302 that is seen here'],
      [String(OTHER_PID), 'there is no process 4194303 that is seen here', zombie],
    ] as const)
      await assert.rejects(doctor(changes ?? {}, ['--with', number]), { message });
  });
});
