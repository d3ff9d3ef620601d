/** Results as a run would write them, for tests. */
import { type CaseResult, type Results, summarize } from '../results.ts';

/** A case whose contestants have the given samples. */
export const caseOf = (
  suite: string,
  name: string,
  contestants: Readonly<Record<string, readonly number[]>>,
  more: Partial<CaseResult> = {},
): CaseResult => ({
  suite,
  name,
  variant: null,
  what: 'does a thing',
  callsPerBatch: 10,
  byteLength: null,
  isCopy: false,
  clock: 'host',
  limit: null,
  count: null,
  contestants: Object.entries(contestants).map(([contestant, samples]) =>
    summarize(contestant, samples),
  ),
  skipped: [],
  ...more,
});

/** A run with these cases. */
export const resultsOf = (cases: readonly CaseResult[], { emulated = false } = {}): Results => ({
  version: 6,
  machine: {
    date: '2026-01-02T03:04:05.678Z',
    gpu: 'NVIDIA H200',
    driverVersion: '580.1',
    cuda: '13.0',
    clocks: { sm: 1980, memory: 3201, smMax: 1980, memoryMax: 3201 },
    cpu: 'a CPU',
    cpuCount: 16,
    node: 'v20.20.2',
    koffi: '3.3.4',
    cuffi: '0.1.0',
    link: null,
    memoryBandwidth: null,
    commit: '0123456789abcdef+',
  },
  driver: { name: 'cuda', library: 'libcuda.so.1', reason: 'asked', emulated, version: '13.0' },
  quick: false,
  rounds: 31,
  passes: 2,
  isPinned: false,
  isComplete: true,
  unit: 'ns',
  cases: [...cases],
  skipped: [],
});
