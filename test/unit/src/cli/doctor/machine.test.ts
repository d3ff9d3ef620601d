/** What `cuffi doctor` prints about machines: each rule at both sides of its limit. */
import assert from 'node:assert/strict';
import { after, describe, mock, test } from 'node:test';
import { gatherExporter } from '../../../../../src/cli/doctor/pair.ts';
import { judgePair } from '../../../../../src/cli/doctor/pair-rules.ts';
import { remedies } from '../../../../../src/cli/doctor/remedies.ts';
import { runDoctor } from '../../../../../src/cli/doctor-command.ts';
import { Device } from '../../../../../src/device.ts';
import type { IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { factsFromProc } from '../../../../../src/ipc/inspect/process-facts.ts';
import { emulate } from '../../emulate.ts';
import { fakeMachine, OTHER_PID } from './fake-machine.ts';

/** What differs from a machine on which all works, what is printed then, and the name of its remedy. */
const MACHINES = `
limits Max open files = 1023 4096 | no descriptors 4 open, at most 1023 (hard limit 4096) | raise
limits Max open files = 1024 4096 | ok descriptors 4 open, at most 1024 (hard limit 4096)
limits Max open files = 1280 unlimited; fd = 1024 | ok descriptors 1024 open, at most 1280 (hard limit none)
limits Max open files = 1280 unlimited; fd = 1025 | no descriptors 1025 open, at most 1280 (hard limit none) | raise
limits Max open files = unlimited unlimited | ok descriptors 4 open, at most unlimited (hard limit none)
/proc/self/limits = | unknown descriptors the limit could not be read
limits Max locked memory = 65536 unlimited | ok locked memory 64 KiB | notCounted
limits Max locked memory = unlimited unlimited | ok locked memory unlimited
/proc/self/limits = | unknown locked memory it could not be read
shm = 4096 16384 256 | ok /dev/shm device 27, 1 MiB free of 64 MiB
shm = 4096 16384 255 | no /dev/shm device 27, 1020 KiB free of 64 MiB | sharedMemorySize
shm = 65536 32768 16384; device = 3 | ok /dev/shm device 3, 1 GiB free of 2 GiB
/dev/shm/.keep = - | no /dev/shm there is none: events cannot be shared | sharedMemorySize
YAMA = 0; CAP = 000001fffff7ffff | ok pidfd_getfd Yama 0, SYS_PTRACE not held
YAMA = 1; CAP = 000001fffff7ffff | (no) pidfd_getfd Yama 1, SYS_PTRACE not held | ptrace
YAMA = 1; CAP = 0000000000080000 | ok pidfd_getfd Yama 1, SYS_PTRACE held
YAMA = 2; CAP = 000001fffff7ffff | (no) pidfd_getfd Yama 2, SYS_PTRACE not held | ptrace
YAMA = 2; CAP = 0000000000080000 | ok pidfd_getfd Yama 2, SYS_PTRACE held
YAMA = 3; CAP = 0000000000080000 | (no) pidfd_getfd Yama 3, SYS_PTRACE held | yama
YAMA = 1; CAP = | unknown pidfd_getfd Yama 1, SYS_PTRACE unknown | ptrace
YAMA = - | ok pidfd_getfd Yama absent, SYS_PTRACE not held
/.dockerenv = | ok container yes: /.dockerenv
/run/.containerenv = | ok container yes: /run/.containerenv
env KUBERNETES_SERVICE_HOST = | ok container yes: Kubernetes
/proc/1/cgroup = 0::/kubepods/pod3 | ok container yes: kubepods (cgroup of process 1)
/proc/1/cgroup = 1:cpu:/docker/a | ok container yes: docker (cgroup of process 1)
/proc/1/cgroup = - | ok container no sign of one
status NSpid = 31 99; /.dockerenv = | ok own pid 99: other containers have a process of that number too | equalPids
status NSpid = 31 100; /.dockerenv = | ok own pid 100
status NSpid = 31 99 | ok own pid 99
ns mnt = 7 | ok namespaces pid 1, ipc 2, mnt 7
/proc/self/ns/pid = | unknown namespaces pid ?, ipc 2, mnt 3
/proc/version = Linux version 6.8.0-generic | ok WSL this is not WSL
/proc/version = Linux version 5.15.0-Microsoft | no WSL WSL has no CUDA IPC | wsl
/proc/devices = 195 nvidia | (no) fabric handles no IMEX channels | fabric
/proc/devices = 508 nvidia-caps-imex-channels | (no) fabric handles the driver knows IMEX, but there is no channel | fabric
IMEX/channel0 = | ok fabric handles 1 IMEX channel
IMEX/channel0 = ; IMEX/channel7 = | ok fabric handles 2 IMEX channels
env CUDA_MPS_PIPE_DIRECTORY = /tmp/mine | no MPS /tmp/mine has no control pipe | mps
MPS = ; /proc/6/comm = nvidia-cuda-mps; /proc/6/ns/ipc = -> ipc:[2] | ok MPS /tmp/nvidia-mps, in this ipc namespace
MPS = ; /proc/6/comm = nvidia-cuda-mps; /proc/6/ns/ipc = -> ipc:[1] | no MPS its daemon is in another ipc namespace | mps
MPS = ; /proc/6/comm = nvidia-smi; /proc/6/ns/ipc = -> ipc:[2] | unknown MPS /tmp/nvidia-mps; its daemon is not seen here | mps
env CUDA_VISIBLE_DEVICES = | no CUDA_VISIBLE_DEVICES (empty) | hidden
env CUDA_VISIBLE_DEVICES = -1,0 | no CUDA_VISIBLE_DEVICES -1,0 | hidden
env CUDA_VISIBLE_DEVICES = none | no CUDA_VISIBLE_DEVICES none | hidden
env CUDA_VISIBLE_DEVICES = 1,-1 | ok CUDA_VISIBLE_DEVICES 1,-1 | listed
env PYTORCH_ALLOC_CONF = expandable_segments: True | no PYTORCH_ALLOC_CONF expandable_segments: True | noHandle
env PYTORCH_CUDA_ALLOC_CONF = expandable_segments:False | ok PYTORCH_CUDA_ALLOC_CONF expandable_segments:False
env CUDA_LAUNCH_BLOCKING = 1 | ok CUDA_LAUNCH_BLOCKING 1 | launches
env CUDA_LAUNCH_BLOCKING = 0 | ok CUDA_LAUNCH_BLOCKING 0
env CUFFI_INSPECT = 0 | ok CUFFI_INSPECT 0 | unasked
env CUFFI_INSPECT = 1 | ok CUFFI_INSPECT 1
env NCCL_P2P_DISABLE = 1 | ok NCCL_P2P_DISABLE 1 | throughHost
env NCCL_P2P_DISABLE = 0 | ok NCCL_P2P_DISABLE 0
/python = - | (no) Python not found | python
/python = #!/bin/sh\\necho python 3.11.7\\nexit 1 | (no) Python not found | python
fd = 4 | ok Python packages torch 2.5.1, jax 0.4
fd = 4 | (no) NCCL not found | nccl
/site/nvidia/nccl/lib/libnccl.so.2 = ; SYSTEM = | ok NCCL /site/nvidia/nccl/lib/libnccl.so.2
SYSTEM = | ok NCCL /usr/lib64/libnccl.so.2
env LD_LIBRARY_PATH = /a:/b; /b/libnccl.so.2 = ; SYSTEM = | ok NCCL /b/libnccl.so.2`;

/** The same for two processes, and which kinds don't work between them. */
const PAIRS = `
there status Uid = 1001 1000 0 0 | ok user the same: 1000
there status Uid = 1000 1001 1000 1000 | no user here 1000, there 1001 | otherUser | DEVICE, timeline
there status NSpid = 9 4711 | ok pid namespace the same: 1
there ns pid = 7 | (no) pid namespace here 1, there 7 | pidNamespace
/proc/${OTHER_PID}/ns/pid = | unknown pid namespace here 1, there ?
there status NSpid = 9 4711; there ns pid = 7 | no pid number both are process 4711 in their pid namespaces, so the driver takes one for the other (status 201) | pidNamespace | plain memory, event
there device = 27 | ok /dev/shm the same: 27
there device = 28 | no /dev/shm here 27, there 28 | sharedMemory | event
/proc/version = Linux version 6.8.0-generic | ok WSL neither is in WSL
/proc/version = Linux version 5.15.0-Microsoft | no WSL WSL has no CUDA IPC | wsl | DEVICE
there env CUDA_MPS_PIPE_DIRECTORY = /x | ok ipc namespace the same: 2
there ns ipc = 7 | ok ipc namespace here 2, there 7; only MPS needs one
there ns ipc = 7; there env CUDA_MPS_PIPE_DIRECTORY = /x | no ipc namespace here 2, there 7 | mps | DEVICE
there ns ipc = 7; env CUDA_MPS_PIPE_DIRECTORY = /x | no ipc namespace here 2, there 7 | mps | DEVICE
there ns net = 4 | ok net namespace the same: 4
there ns net = 7 | (no) net namespace here 4, there 7 | noNames
YAMA = 0 | ok pidfd_getfd Yama does not restrict it
YAMA = 1 | (no) pidfd_getfd Yama 1, SYS_PTRACE here not held, there not held | ptrace
YAMA = 1; CAP = 80000 | (no) pidfd_getfd Yama 1, SYS_PTRACE here held, there not held | ptrace
YAMA = 1; CAP = 80000; there CAP = | unknown pidfd_getfd Yama 1, SYS_PTRACE here held, there unknown | ptrace
YAMA = 2; CAP = 80000; there CAP = 80000 | ok pidfd_getfd both hold SYS_PTRACE
YAMA = 3; CAP = 80000; there CAP = | (no) pidfd_getfd Yama 3, SYS_PTRACE here held, there unknown | yama
YAMA = 3; CAP = 80000; there CAP = 80000 | (no) pidfd_getfd Yama 3, SYS_PTRACE here held, there held | yama
there SEGMENTS | (no) PyTorch expandable segments there: such tensors have no legacy handle (status 1) | expandableSegments
SEGMENTS | (no) PyTorch expandable segments here: such tensors have no legacy handle (status 1) | expandableSegments
SEGMENTS; there SEGMENTS | (no) PyTorch expandable segments here and there: such tensors have no legacy handle (status 1) | expandableSegments`;

const SHORT: readonly (readonly [word: RegExp, long: string])[] = [
  [/\bYAMA\b/, '/proc/sys/kernel/yama/ptrace_scope'],
  [/\bCAP\b/g, 'status CapEff'],
  [/\bIMEX\b(?=\/)/g, '/dev/nvidia-caps-imex-channels'],
  [/\bMPS(?= = )/, '/tmp/nvidia-mps/control'],
  [/\bSYSTEM\b/, '/usr/lib64/libnccl.so.2'],
  [/\bSEGMENTS\b/g, 'env PYTORCH_CUDA_ALLOC_CONF = expandable_segments:True'],
];
const DEVICE = 'plain memory, pool, virtual memory, read-only, event';

const texts: Readonly<Record<string, string>> = {
  ...remedies,
  raise: 'Raise it (ulimit -n 65536): pools, virtual memory and connections need some each.',
  notCounted: "CUDA's pinned memory is not counted; RDMA is (ulimit -l unlimited).",
  equalPids: `Plain memory and events fail between equal numbers. ${remedies.pidNamespace}`,
  hidden: 'It hides every GPU: unset it, or name devices.',
  listed: 'Ordinals are counted in this list: compare UUIDs with the other process.',
  noHandle: `Tensors of such memory have no legacy handle (status 1). ${remedies.expandableSegments}`,
  launches: 'Each launch waits for its kernel: for finding faults only.',
  unasked: 'cuffi ls and cuffi doctor --with cannot ask processes started like this one.',
  throughHost: 'NCCL copies through the host.',
  python: 'Only spawnPython() needs it: CUFFI_PYTHON names an interpreter.',
  nccl: 'Only collectives of other libraries need it: pip install nvidia-nccl-cu13, or -cu12 for CUDA 12.',
  noNames: "Names with '@' do not reach the other: listen at a path in a folder that both see.",
};

/** The lines, with one space for several, and whether all that sharing needs works. */
async function doctor(changes: string, args: readonly string[]) {
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

/** A test of each row. Only `no` without parentheses fails. */
function judges(table: string, args: readonly string[]): void {
  for (const row of table.trim().split('\n')) {
    const [change = '', line = '', remedy, kinds = 'none'] = row.split(' | ');
    const changes = SHORT.reduce((text, [word, long]) => text.replace(word, long), change);
    test(`${change}: ${line}`, async () => {
      const { ok, lines } = await doctor(changes, args);
      const at = lines.indexOf(line);
      assert.notEqual(at, -1, `${line}\nis not in\n${lines.join('\n')}`);
      const next = lines[at + 1]?.startsWith('→ ') ? lines[at + 1]?.slice(2) : undefined;
      assert.equal(next, remedy && texts[remedy]);
      assert.equal(ok, !line.startsWith('no '));
      const last = String(lines.at(-1));
      const verdict = args.includes('--with')
        ? `Works: none. Does not: ${kinds.replace('DEVICE', DEVICE)}. Unknown: `
        : ok
          ? 'All works, with the emulated driver: this says nothing about a GPU.'
          : 'Does not work: ';
      assert.equal(last.slice(0, verdict.length), verdict);
      if (ok || args.includes('--with')) return;
      const [, names = ''] = /: (.+)\. Each line with no says what to do\.$/.exec(last) ?? [];
      // Each once.
      assert.equal(new Set(names.split(', ')).size, names.split(', ').length);
      assert.deepEqual(
        names.split(', ').filter((name) => !lines.some((each) => each.startsWith(`no ${name} `))),
        [],
      );
      assert.ok(names.split(', ').some((name) => line.startsWith(`no ${name} `)));
    });
  }
}

describe('cuffi doctor', () => {
  /** The largest ordinal. Without such a device, no second process is started. */
  const NO_DEVICE = ['--device', '1023'];
  judges(MACHINES, NO_DEVICE);

  test('judges the compute mode of each device, as the driver reports it', async () => {
    after(() => emulate());
    for (const [mode, ...said] of [[0], [2, 'prohibited'], [3, 'exclusive to one process']]) {
      emulate({ CUFFI_EMULATED_ATTRIBUTES: `20=${mode}`, CUFFI_EMULATED_DEVICES: '2' });
      const { ok, lines } = await doctor('', NO_DEVICE);
      assert.equal(ok, mode === 0);
      // Both devices have it, and it is named once.
      const verdict = ok ? /^All / : /^Does not work: compute mode\. Each line/;
      assert.match(String(lines.at(-1)), verdict);
      assert.deepEqual(
        lines.slice(0, -1).filter((line) => /compute mode|peer access/.test(line)),
        said.flatMap((word) => [0, 1].map((each) => `no compute mode device ${each}: ${word}`)),
      );
    }
  });

  test('says nothing about MPS on a machine without it', async () => {
    const { lines } = await doctor('/proc/6/comm = nvidia-cuda-mps', NO_DEVICE);
    assert.ok(!lines.some((line) => line.includes(' MPS ')));
  });
});

describe('cuffi doctor --with', () => {
  const WITH = ['--with', String(OTHER_PID)];
  judges(PAIRS, WITH);

  test('names both processes, and where its facts come from', async () => {
    const { ok, lines } = await doctor('', WITH);
    assert.equal(ok, true);
    assert.match(
      String(lines[0]),
      /^process 815 \(server\.mjs\), by \/proc, and this process 4711 /,
    );
    assert.ok(!lines.some((line) => line.includes('PyTorch')));
  });

  test('invents no ordinal for a process that only a descriptor tells of', async () => {
    after(() => emulate());
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const device = Device.get(1).uuid;
    const maker = { machine: 'x', pid: 1, pidNamespace: 2, startTime: 3, device };
    const findings = judgePair(await gatherExporter(maker as IpcDescriptor));
    assert.equal(findings.find(({ name }) => name === 'GPU')?.fact, `in common: ${device}`);
  });

  test('tells what the files of a process say', () => {
    using machine = fakeMachine('there env NCCL_DEBUG = a=b; there env HOME = /; there fd = 3');
    const facts = factsFromProc(OTHER_PID, machine);
    assert.deepEqual(facts, {
      pid: 815,
      startTime: 18,
      program: 'server.mjs',
      user: 1000,
      machine: 'ba40e59f-1f82-49c6-8a8f-91c85beff5ac',
      namespaces: { pid: 1, ipc: 2, mnt: 3, net: 4, user: 5 },
      capabilities: '0000000000000000',
      sharedMemory: 27,
      isWsl: false,
      openDescriptors: 3,
      limits: {
        descriptors: { soft: 65_536, hard: 524_288 },
        lockedMemory: { soft: null, hard: null },
      },
      environment: { NCCL_DEBUG: 'a=b' },
    });
  });

  test('a process that is not there, or is this one, cannot be compared', async () => {
    for (const [pid, message, changes = ''] of [
      ['4711', '4711 is the process of this command'],
      ['4194302', 'there is no process 4194302 that is seen here'],
      [
        String(OTHER_PID),
        'there is no process 4194304 ',
        `/proc/${OTHER_PID}/stat = 815 (a) Z 1 1`,
      ],
    ] as const)
      await assert.rejects(doctor(changes, ['--with', pid]), new RegExp(`^\\w*: ${message}`));
  });
});
