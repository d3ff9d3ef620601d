/** `cuffi ls`: which processes of this user share what, and who has it. */
import { setTimeout as delay } from 'node:timers/promises';
import { inspect, inspectableProcesses } from '../ipc/inspect/inspect-client.ts';
import type { Reply } from '../ipc/inspect/inspect-messages.ts';
import { type Command, integerOption, parseCommand, refuseArguments } from './command.ts';
import { print, printAgain, printedWidth, printJson } from './output.ts';
import { columns, countOf, heading, shortAge, shortBytes } from './table.ts';
import { type Line, type Span, styled } from './text.ts';

export const lsCommand: Command = {
  summary: 'lists what the processes of this user share, and who has it',
  usage: `usage: cuffi ls [options]

Lists the processes of this user that share GPU memory with cuffi: each object, its device, kind
and size, and which processes have it for how long; then the totals. What worker threads share is
not listed, nor are processes in Python, Bun and Deno, and those started with CUFFI_INSPECT=0.

  --watch        list again and again, in place on a terminal, until Ctrl-C
  --interval S   the seconds between two lists of --watch (default 2)
  --json         print one JSON object a list instead of a table
  --help         print this

Exit code: 0; 1 if a process did not answer (of the last list); 2 for wrong use.`,
  run: (argv) => runLs(argv),
};

/** A process that was asked. */
interface Asked {
  readonly pid: number;
  readonly reply: Reply<'list'> | undefined;
  /** Why there is no reply. */
  readonly error: string;
}

/** Where the processes come from, and what ends a watch: tests have others. */
export interface LsSource {
  processes(): readonly { readonly path: string; readonly pid: number }[];
  ask(path: string): Promise<Reply<'list'>>;
  /** Waits until the next list. Returns whether there is one. */
  wait(ms: number): Promise<boolean>;
}

const MAX_INTERVAL_S = 86_400;

/** As {@link lsCommand}, of any processes. */
export async function runLs(argv: readonly string[], source = thisUser()): Promise<boolean> {
  const { values, positionals } = parseCommand(argv, {
    watch: { type: 'boolean', default: false },
    interval: { type: 'string', default: '2' },
    json: { type: 'boolean', default: false },
  });
  refuseArguments('ls', positionals);
  const seconds = integerOption(values.interval, '--interval', 1, MAX_INTERVAL_S);
  const show = values.watch ? printAgain : print;
  for (;;) {
    const asked = await askAll(source);
    if (values.json) printJson(asJson(asked));
    else if (asked.length === 0) show(['No process of this user shares anything.']);
    // A terminal may have no room for the end of a list.
    else if (values.watch) show([...describeTotals(asked), '', ...describe(asked)]);
    else show([...describe(asked), '', ...describeTotals(asked)]);
    if (!values.watch || !(await source.wait(seconds * 1000)))
      return asked.every(({ reply }) => reply !== undefined);
  }
}

function thisUser(): LsSource {
  const controller = new AbortController();
  let isWatched = false;
  return {
    processes: inspectableProcesses,
    ask: (path) => inspect(path, 'list'),
    async wait(ms) {
      if (!isWatched) process.once('SIGINT', () => controller.abort());
      isWatched = true;
      const isOver = await delay(ms, false, { signal: controller.signal }).catch(() => true);
      return !isOver;
    },
  };
}

const askAll = ({ processes, ask }: LsSource): Promise<Asked[]> =>
  Promise.all(
    processes().map(async ({ path, pid }): Promise<Asked> => {
      try {
        return { pid, reply: await ask(path), error: '' };
      } catch (error) {
        return { pid, reply: undefined, error: (error as Error).message };
      }
    }),
  );

// ---- Totals ----

/** How many objects, and of how many bytes. */
interface Total {
  objects: number;
  byteLength: number;
}

interface Totals extends Total {
  /** Of the objects that their processes have closed, and keep for others. */
  readonly closed: Total;
  /** By the UUIDs of devices; host memory counts for none. */
  readonly devices: Record<string, Total>;
  /** The objects that had no room in the replies count nowhere else. */
  readonly omitted: number;
}

const add = (total: Total, byteLength: number): void => {
  total.objects += 1;
  total.byteLength += byteLength;
};

const none = (): Total => ({ objects: 0, byteLength: 0 });

