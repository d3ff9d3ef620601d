/**
 * Compares what is open in this process before and after each test, and fails a test that leaves something
 * open. The build of the tests (kernels.ts) has the test files of test/unit, test/driver and test/ipc call it. What
 * several tests share is opened before them, by `before`, and closed after them. A test that leaves something
 * for a reason says so: see {@link leaves}.
 */
import { afterEach, beforeEach, type TestContext } from 'node:test';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  KEPT_BY_CONTEXTS,
  noteFromNowOn,
  type OpenResources,
  openResources,
  primaryContexts,
} from './open-resources.ts';

/**
 * What cuffi opens at its first use and keeps, and how many of it. Per driver: what it keeps for each
 * driver that a test selects.
 */
const KEPT: readonly { readonly kind: string; readonly most: number; readonly per?: 'driver' }[] = [
  // The epoll by which descriptors are tried (ffi/linux/poll.ts).
  { kind: 'descriptor of anon_inode:[eventpoll]', most: 1 },
  // How the driver wakes the event loop (ffi/linux/wake-file.ts).
  { kind: 'descriptor of anon_inode:[eventfd]', most: 1 },
  { kind: 'watch of anon_inode:[eventfd]', most: 1 },
  { kind: 'listener of process for exit', most: 1 },
  // The tables of the threads of a process (src/waits/worker-tables.ts).
  { kind: 'descriptor of cuffi-mappings-N', most: 2 },
  { kind: 'mapping of cuffi-mappings-N', most: 1 },
  // How cuffi notices the end of this process (src/ipc/peer/spawn.ts).
  { kind: 'listener of process for uncaughtExceptionMonitor', most: 1 },
  // The emulated driver's, one of each instance of its module.
  { kind: 'listener of process for worker', most: 2 },
  // What makes sharing quick (src/memory/physical-memory.ts).
  { kind: 'descriptor of cuffi.virtual', most: 1, per: 'driver' },
];

/**
 * Says that this test leaves something open.
 *
 * @param kind what, as the failure calls it, or a pattern for several kinds
 * @param why the reason, for readers
 * @param most how many of each such kind; one more fails the test
 */
export function leaves(kind: string | RegExp, why: string, most = 1): void {
  if (why === '') throw new TypeError('say why');
  running.at(-1)?.allowed.push({ kind, most });
}

let isComparing = false;

/**
 * Compares what is open before and after each test of this process.
 *
 * @public kernels.ts has test files call it
 */
export function compareEachTest(): void {
  if (isComparing) return;
  isComparing = true;
  noteFromNowOn();
  beforeEach(begin);
  afterEach(end);
}

/** A test, or several that run at the same time. */
interface Group {
  readonly name: string;
  readonly suite: string;
  readonly before: OpenResources;
  /** What they say that they leave. */
  readonly allowed: { readonly kind: string | RegExp; readonly most: number }[];
  count: number;
}

/** What was open after the last test, and its suite: no hook of a suite runs before the next test there. */
let last: { readonly suite: string; readonly open: OpenResources } | undefined;

/** The tests that run now, each within the one before. */
const running: Group[] = [];
const groups = new WeakMap<object, Group>();

function begin(context: object): void {
  const { name, fullName } = context as TestContext & { readonly fullName: string };
  const suite = fullName.slice(0, -name.length);
  const outer = running.at(-1);
  const isAlone = outer === undefined || fullName.startsWith(`${outer.name} > `);
  const before = last?.suite === suite ? last.open : undefined;
  const group: Group = isAlone
    ? { name: fullName, suite, before: before ?? openResources(), allowed: [], count: 0 }
    : outer;
  last = undefined;
  if (isAlone) running.push(group);
  group.count += 1;
  groups.set(context, group);
}

/** How many turns of the event loop what was closed may take to be released. */
const MOST_TURNS = 300;
/** The turns that need no timer: most releases are done by then. */
const QUICK_TURNS = 5;
/** The turns that last a millisecond. Later ones last longer: most of what they wait for is the work of others. */
const SHORT_TURNS = 100;
/** After which turns garbage is collected, and what is kept for later is released. */
const COLLECTING: ReadonlySet<number> = new Set([QUICK_TURNS, 30, 100]);

function end(context: object): void {
  // Behind what the test itself has registered by `t.after`, which runs later than this.
  (context as TestContext).after(() => finish(context));
}

async function finish(context: object): Promise<void> {
  const group = groups.get(context);
  if (group === undefined || --group.count > 0) return;
  running.splice(running.indexOf(group), 1);
  let now = openResources();
  let found = differences(group, now);
  for (let turns = 0; found.length > 0 && turns < MOST_TURNS; turns += 1) {
    await (turns < QUICK_TURNS ? turn() : delay(turns < SHORT_TURNS ? 1 : 5));
    now = openResources();
    found = differences(group, now, turns >= QUICK_TURNS);
    if (found.length > 0 && COLLECTING.has(turns)) releaseCached();
  }
  forgetClosed(now);
  last = { suite: group.suite, open: now };
  if (found.length === 0) return;
  const error = new Error(`the test has left open:\n  ${found.join('\n  ')}`);
  error.stack = error.message;
  throw error;
}

let gc: (() => void) | undefined;

function releaseCached(): void {
  if (gc === undefined) {
    setFlagsFromString('--expose-gc');
    gc = runInNewContext('gc') as () => void;
  }
  gc();
  for (const { cacheTrimmers } of primaryContexts()) for (const trim of cacheTrimmers) trim();
}

/** How many of each kind cuffi has begun to keep, with the selection of a driver where that counts. */
const keptCounts = new Map<string, number>();

/** What was closed after all, later than its test, was not kept. */
function forgetClosed(now: OpenResources): void {
  for (const { kind, per } of KEPT) {
    const known = keptCounts.get(kind);
    if (known !== undefined && per === undefined)
      keptCounts.set(kind, Math.min(known, now.counts.get(kind) ?? 0));
  }
}

/** @param isSettled whether what is left is taken for what cuffi keeps, if it may */
function differences({ before, allowed }: Group, now: OpenResources, isSettled = false): string[] {
  const isSameSelection = now.selection === before.selection;
  const isSameEmulator = now.emulator === before.emulator;
  const isOnlySelection =
    isSameSelection || (!isSameEmulator && now.selection === before.selection + 1);
  const found: string[] = [];
  const compare = (kind: string, count: number, earlier: number): void => {
    if (count <= earlier) return;
    const may = allowed.filter((each) =>
      typeof each.kind === 'string' ? each.kind === kind : each.kind.test(kind),
    );
    const more = count - earlier - may.reduce((sum, { most }) => sum + most, 0);
    if (more <= 0) return;
    const kept = KEPT.find((each) => each.kind === kind);
    const key = kept?.per === 'driver' ? `${kind} ${now.selection}` : kind;
    const known = keptCounts.get(key) ?? 0;
    if (isSettled && kept && known + more <= kept.most) {
      keptCounts.set(key, known + more);
      allowed.push({ kind, most: more });
    } else found.push(`${more} × ${kind}`);
  };
  for (const [kind, count] of now.counts) compare(kind, count, before.counts.get(kind) ?? 0);
  for (const [kind, count] of now.inDriver)
    if (isOnlySelection || !KEPT_BY_CONTEXTS.has(kind))
      compare(kind, count, isSameEmulator ? (before.inDriver.get(kind) ?? 0) : 0);
  for (const [kind, count] of now.inContexts)
    compare(kind, count, isSameSelection ? (before.inContexts.get(kind) ?? 0) : 0);
  return found;
}
