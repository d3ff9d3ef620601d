/** The doctor beside processes in namespaces of their own, as containers have them. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { Finding } from '../../src/cli/doctor/finding.ts';
import { DeviceBuffer, VirtualMemory } from '../../src/index.ts';
import { exportIpc, getIpcHandle } from '../../src/ipc/index.ts';
import { factsFromProc, ownFacts } from '../../src/ipc/inspect/process-facts.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { killed, programFile, startProcess } from '../support/program.ts';

const runtime = mkdtempSync(join(tmpdir(), 'cuffi-doctor-'));
const directory = join(runtime, 'cuffi', 'inspect');
after(() => rmSync(runtime, { recursive: true }));

const APART = ['unshare', '--pid', '--net', '--mount', '--mount-proc', '--fork', '--kill-child'];
const OWN_SHM = [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mount -t tmpfs none /dev/shm && exec "$@"',
  'sh',
];
const mayMakeNamespaces = spawnSync('unshare', [...APART.slice(1), 'true']).status === 0;
const inNamespaces = {
  skip: !mayMakeNamespaces && 'this process may not make namespaces (unshare)',
};

const environment = { ...process.env, XDG_RUNTIME_DIR: runtime, CUFFI_INSPECT: '' };
const commandOf = (place: readonly string[], url: URL, args: readonly string[]): string[] => {
  const { path, execArgv } = programFile(url);
  return [...place, process.execPath, ...execArgv, path, ...args];
};

/** Starts a process that shares, in some place; its socket is there when this resolves. */
async function share(place: readonly string[] = [], env: NodeJS.ProcessEnv = {}, task = ['share']) {
  const before = new Set(sockets());
  const args = [...task, ...(task[0] === 'share' ? [join(runtime, 'listener')] : [])];
  const url = new URL('./fixtures/inspected.ts', import.meta.url);
  const [file = '', ...rest] = commandOf(place, url, args);
  const child = startProcess(file, rest, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...environment, ...env },
  });
  await createInterface(child.stdout)[Symbol.asyncIterator]().next();
  const isAsked = env['CUFFI_INSPECT'] !== '0' && task[0] === 'share';
  const isThere = (): boolean => sockets().some((name) => !before.has(name));
  for (let tries = 0; isAsked && tries < 1000 && !isThere(); tries += 1) await delay(10);
  return { pid: child.pid as number, [Symbol.asyncDispose]: () => killed(child) };
}

function sockets(): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

/** Runs the doctor beside a process. */
function doctor(
  pid: number | '-',
  place: readonly string[] = [],
  input = '',
  options = ['--json'],
) {
  const url = new URL('../../src/cli/main.ts', import.meta.url);
  const [file = '', ...args] = commandOf(place, url, ['doctor', ...options, '--with', String(pid)]);
  const { status, stdout, stderr } = spawnSync(file, args, {
    env: environment,
    encoding: 'utf8',
    input,
    timeout: 60_000,
    killSignal: 'SIGKILL',
  });
  const { findings = [] } = (stdout.startsWith('{') ? JSON.parse(stdout) : {}) as {
    findings?: Finding[];
  };
  return {
    code: status,
    stdout,
    stderr,
    find: (name: string) => findings.find((each) => each.name === name),
    kinds: Object.fromEntries(
      findings
        .filter(({ group }) => group === 'works between them')
        .map(({ name, status: found }) => [name, found]),
    ),
  };
}

const ALL_OK = {
  'plain memory': 'ok',
  pool: 'ok',
  'virtual memory': 'ok',
  'read-only': 'ok',
  event: 'ok',
  timeline: 'ok',
};

