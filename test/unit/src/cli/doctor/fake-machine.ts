/** The files that the doctor reads, as a Linux machine has them, in a folder: a test changes what it asks for. */
import { mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Machine } from '../../../../../src/ipc/inspect/process-facts.ts';

/** No process has it: it is above the largest pid of other tests. */
export const OTHER_PID = 4_194_303;
const OWN_PID = 4711;

/** What differs about a process. */
interface ProcessChanges {
  /** Lines of its `status`. */
  readonly status?: Readonly<Record<string, string>>;
  /** Lines of its `limits`. */
  readonly limits?: Readonly<
    Record<string, readonly [soft: number | string, hard: number | string]>
  >;
  readonly namespaces?: Readonly<Record<string, number>>;
  readonly env?: Readonly<Record<string, string>>;
  /** How many descriptors are open. */
  readonly open?: number;
  /** The device number of its /dev/shm. */
  readonly device?: number;
}

export interface Changes extends ProcessChanges {
  readonly there?: ProcessChanges;
  /** Files by their path; undefined for one that is missing. */
  readonly files?: Readonly<Record<string, string | undefined>>;
  /** Of /dev/shm: the size of a block, how many there are, and how many are free. */
  readonly blocks?: readonly [size: number, count: number, free: number];
}

/** A machine. Dispose removes its folder. */
export function fakeMachine(changes: Changes = {}): Machine & Disposable {
  const { there = {}, files = {}, blocks = [4096, 16_384, 8192], env = {}, device = 27 } = changes;
  const root = mkdtempSync(join(tmpdir(), 'cuffi-machine-'));
  const all: Record<string, string | undefined> = {
    ...filesOf('self', OWN_PID, changes),
    ...filesOf(String(OTHER_PID), 815, there),
    '/proc/sys/kernel/random/boot_id': 'ba40e59f-1f82-49c6-8a8f-91c85beff5ac\n',
    '/proc/version': 'Linux version 6.8.0-49-generic (buildd@lcy02) #49-Ubuntu SMP\n',
    '/proc/devices': 'Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n259 blkext\n',
    '/proc/1/cgroup': '0::/init.scope\n',
    '/dev/shm/.keep': '',
    [`/proc/${OTHER_PID}/root/dev/shm/.keep`]: '',
    ...files,
  };
  for (const [path, text] of Object.entries(all)) if (text !== undefined) write(root + path, text);
  return {
    root,
    // Starting the real one takes longer than all else.
    env: { CUFFI_PYTHON: join(root, 'python'), ...env },
    stat(path) {
      statSync(path);
      return { dev: path.includes(String(OTHER_PID)) ? (there.device ?? 27) : device };
    },
    statfs(path) {
      statSync(path);
      const [bsize, count, bavail] = blocks;
      return { bsize, blocks: count, bavail };
    },
    [Symbol.dispose]: () => rmSync(root, { recursive: true }),
  };
}

/** A text that begins with `-> ` becomes a link. */
function write(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  if (text.startsWith('-> ')) symlinkSync(text.slice(3), path);
  else writeFileSync(path, text, { mode: 0o755 });
}

const NAMESPACES = { pid: 4026531836, ipc: 4026531839, mnt: 4026531841, net: 4026531840, user: 7 };

function filesOf(name: string, pid: number, changes: ProcessChanges): Record<string, string> {
  const { open = 4, env = {} } = changes;
  const folder = `/proc/${name}`;
  const status = {
    Name: 'node',
    Uid: '1001\t1000\t1000\t1000',
    NSpid: `31\t${pid}`,
    CapInh: '0000000000000000',
    CapPrm: 'ffffffffffffffff',
    CapEff: '0000000000000000',
    CapBnd: 'ffffffffffffffff',
    ...changes.status,
  };
  const limits = {
    'Max file locks': ['unlimited', 'unlimited'],
    'Max open files': [65_536, 524_288],
    'Max locked memory': ['unlimited', 'unlimited'],
    ...changes.limits,
  };
  const variables = Object.entries(env).map(([key, value]) => `${key}=${value}\0`);
  const opened = Array.from({ length: open }, (_, fd) => [`${folder}/fd/${fd}`, '-> /dev/null']);
  return {
    [`${folder}/status`]: Object.entries(status)
      .map(([key, value]) => `${key}:\t${value}\n`)
      .join(''),
    [`${folder}/limits`]: ['Limit', ...Object.entries(limits)].map(lineOfLimit).join(''),
    [`${folder}/stat`]: `${pid} (a) b) S ${Array.from({ length: 40 }, (_, at) => at).join(' ')}\n`,
    [`${folder}/cmdline`]: '/usr/bin/node\0server.mjs\0--port\0',
    [`${folder}/environ`]: `HOME=/\0${variables.join('')}`,
    ...Object.fromEntries(opened),
    ...Object.fromEntries(
      Object.entries({ ...NAMESPACES, ...changes.namespaces }).map(([key, inode]) => [
        `${folder}/ns/${key}`,
        `-> ${key}:[${inode}]`,
      ]),
    ),
  };
}

const lineOfLimit = (line: string | [string, readonly (number | string)[]]): string =>
  typeof line === 'string'
    ? 'Limit                     Soft Limit           Hard Limit           Units     \n'
    : `${line[0].padEnd(26)}${line[1].map((each) => String(each).padEnd(21)).join('')}units     \n`;
