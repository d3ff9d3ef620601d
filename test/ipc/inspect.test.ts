/** The socket by which one process asks another what it shares, and tries each kind with it. */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { closeFd } from '../../ffi/linux/libc.ts';
import { sendMessage } from '../../ffi/linux/message.ts';
import { closeSocket, connectSocket, listenSocket } from '../../ffi/linux/socket.ts';
import type { DeviceBuffer } from '../../src/index.ts';
import { connect, listen } from '../../src/ipc/index.ts';
import {
  type InspectedProcess,
  inspect,
  inspectableProcesses,
  probe,
} from '../../src/ipc/inspect/inspect-client.ts';
import { encodeRequest } from '../../src/ipc/inspect/inspect-messages.ts';
import { PROBES } from '../../src/ipc/inspect/probes.ts';
import { factsFromProc, ownFacts } from '../../src/ipc/inspect/process-facts.ts';
import { killed, startProgram } from '../support/program.ts';
import { SharedProcesses } from '../support/shared-processes.ts';

const runtime = mkdtempSync(join(tmpdir(), 'cuffi-inspect-'));
process.env['XDG_RUNTIME_DIR'] = runtime;
const directory = join(runtime, 'cuffi', 'inspect');
const DEADLINE_MS = 20_000;

after(() => rmSync(runtime, { recursive: true }));

/** Starts the fixture, and waits for its first line. */
async function start(args: readonly string[], env: NodeJS.ProcessEnv = {}) {
  const child = startProgram(new URL('./fixtures/inspected.ts', import.meta.url), args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, CUFFI_INSPECT: '', ...env },
  });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const { value: line } = await lines.next();
  return { child, line, pid: child.pid as number, [Symbol.asyncDispose]: () => killed(child) };
}

async function exitOf(child: ChildProcess): Promise<number | null> {
  if (child.exitCode === null) await once(child, 'exit');
  return child.exitCode;
}

/** Asks again until the answer is as expected. */
async function eventually<T>(ask: () => T | Promise<T>, isRight: (value: T) => boolean) {
  const until = performance.now() + DEADLINE_MS;
  let value = await ask();
  while (!isRight(value) && performance.now() < until) {
    await delay(10);
    value = await ask();
  }
  assert.ok(isRight(value), `still ${JSON.stringify(value)}`);
  return value;
}

/** The socket of a process, when it is there. */
async function socketOf(pid: number): Promise<string> {
  const found = await eventually(
    () => inspectableProcesses().find((process) => process.pid === pid),
    (process) => process !== undefined,
  );
  return (found as InspectedProcess).path;
}

let listeners = 0;
async function sharing() {
  listeners += 1;
  const listener = join(runtime, `listener-${listeners}`);
  return { ...(await start(['share', listener])), listener };
}

const descriptorsOf = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;

const asRoot = { skip: process.geteuid?.() !== 0 && 'only root can be another user' };
const OTHER = '65534';

