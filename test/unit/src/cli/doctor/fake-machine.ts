/** The files that the doctor reads, as a Linux machine has them, in a folder: a test changes some of them. */
import { mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Machine } from '../../../../../src/ipc/inspect/process-facts.ts';

/** The largest that a command line may name: no process has it. */
export const OTHER_PID = 2 ** 22;

/** What is known of a process, each value as text. */
const processes = () =>
  ['self', String(OTHER_PID)].map((name, at) => ({
    name,
    /** The lines of its `status`, `limits` and `environ`. */
    status: {
      Name: 'node',
      Uid: '1001 1000 1000 1000',
      NSpid: `31 ${at === 0 ? 4711 : 815}`,
      CapPrm: 'ffffffffffffffff',
      CapEff: '0000000000000000',
      CapBnd: 'ffffffffffffffff',
    } as Record<string, string>,
    limits: {
      'Max file locks': 'unlimited unlimited',
      'Max open files': '65536 524288',
      'Max locked memory': 'unlimited unlimited',
    } as Record<string, string>,
    env: {} as Record<string, string>,
    /** The numbers of its namespaces. */
    ns: { pid: '1', ipc: '2', mnt: '3', net: '4', user: '5' } as Record<string, string>,
    /** How many descriptors are open. */
    fd: '4',
    /** The device number of its /dev/shm. */
    device: '27',
  }));

type Process = ReturnType<typeof processes>[number];

/**
 * A machine; dispose removes its folder. `changes` are separated by semicolons: a path with the text of the
 * file, or a fact of this process or, after `there`, of the other. The value `-` removes a file.
 */
export function fakeMachine(changes = ''): Machine & Disposable {
  const [self, there] = processes() as [Process, Process];
  const files: Record<string, string> = {
    '/proc/sys/kernel/random/boot_id': 'ba40e59f-1f82-49c6-8a8f-91c85beff5ac\n',
    '/proc/version': 'Linux version 6.8.0-49-generic (buildd@lcy02) #49-Ubuntu SMP\n',
    '/proc/devices': 'Character devices:\n  1 mem\n195 nvidia\n',
    '/proc/1/cgroup': '0::/init.scope\n',
    '/dev/shm/.keep': '',
    [`/proc/${OTHER_PID}/root/dev/shm/.keep`]: '',
    '/python':
      "#!/bin/sh\nprintf '%s\\n' 'python 3.11.7' 'torch 2.5.1' 'jax 0.4' 'nccl /site/nvidia/nccl'\n",
  };
  const changed: Record<string, string> = {};
  let blocks = '4096 16384 8192';
  for (const [, who, key = '', name, value = ''] of changes.matchAll(
    /(there )?([a-z]+|\/[^ ;]*)(?: ([^;=]+?))? = ?([^;]*)/g,
  )) {
    const process = (who ? there : self) as unknown as Record<string, unknown>;
    if (key.startsWith('/')) changed[key] = value.replaceAll('\\n', '\n');
    else if (key === 'shm') blocks = value;
    else if (name === undefined) process[key] = value;
    else (process[key] as Record<string, string>)[name] = value;
  }
  const root = mkdtempSync(join(tmpdir(), 'cuffi-machine-'));
  const all = { ...files, ...filesOf(self), ...filesOf(there), ...changed };
  for (const [path, text] of Object.entries(all)) if (text !== '-') write(root + path, text);
  return {
    root,
    env: { CUFFI_PYTHON: join(root, 'python'), ...self.env },
    stat(path) {
      statSync(path);
      return { dev: Number((path.includes(there.name) ? there : self).device) };
    },
    statfs(path) {
      statSync(path);
      const [bsize = 0, count = 0, bavail = 0] = blocks.split(' ').map(Number);
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

function filesOf({ name, status, limits, env, ns, fd }: Process): Record<string, string> {
  const lines = (of: Record<string, string>, line: (key: string, value: string) => string) =>
    Object.entries(of).map(([key, value]) => line(key, value));
  const limit = (key: string, value: string): string =>
    `${key.padEnd(26)}${value.replace(' ', ' '.repeat(12)).padEnd(42)}units     \n`;
  const folder = `/proc/${name}`;
  return {
    [`${folder}/status`]: lines(status, (k, v) => `${k}:\t${v.replaceAll(' ', '\t')}\n`).join(''),
    [`${folder}/limits`]: `Limit   Soft Limit  Hard Limit  Units\n${lines(limits, limit).join('')}`,
    [`${folder}/stat`]: `815 (a) b) S ${Array.from({ length: 40 }, (_, at) => at).join(' ')}\n`,
    [`${folder}/cmdline`]: '/usr/bin/node\0server.mjs\0--port\0',
    [`${folder}/environ`]: lines({ HOME: '/', ...env }, (k, v) => `${k}=${v}\0`).join(''),
    ...Object.fromEntries(
      Array.from({ length: Number(fd) }, (_, each) => [`${folder}/fd/${each}`, '-> /dev/null']),
    ),
    ...Object.fromEntries(
      lines(ns, (k, v) => `${k} ${v}`).map((each) => {
        const [kind, inode] = each.split(' ');
        return [`${folder}/ns/${kind}`, `-> ${kind}:[${inode}]`];
      }),
    ),
  };
}
