/** Facts of a machine on which everything works, for tests that change one. */
import type { DoctorDevice, MachineFacts } from '../../../../../src/cli/doctor/rules.ts';
import { PROBES } from '../../../../../src/ipc/inspect/probes.ts';
import type { ProcessFacts } from '../../../../../src/ipc/inspect/process-facts.ts';

const SUPPORTED = { supported: true, reason: '' };

export const deviceA: DoctorDevice = {
  ordinal: 0,
  uuid: 'GPU-aaaaaaaa-0000-0000-0000-000000000000',
  name: 'NVIDIA H100',
  computeMode: 0,
  peers: [],
  computeCapability: '9.0',
  totalMemory: 80 * 2 ** 30,
  support: { memory: SUPPORTED, events: SUPPORTED, pools: SUPPORTED, virtualMemory: SUPPORTED },
};
export const deviceB: DoctorDevice = {
  ...deviceA,
  ordinal: 1,
  uuid: 'GPU-bbbbbbbb-0000-0000-0000-000000000000',
};

export const processFacts = (changes: Partial<ProcessFacts> = {}): ProcessFacts => ({
  pid: 4711,
  startTime: 1,
  program: 'server.mjs',
  user: 1000,
  machine: 'ba40e59f-1f82-49c6-8a8f-91c85beff5ac',
  namespaces: { pid: 1, ipc: 2, mnt: 3, net: 4, user: 5 },
  capabilities: '0000000000080000',
  sharedMemory: 27,
  isWsl: false,
  openDescriptors: 20,
  limits: { descriptors: { soft: 65_536, hard: null }, lockedMemory: { soft: null, hard: null } },
  environment: {},
  driver: { name: '/usr/lib/libcuda.so.1', version: '13.0' },
  devices: [deviceA],
  ...changes,
});

export const machineFacts = (changes: Partial<MachineFacts> = {}): MachineFacts => ({
  process: processFacts(),
  versions: { cuffi: '0.1.0', node: 'v24.0.0', kernel: '6.8' },
  driver: { name: '/usr/lib/libcuda.so.1', version: '13.0', reason: 'a GPU is here', error: '' },
  devices: [deviceA],
  probes: {
    reason: '',
    results: PROBES.map(({ name }) => ({ name, ok: true, ms: 1.25, code: undefined, reason: '' })),
  },
  handles: [],
  throughput: { byteLength: 64 << 20, ms: 1 },
  sharedMemory: { byteLength: 2 ** 30, free: 2 ** 30 },
  ptraceScope: undefined,
  container: undefined,
  fabric: { hasDriver: true, channels: 1 },
  mps: { pipeDirectory: '/tmp/nvidia-mps', hasControl: false, daemonIpcNamespace: undefined },
  libraries: [{ name: 'NVRTC', found: '13.0', remedy: '' }],
  ...changes,
});
