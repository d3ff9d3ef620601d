/** `cuffi ls`: which processes of this user share what, and who has it. */
import { inspect, inspectableProcesses } from '../ipc/inspect/inspect-client.ts';
import type { Reply } from '../ipc/inspect/inspect-messages.ts';
import { type Command, parseCommand, refuseArguments } from './command.ts';
import { print, printJson } from './output.ts';
import { columns, shortAge, shortBytes } from './table.ts';

export const lsCommand: Command = {
  summary: 'lists what the processes of this user share, and who has it',
  usage: `usage: cuffi ls [options]

Lists the processes of this user that share GPU memory with cuffi: each object, its kind and size,
and which processes have it for how long. What worker threads share is not listed, nor are processes
in Python, Bun and Deno, and those started with CUFFI_INSPECT=0.

  --json         print one JSON object instead of a table
  --help         print this

Exit code: 0; 1 if a process did not answer; 2 for wrong use.`,
  run: (argv) => runLs(argv),
};

/** A process that was asked. */
interface Asked {
  readonly pid: number;
  readonly reply: Reply<'list'> | undefined;
  /** Why there is no reply. */
  readonly error: string;
}

/** As {@link lsCommand}, of any processes. */
export async function runLs(
  argv: readonly string[],
  processes = inspectableProcesses,
  ask = (path: string): Promise<Reply<'list'>> => inspect(path, 'list'),
): Promise<boolean> {
  const { values, positionals } = parseCommand(argv, {
    json: { type: 'boolean', default: false },
  });
  refuseArguments('ls', positionals);
  const asked = await Promise.all(
    processes().map(async ({ path, pid }): Promise<Asked> => {
      try {
        return { pid, reply: await ask(path), error: '' };
      } catch (error) {
        return { pid, reply: undefined, error: (error as Error).message };
      }
    }),
  );
  if (values.json)
    printJson({
      processes: asked.map(({ pid, reply, error }) => ({
        pid,
        ...reply,
        ...(error && { error }),
      })),
    });
  else print(describe(asked));
  return asked.every(({ reply }) => reply !== undefined);
}

function describe(asked: readonly Asked[]): string[] {
  if (asked.length === 0) return ['No process of this user shares anything.'];
  const rows = asked.flatMap(({ pid, reply, error }) => {
    if (!reply) return [[String(pid), '', '', '', `does not answer: ${error}`]];
    const { process, objects, omitted } = reply;
    const owner = [pid > 0 ? String(pid) : `(${process.pid})`, process.program ?? ''];
    const lines = objects.map(({ kind, byteLength, isOrphaned, holders }) => [
      ...owner,
      isOrphaned ? `${kind}, closed` : kind,
      byteLength > 0 ? shortBytes(byteLength) : '-',
      describeHolders(holders),
    ]);
    if (lines.length === 0) lines.push([...owner, '-', '-', 'nothing is shared now']);
    if (omitted > 0) lines.push([...owner, '…', '', `and ${omitted} more`]);
    return lines;
  });
  return columns([['PID', 'PROGRAM', 'KIND', 'BYTES', 'HOLDERS'], ...rows]);
}

type Holder = Reply<'list'>['objects'][number]['holders'][number];

/** The most holders of an object that are named. `--json` names all. */
const MAX_HOLDERS = 8;

const describeHolders = (holders: readonly Holder[]): string =>
  holders.length === 0
    ? 'none by a connection; a descriptor was made'
    : [...holders.slice(0, MAX_HOLDERS).map(describeHolder), ...omittedHolders(holders)].join(', ');

const describeHolder = ({ pid, ageMs, isRevoked }: Holder): string => {
  const name = pid > 0 ? String(pid) : 'a process of another pid namespace';
  return `${name} for ${shortAge(ageMs)}${isRevoked ? ' (revoked)' : ''}`;
};

const omittedHolders = ({ length }: readonly Holder[]): readonly string[] =>
  length > MAX_HOLDERS ? [`and ${length - MAX_HOLDERS} more`] : [];