function totalsOf(asked: readonly Asked[]): Totals {
  const replies = asked.flatMap(({ reply }) => reply ?? []);
  const omitted = replies.reduce((sum, reply) => sum + reply.omitted, 0);
  const totals: Totals = { ...none(), closed: none(), devices: {}, omitted };
  for (const { byteLength, device, isOrphaned } of replies.flatMap(({ objects }) => objects)) {
    add(totals, byteLength);
    if (isOrphaned) add(totals.closed, byteLength);
    if (device !== undefined) {
      totals.devices[device] ??= none();
      add(totals.devices[device], byteLength);
    }
  }
  return totals;
}

const asJson = (asked: readonly Asked[]) => ({
  processes: asked.map(({ pid, reply, error }) => ({ pid, ...reply, ...(error && { error }) })),
  totals: totalsOf(asked),
});

const describeTotal = ({ objects, byteLength }: Total): string =>
  `${countOf(objects, 'object')}, ${shortBytes(byteLength)}`;

function describeTotals(asked: readonly Asked[]): Line[] {
  const { closed, devices, omitted, ...all } = totalsOf(asked);
  const byDevice = Object.entries(devices).sort(([a], [b]) => (a < b ? -1 : 1));
  const rows = [
    ['total', describeTotal(all)],
    ...(byDevice.length > 1 ? byDevice.map(([uuid, each]) => [uuid, describeTotal(each)]) : []),
    ...(closed.objects > 0 ? [['closed', describeTotal(closed)]] : []),
    ...(omitted > 0 ? [['not counted', countOf(omitted, 'object')]] : []),
  ];
  return columns(rows);
}

// ---- The table ----

function describe(asked: readonly Asked[]): Line[] {
  const rows = asked.flatMap(({ pid, reply, error }): (string | Span)[][] => {
    if (!reply) return [[String(pid), '', '', '', '', styled('bad', `does not answer: ${error}`)]];
    const { process, objects, omitted } = reply;
    const owner = [pid > 0 ? String(pid) : `(${process.pid})`, shortPath(process.program ?? '')];
    const lines = objects.map(({ kind, byteLength, device, isOrphaned, holders }) => [
      ...owner,
      device === undefined ? 'host' : shortUuid(device),
      isOrphaned ? styled('unsure', `${kind}, closed`) : kind,
      byteLength > 0 ? shortBytes(byteLength) : '-',
      describeHolders(holders),
    ]);
    if (lines.length === 0) lines.push([...owner, '-', '-', '-', 'nothing is shared now']);
    if (omitted > 0) lines.push([...owner, '', '…', '', `and ${omitted} more`]);
    return lines;
  });
  const names = heading('PID', 'PROGRAM', 'DEVICE', 'KIND', 'BYTES', 'HOLDERS');
  return columns([names, ...rows], { isRight: (at) => at === 4, width: printedWidth() });
}

/** The start of a UUID, as `CUDA_VISIBLE_DEVICES` takes it. */
const shortUuid = (uuid: string): string => /^[A-Z]+-[0-9a-f]+/i.exec(uuid)?.[0] ?? uuid;

const MAX_PATH_LENGTH = 28;

/** The end of a path, which says more than its beginning. */
function shortPath(path: string): string {
  if (path.length <= MAX_PATH_LENGTH) return path;
  const end = path.slice(1 - MAX_PATH_LENGTH);
  const slash = end.indexOf('/');
  // Half of a character does not stay.
  return `…${slash < 0 ? end.replace(/^[\udc00-\udfff]/, '') : end.slice(slash)}`;
}

type Holder = Reply<'list'>['objects'][number]['holders'][number];

/** The most holders of an object that are named. `--json` names all. */
const MAX_HOLDERS = 8;

const describeHolders = (holders: readonly Holder[]): string =>
  holders.length === 0
    ? 'none by a connection; a descriptor was made'
    : [...holders.slice(0, MAX_HOLDERS).map(describeHolder), ...omittedHolders(holders)].join(', ');

function describeHolder({ pid, ageMs, isRevoked, leases = 1 }: Holder): string {
  const name = pid > 0 ? String(pid) : 'a process of another pid namespace';
  const times = leases > 1 ? ` (${leases} times)` : '';
  return `${name} for ${shortAge(ageMs)}${times}${isRevoked ? ' (revoked)' : ''}`;
}

const omittedHolders = ({ length }: readonly Holder[]): readonly string[] =>
  length > MAX_HOLDERS ? [`and ${length - MAX_HOLDERS} more`] : [];
