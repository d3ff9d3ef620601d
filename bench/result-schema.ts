/** The result file: what a run writes, and everything else reads. */
import { z } from 'zod';
import { summarize } from './statistics.ts';

const text = z.string().min(1);
const nanoseconds = z.number().nonnegative();
const count = z.int().nonnegative();

const lanes = z.object({ speed: z.number().positive(), width: z.int().positive() });

const machine = z.object({
  /** In ISO 8601, when the run began. */
  date: text,
  gpu: text,
  /** Null where nvidia-smi is not there, and for the emulated driver. */
  driverVersion: text.nullable(),
  cuda: text,
  /** In MHz, as nvidia-smi gave them before the run. */
  clocks: z.object({ sm: count, memory: count, smMax: count, memoryMax: count }).nullable(),
  cpu: text,
  cpuCount: count,
  node: text,
  koffi: text,
  cuffi: text,
  /**
   * The GPU's PCI Express link, as it was before the run and as both of its ends can at most: in
   * 1e9 transfers a second of each lane, and lanes. Null where the machine hides it, and for the
   * emulated driver.
   */
  link: z.object({ current: lanes, max: lanes }).nullable(),
  /** Bytes a second that the device's memory reads and writes at most, by its clock and bus. */
  memoryBandwidth: z.number().positive().nullable(),
  /** What was measured, with `+` where the tree had changes; null outside a clone. */
  commit: text.nullable(),
});

const driver = z.object({
  name: text,
  library: text,
  reason: text,
  /** Whether no GPU was behind it: its times say nothing of one. */
  emulated: z.boolean(),
  version: text,
});

// What a file says that they come to is for its other readers: here it follows from the samples.
const contestant = z
  .object({ name: text, samples: z.array(nanoseconds).min(1) })
  .transform(({ name, samples }) => summarize(name, samples));

const skipped = z.object({ name: text, reason: text });

const caseResult = z.object({
  suite: text,
  name: text,
  /** What tells it from the other cases of its name. */
  variant: text.nullable(),
  what: text,
  callsPerBatch: z.int().positive(),
  /** How many bytes a call allocates or moves, where that is what it does. */
  byteLength: count.nullable(),
  /** Whether the bytes are moved, so that there are so many a second. */
  isCopy: z.boolean(),
  /** Whose clock its times are by: the monotonic one of the host, or the GPU's, between two events. */
  clock: z.enum(['host', 'gpu']),
  /**
   * What of the machine limits how many bytes a second there are, and how often each of them goes
   * through it; null where that is not what it measures.
   */
  limit: z.object({ by: z.enum(['link', 'memory']), times: z.number().positive() }).nullable(),
  /** How many of what, where its cases differ by a number. */
  count: z.object({ of: text, value: count }).nullable(),
  contestants: z.array(contestant).min(1),
  /** Programs that ran, but could not do this. */
  skipped: z.array(skipped),
});

const delay = z.object({
  name: text,
  byteLength: count,
  copies: count,
  /** How many. */
  samples: count,
  median: nanoseconds,
  p99: nanoseconds,
  max: nanoseconds,
});

/** All of a result file. */
export const resultSchema = z.object({
  version: z.literal(4),
  machine,
  driver,
  /** Whether each case had only a part of its time. */
  quick: z.boolean(),
  rounds: z.int().positive(),
  /**
   * Over how many processes, each with other peers and other children, the rounds of a case are
   * spread at most; its samples come from them in turns.
   */
  passes: z.int().positive(),
  /** Whether in cases of short calls each side had one CPU for all contestants. */
  isPinned: z.boolean().default(false),
  /** Whether its passes took turns with those of a second run of the same. */
  inTurns: z.boolean(),
  /** False if it was stopped: cases are missing, or have fewer rounds. */
  isComplete: z.boolean().default(true),
  unit: z.literal('ns'),
  cases: z.array(caseResult),
  delays: z.array(delay),
  /** Programs that could not run. */
  skipped: z.array(skipped),
});

/** What a run came to. */
export type Results = z.infer<typeof resultSchema>;
/** Where a run took place: a number without its machine says nothing. */
export type Machine = Results['machine'];
/** What a case came to; times in nanoseconds per call. */
export type CaseResult = Results['cases'][number];
/** The lateness of the event loop during one way of copying, in nanoseconds. */
export type DelayResult = Results['delays'][number];