describe('cuffi doctor --with', () => {
  test('tries each kind with the process', async () => {
    await using other = await share();
    const { code, kinds, find } = doctor(other.pid);
    assert.deepEqual([code, kinds], [0, ALL_OK]);
    assert.equal(find('asked')?.status, 'ok');
  });

  test('of a process without a socket it knows what /proc tells', async () => {
    await using other = await share([], { CUFFI_INSPECT: '0' });
    const { code, kinds, find } = doctor(other.pid);
    assert.deepEqual([code, new Set(Object.values(kinds))], [0, new Set(['unknown'])]);
    assert.deepEqual(
      ['asked', 'GPU', 'pid namespace', '/dev/shm'].map((name) => find(name)?.status),
      ['unknown', 'unknown', 'ok', 'ok'],
    );
    const nobody = doctor(0x3f_fff0);
    assert.equal(nobody.code, 2);
    assert.match(nobody.stderr, /^cuffi: there is no process 4194288 that is seen here\n$/);
    assert.match(
      doctor('-', [], '{}').stderr,
      /^cuffi: stdin has no descriptor: .*\nSee cuffi help doctor\.\n$/s,
    );
  });

  test('compares with the process that made a descriptor, and says if it can be opened', () => {
    using buffer = DeviceBuffer.allocate(4096);
    using memory = VirtualMemory.reserve(4096, { shareable: true });
    const plain = getIpcHandle(buffer);
    const other = plain.pidNamespace + 1;
    for (const [descriptor, source, openable, code] of [
      [plain, /^only \/proc: /, 'unknown', 0],
      [exportIpc(memory.grow(4096)).descriptor, /^only \/proc: /, 'unknown', 0],
      [withChecksum({ ...plain, startTime: 1 }), /^only its descriptor: /, 'no', 1],
      [withChecksum({ ...plain, pidNamespace: other }), /^only its descriptor: /, 'unknown', 0],
    ] as const) {
      const { find, code: ended } = doctor('-', [], JSON.stringify(descriptor));
      assert.match(String(find('asked')?.fact), source);
      assert.deepEqual([find('openable')?.status, ended], [openable, code]);
      assert.match(String(find('openable')?.fact), /process|file descriptors|namespace/);
    }
    const gone = JSON.stringify(withChecksum({ ...plain, startTime: 1 }));
    for (const [input, isOpenable] of [
      [gone, false],
      [JSON.stringify(plain), true],
    ] as const) {
      const { stdout } = doctor('-', [], input, []);
      assert.match(stdout, /\nWorks: .*\. Does not: .*\. Unknown: [^.]*\.( The [^.]*\.)?\n$/);
      assert.equal(stdout.endsWith(' The descriptor cannot be opened.\n'), !isOpenable);
    }
  });

  test('finds that two containers have processes of the same pid', inNamespaces, async () => {
    await using _other = await share(APART);
    const { code, kinds, find } = doctor(1, APART);
    assert.deepEqual([code, kinds], [1, { ...ALL_OK, 'plain memory': 'no', event: 'no' }]);
    assert.equal(find('pid number')?.status, 'no');
    assert.match(String(find('plain memory')?.fact), /^pid number: both are process 1 .*; tried: /);
    assert.match(String(find('plain memory')?.remedy), /--pid=host/);
  });

  test('finds that a container has its own pid and network namespaces', inNamespaces, async () => {
    await using other = await share(APART);
    const { kinds, find } = doctor(childOf(other.pid));
    assert.deepEqual(
      ['pid namespace', 'net namespace', 'ipc namespace'].map((name) => find(name)?.status),
      ['no', 'no', 'ok'],
    );
    assert.deepEqual(
      [kinds['pool'], kinds['virtual memory'], kinds['timeline']],
      ['ok', 'ok', 'ok'],
    );
  });

  test(
    'finds that a container has its own /dev/shm, also by /proc alone',
    inNamespaces,
    async () => {
      for (const CUFFI_INSPECT of ['', '0']) {
        await using other = await share(OWN_SHM, { CUFFI_INSPECT });
        const { find } = doctor(other.pid);
        assert.equal(find('/dev/shm')?.status, 'no');
        assert.match(String(find('/dev/shm')?.remedy), /--ipc=host/);
      }
    },
  );

  test(
    'finds by /proc alone that a container has a process of its own pid',
    inNamespaces,
    async () => {
      await using other = await share(APART, { CUFFI_INSPECT: '0' });
      const pid = childOf(other.pid);
      const { pid: seen, namespaces } = factsFromProc(pid) ?? {};
      assert.equal(seen, 1);
      assert.notEqual(namespaces?.pid, ownFacts().namespaces.pid);
      assert.equal(doctor(pid).find('pid namespace')?.status, 'no');
    },
  );

  const asRoot = { skip: process.geteuid?.() !== 0 && 'only root can be another user' };
  test('finds that a process is of another user', asRoot, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-other-'));
    try {
      spawnSync('chmod', ['777', folder]);
      await using other = await share([], {}, ['listen-as', '65534', join(folder, 'socket')]);
      const { code, find } = doctor(other.pid);
      assert.deepEqual(
        [code, find('user')?.status, find('user')?.fact],
        [1, 'no', 'here 0, there 65534'],
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

/** The process that unshare has started. */
const childOf = (pid: number): number =>
  Number(
    spawnSync('cat', [`/proc/${pid}/task/${pid}/children`], { encoding: 'utf8' }).stdout.split(
      ' ',
    )[0],
  );