describe('the socket for inspection', () => {
  test('lists what a process shares, and who has it', async () => {
    await using sharer = await sharing();
    const path = await socketOf(sharer.pid);
    assert.deepEqual((await inspect(path, 'list')).objects, []);
    using peer = await connect<{ buffer: DeviceBuffer }>(sharer.listener);
    const { buffer } = await peer.receive();
    const { process: owner, objects, omitted } = await inspect(path, 'list');
    assert.deepEqual([owner.pid, owner.user, omitted], [sharer.pid, process.geteuid?.(), 0]);
    assert.deepEqual(
      objects.map(({ kind, byteLength, holders }) => [kind, byteLength, holders.map((h) => h.pid)]),
      [['memory', 1 << 20, [process.pid]]],
    );
    buffer.close();
    await eventually(
      async () => (await inspect(path, 'list')).objects.flatMap(({ holders }) => holders).length,
      (count) => count === 0,
    );
  });

  test('keeps no process alive, and is removed at its exit', async () => {
    await using exporter = await start(['export']);
    const path = await socketOf(exporter.pid);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    assert.equal(statSync(directory).mode & 0o777, 0o700);
    assert.equal(await exitOf(exporter.child), 0);
    assert.ok(!existsSync(path));
  });

  test('the socket of a killed process is swept', async () => {
    const sharer = await sharing();
    const path = await socketOf(sharer.pid);
    await killed(sharer.child);
    assert.ok(existsSync(path));
    assert.ok(!inspectableProcesses().some(({ pid }) => pid === sharer.pid));
    assert.ok(!existsSync(path));
  });

  test('CUFFI_INSPECT=0, and a worker thread, open none', async () => {
    await using off = await start(['export'], { CUFFI_INSPECT: '0' });
    await using worker = await start(['worker']);
    assert.equal(await exitOf(off.child), 0);
    assert.deepEqual([off.line, worker.line], ['ready', 'ready']);
    assert.deepEqual(inspectableProcesses(), []);
  });

  test('no listener may have the name of its folder', () => {
    assert.throws(() => listen('inspect'), {
      name: 'RangeError',
      message: "the name 'inspect' is reserved for cuffi ls: use another one",
    });
  });

  test('an error is reported as it is, not as a busy process', async (t) => {
    const path = join(runtime, 'silent');
    const silent = listenSocket(path);
    await assert.rejects(inspect(path, 'list', 5), /did not answer within 0\.005 s/);
    t.mock.method(AbortSignal, 'timeout', () => AbortSignal.abort(new Error('no wait')));
    await assert.rejects(inspect(path, 'list', 5), /^Error: no wait$/);
    closeSocket(silent);
    rmSync(path);
  });

  test("another user's socket is not asked", asRoot, async () => {
    const folder = join(runtime, 'theirs');
    mkdirSync(folder, { mode: 0o777 });
    chmodSync(folder, 0o777);
    chmodSync(runtime, 0o755);
    await using stranger = await start(['listen-as', OTHER, join(folder, 'socket')]);
    const path = join(directory, `${stranger.pid}-1`);
    renameSync(join(folder, 'socket'), path);
    assert.deepEqual(inspectableProcesses(), []);
    await assert.rejects(inspect(path, 'list'), { code: 'other-user' });
  });

  describe('of a process that shares', () => {
    const shared = new SharedProcesses(1, {
      start: sharing,
      // It gives all that connect the same, and keeps nothing.
      clear: () => Promise.resolve(),
      end: (sharer) => sharer[Symbol.asyncDispose](),
    });

    test('tells what decides whether memory can be shared, as /proc does', async () => {
      const [sharer] = shared.lend();
      const path = await socketOf(sharer.pid);
      const told = await inspect(path, 'facts');
      const seen = factsFromProc(sharer.pid);
      assert.equal(told.pid, sharer.pid);
      assert.equal(told.startTime, seen?.startTime);
      for (const facts of [seen, ownFacts()]) {
        assert.deepEqual(told.namespaces, facts?.namespaces);
        assert.equal(told.sharedMemory, facts?.sharedMemory);
        assert.equal(told.machine, facts?.machine);
        assert.equal(told.user, facts?.user);
      }
      assert.equal(told.devices?.length, ownFacts().devices?.length ?? told.devices?.length);
      assert.match(String(told.devices?.[0]?.uuid), /^(GPU|MIG)-/);
      assert.equal(factsFromProc(0x7fff_fff0), undefined);
    });

    test('every kind of sharing is tried with the process, and nothing of it is left', async () => {
      const [sharer] = shared.lend();
      const path = await socketOf(sharer.pid);
      const names = (): Promise<string[]> =>
        inspect(path, 'list').then(({ objects }) => objects.map(({ kind }) => kind));
      const { results, reason } = await probe(path);
      assert.equal(reason, '');
      assert.deepEqual(
        results.map(({ name, ok, reason: why }) => [name, ok ? 'ok' : why]),
        PROBES.map(({ name }) => [name, 'ok']),
      );
      assert.deepEqual(await eventually(names, (kinds) => kinds.length === 0), []);
      const again = await eventually(
        () => probe(path).catch(() => undefined),
        (report) => report !== undefined,
      );
      assert.equal(again?.results.length, PROBES.length);
    });

    test('a hostile client gets nothing, and others are answered', async () => {
      const [sharer] = shared.lend();
      const path = await socketOf(sharer.pid);
      await inspect(path, 'list');
      const before = descriptorsOf(sharer.pid);
      const file = openSync('/dev/null', 'r');
      const clients: number[] = [];
      const send = (bytes: Uint8Array, fds: readonly number[] = []): void => {
        const socket = connectSocket(path);
        clients.push(socket);
        sendMessage(socket, bytes, fds);
      };
      send(Buffer.from('{"cuffi":1,"ask":"everything"}'));
      send(Buffer.from('{'));
      send(Buffer.from('null'));
      send(Buffer.alloc(60_000, 0x20));
      send(encodeRequest('list'), [file, file, file]);
      // They say nothing, so they hold the places of others until they close.
      for (let count = 0; count < 40; count += 1) clients.push(connectSocket(path));
      // The kernel tells of every connection before it accepts the next.
      await assert.rejects(inspect(path, 'list'), /refused to answer/);
      for (const client of clients) closeSocket(client);
      closeFd(file);
      const answered = await eventually(
        () => inspect(path, 'list').catch(() => undefined),
        (reply) => reply !== undefined,
      );
      assert.equal(answered?.process.pid, sharer.pid);
      await eventually(
        () => descriptorsOf(sharer.pid),
        (count) => count <= before,
      );
    });

    test('one client at a time is offered probes, and may go at any moment', async () => {
      const [sharer] = shared.lend();
      const path = await socketOf(sharer.pid);
      const silent = connectSocket(path);
      sendMessage(silent, encodeRequest('probes'));
      await inspect(path, 'list');
      await assert.rejects(probe(path), /refused to answer/);
      sendMessage(silent, Buffer.alloc(100, 0xff));
      closeSocket(silent);
      const report = await eventually(
        () => probe(path).catch(() => undefined),
        (found) => found !== undefined,
      );
      assert.ok(report?.results.every(({ ok }) => ok));
    });

    test('another user is not answered', asRoot, async () => {
      const [sharer] = shared.lend();
      const path = await socketOf(sharer.pid);
      for (const folder of [runtime, join(runtime, 'cuffi'), directory]) chmodSync(folder, 0o755);
      chmodSync(path, 0o666);
      try {
        await using stranger = await start(['ask-as', OTHER, path]);
        assert.equal(stranger.line, 'end');
      } finally {
        for (const folder of [runtime, join(runtime, 'cuffi'), directory]) chmodSync(folder, 0o700);
      }
    });
  });
});
