import assert from 'node:assert/strict';
import { once } from 'node:events';
import fs, {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  fstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, beforeEach, describe, mock, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { closeFd, createMemfd, libc } from '../../../../../ffi/linux/libc.ts';
import { receiveMessage } from '../../../../../ffi/linux/message.ts';
import { connectSocket, listenSocket, socketPair } from '../../../../../ffi/linux/socket.ts';
import {
  connect,
  type Listener,
  listen,
  type Peer,
  parentPeer,
} from '../../../../../src/ipc/index.ts';
import { isTrusted } from '../../../../../src/ipc/peer/credentials.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { Program } from '../../../../support/program.ts';
import { takeDescriptors } from '../../../ffi/fixtures/descriptors.ts';

const LISTENER = new URL('../fixtures/listener.ts', import.meta.url);
const LOCK_EX = 2;
const F_SETFD = 2;
const O_CLOEXEC = 0o2000000;

const folder = mkdtempSync(join(tmpdir(), 'cuffi-listener-'));
process.env['XDG_RUNTIME_DIR'] = folder;
after(() => rmSync(folder, { recursive: true }));
const entriesOf = (directory: string, part: string): string[] =>
  readdirSync(directory).filter((entry) => entry.includes(part));
const isAtEnd = (socket: number): boolean => receiveMessage(socket) === 'end';
const modeOf = (path: string): number => statSync(path).mode & 0o777;

const notRoot = process.geteuid?.() !== 0 && 'only root can be another user';

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => assert.equal(openDescriptors(), before, 'descriptors'));

const wrong = (options: unknown): object => options as object;

describe('listen and connect', () => {
  for (const name of ['plain-name', join(folder, 'path.sock'), `@cuffi-test-${process.pid}`]) {
    test(`processes connect at ${name.replace(folder, '…').replace(/\d+/, 'N')}`, async () => {
      using listener = listen(name);
      const accepting = listener.accept();
      using client = await connect(name);
      using server = await accepting;
      assert.deepEqual(
        [client.pid, client.uid, server.pid, server.uid],
        [process.pid, process.geteuid?.(), process.pid, process.geteuid?.()],
      );
      await client.send({ hello: 1n });
      assert.deepEqual(await server.receive(), { hello: 1n });
      await server.send('back');
      assert.equal(await client.receive(), 'back');
      if (!name.startsWith('@')) assert.equal(modeOf(listener.name), 0o600);
      assert.throws(() => listen(name), { name: 'IpcError', message: /listens at .* already/ });
      listener.close();
      listener.close();
      assert.equal(existsSync(listener.name), false);
      await assert.rejects(connect(name), { name: 'IpcError', message: /nobody listens there/ });
      // What was accepted stays.
      await client.send('after');
      assert.equal(await server.receive(), 'after');
    });
  }

  test('a plain name is a socket in a directory that only this user can access', () => {
    using listener = listen('x');
    assert.equal(listener.name, join(folder, 'cuffi', 'x'));
    assert.equal(modeOf(join(folder, 'cuffi')), 0o700);
    // Also where its options admit others.
    using admitting = listen('admitting', { allow: () => true });
    assert.deepEqual([modeOf(listener.name), modeOf(admitting.name)], [0o600, 0o600]);
  });

  test('a directory that others can access, that belongs to another user, or is a link, is not trusted', async () => {
    const own = process.env['XDG_RUNTIME_DIR'];
    for (const make of [
      // Each right of the group, and of all others.
      ...[0o720, 0o702, 0o740, 0o704, 0o710, 0o701].map((mode) => (path: string) => {
        mkdirSync(path);
        chmodSync(path, mode);
      }),
      ...(notRoot
        ? []
        : [
            (path: string) => {
              mkdirSync(path, { mode: 0o700 });
              chownSync(path, 65_534, 65_534);
            },
          ]),
      (path: string) => symlinkSync(folder, path),
      (path: string) => writeFileSync(path, ''),
    ]) {
      const runtime = mkdtempSync(join(folder, 'runtime-'));
      process.env['XDG_RUNTIME_DIR'] = runtime;
      make(join(runtime, 'cuffi'));
      const refused = { name: 'IpcError', message: /not a directory of user \d+ alone/ };
      assert.throws(() => listen('x'), refused);
      await assert.rejects(connect('x'), refused);
    }
    if (own) process.env['XDG_RUNTIME_DIR'] = own;
  });

  test('a directory that cannot be made is an IpcError that says why', async () => {
    const own = process.env['XDG_RUNTIME_DIR'];
    const file = join(folder, 'no-directory');
    writeFileSync(file, '');
    for (const [runtime, why] of [
      // Nothing can be made there, not even by root.
      ['/proc/self', 'ENOENT'],
      [file, 'ENOTDIR'],
    ]) {
      process.env['XDG_RUNTIME_DIR'] = runtime;
      const refused = {
        name: 'IpcError',
        message: new RegExp(`^cannot create ${runtime}/cuffi: ${why}`),
      };
      assert.throws(() => listen('x'), refused);
      await assert.rejects(connect('x'), refused);
    }
    if (own) process.env['XDG_RUNTIME_DIR'] = own;
  });

  test('a dead socket is replaced, any other file is not touched', async () => {
    const path = join(folder, 'stale.sock');
    closeFd(listenSocket(path));
    assert.ok(existsSync(path));
    using listener = listen(path);
    using client = await connect(path);
    assert.equal(client.closed, false);
    rmSync(path);
    await assert.rejects(connectElsewhere(path), {
      name: 'IpcError',
      message: /not created by listen/,
    });
    writeFileSync(path, 'a file');
    listener.close();
    assert.throws(() => listen(path), {
      name: 'IpcError',
      message: /exists and is not a socket: remove it/,
    });
    assert.ok(existsSync(path));
    assert.throws(() => listen(join(folder, 'nowhere', 'x')), {
      name: 'IpcError',
      message: /ENOENT/,
    });
  });

  /** Connects where a socket of another kind listens. */
  async function connectElsewhere(path: string): Promise<void> {
    const server = createServer().listen(path);
    await once(server, 'listening');
    try {
      await connect(path);
    } finally {
      server.close();
      await once(server, 'close');
    }
  }

  test('checking whether a name is in use makes no connection', async () => {
    using listener = listen('probed');
    assert.throws(() => listen('probed'), { name: 'IpcError' });
    await assert.rejects(listener.accept({ timeoutMs: 20 }), { name: 'TimeoutError' });
  });

  test('the loop of a listener ends with close(), and pending accepts reject', async () => {
    using listener = listen('loop');
    let count = 0;
    const loop = (async () => {
      for await (const peer of listener) {
        count += 1;
        peer.close();
      }
    })();
    const another = listener.accept();
    for (let i = 0; i < 5; i++) (await connect('loop')).close();
    (await another).close();
    await turnUntil(() => count >= 4);
    listener.close();
    await loop;
    await assert.rejects(listener.accept(), { name: 'ClosedError' });
  });

  test('connect waits for a listener only if asked to, and can be aborted', async () => {
    const reason = new Error('enough');
    await assert.rejects(connect('later', { timeoutMs: 30 }), { name: 'TimeoutError' });
    const abort = new AbortController();
    const given = connect('later', { timeoutMs: 60_000, signal: abort.signal });
    abort.abort(reason);
    await assert.rejects(given, reason);
    const waiting = connect('later', { timeoutMs: 60_000 });
    using listener = listen('later');
    using server = await listener.accept();
    using client = await waiting;
    await server.send(1);
    assert.equal(await client.receive(), 1);
  });

  test('processes of other users are refused, unless the options say otherwise', () => {
    const other = { pid: 1, uid: 4711, gid: 4711 };
    const own = { pid: 1, uid: 1000, gid: 1000 };
    assert.equal(isTrusted(own, {}, 1000), true);
    assert.equal(isTrusted(other, {}, 1000), false);
    assert.equal(isTrusted({ ...other, uid: 0 }, {}, 1000), false);
    assert.equal(isTrusted(other, { allowOtherUsers: false }, 1000), false);
    assert.equal(isTrusted(other, { allowOtherUsers: true }, 1000), true);
    assert.equal(isTrusted(other, { allow: ({ uid }) => uid === 4711 }, 1000), true);
    assert.equal(isTrusted(own, { allow: ({ uid }) => uid === 4711 }, 1000), false);
    for (const answer of ['yes', 1, Promise.resolve(true)])
      assert.throws(() => isTrusted(own, { allow: () => answer as never }, 1000), {
        name: 'TypeError',
        message: /^the result of allow must be true or false/,
      });
  });

  /** Runs `use` as another user, as far as the kernel is concerned. */
  function asNobody<T>(use: () => T): T {
    process.seteuid?.(65_534);
    try {
      return use();
    } finally {
      process.seteuid?.(0);
    }
  }

  test('the kernel reports the user at both ends', { skip: notRoot }, async () => {
    const name = `@cuffi-users-${process.pid}`;
    const refusal = {
      name: 'IpcError',
      code: 'other-user',
      message: /runs as user 65534, not as the user of this process/,
    };
    {
      using listener = listen(name);
      const refused = asNobody(() => connectSocket(name));
      using client = await connect(name);
      using server = await listener.accept();
      assert.equal(server.uid, client.uid);
      closeFd(refused);
    }
    {
      using listener = listen(name, { allow: ({ uid }) => uid === 65_534 });
      const admitted = asNobody(() => connectSocket(name));
      using server = await listener.accept();
      assert.equal(server.uid, 65_534);
      closeFd(admitted);
    }
    {
      using listener = asNobody(() => listen(name));
      await assert.rejects(connect(name), refusal);
      using client = await connect(name, { allowOtherUsers: true });
      assert.equal(client.uid, 65_534);
      (await listener.accept()).close();
      (await listener.accept()).close();
    }
    const path = join(folder, 'open.sock');
    using open: Listener = listen(path, { allowOtherUsers: true });
    assert.equal(modeOf(open.name), 0o666);
  });

  test('an error thrown by allow refuses that process and rejects the accept', async () => {
    let calls = 0;
    const allow = (): boolean => {
      calls += 1;
      if (calls === 1) throw new Error('from allow');
      return true;
    };
    using listener = listen('throws', { allow });
    using first = await connect('throws');
    await assert.rejects(listener.accept(), /from allow/);
    await assert.rejects(first.receive(), {
      name: 'IpcError',
      message: /without a word: it has refused/,
    });
    using second = await connect('throws');
    using server = await listener.accept();
    await server.send(1);
    assert.equal(await second.receive(), 1);
  });

  test('a process that connects at the moment of an abort is closed', async () => {
    const stop = new AbortController();
    const allow = (): boolean => {
      stop.abort(new Error('enough'));
      return true;
    };
    using listener = listen('moment', { allow });
    using client = await connect('moment');
    await assert.rejects(listener.accept({ signal: stop.signal }), /enough/);
    await assert.rejects(client.receive({ timeoutMs: 10_000 }), { name: 'ClosedError' });
    // The next wait takes the next process.
    using next = await connect('moment');
    using server = await listener.accept();
    await server.send('here');
    assert.equal(await next.receive(), 'here');
  });

  /** Lets the loop turn until something holds; fails after so long. */
  async function turnUntil(isSo: () => boolean): Promise<void> {
    const end = performance.now() + 10_000;
    while (!isSo()) {
      assert.ok(performance.now() < end, 'it did not come about');
      await setImmediate();
    }
  }

  test('the event loop turns while a refused process keeps reconnecting', async () => {
    let connections = 0;
    let hasTurned = false;
    // As another process does all the time: there is always one that waits.
    const again = (): boolean => {
      if (!hasTurned && connections < 5000) {
        connections += 1;
        closeFd(connectSocket(listener.name));
      }
      return false;
    };
    using listener = listen('refusing', { allow: again });
    closeFd(connectSocket(listener.name));
    const accepting = listener.accept({ timeoutMs: 60_000 }).catch(() => {});
    // Before the first is taken, and the next turn of the loop after it.
    await setImmediate();
    await setImmediate();
    hasTurned = true;
    assert.ok(connections < 5000, `${connections} were refused in one turn of the loop`);
    listener.close();
    await accepting;
  });

  test('the event loop turns while an accepted process keeps reconnecting', async () => {
    let connections = 0;
    let hasTurned = false;
    using listener = listen('admitting');
    const loop = (async () => {
      for await (const peer of listener) {
        peer.close();
        if (hasTurned || connections === 500) return;
        connections += 1;
        closeFd(connectSocket(listener.name));
      }
    })();
    closeFd(connectSocket(listener.name));
    await setImmediate();
    await setImmediate();
    hasTurned = true;
    await loop;
    assert.ok(connections < 500, `${connections} were accepted in one turn of the loop`);
  });

  test('a process is refused if no descriptor is left for it, and the next is accepted', async (t) => {
    const warnings: NodeJS.ErrnoException[] = [];
    const warned = (warning: Error): void => void warnings.push(warning);
    process.on('warning', warned);
    using listener = listen('short');
    const accepted: Peer[] = [];
    const loop = (async () => {
      for await (const peer of listener) accepted.push(peer);
    })();
    try {
      await setImmediate();
      const begun = performance.now();
      // A warning for the first, none for another before ten seconds are over.
      for (const [after, told] of [
        [0, 1],
        [9_999, 1],
        [10_000, 2],
      ] as const) {
        const clock = t.mock.method(performance, 'now', () => begun + after);
        const refused = [1, 2].map(() => connectSocket(listener.name));
        {
          using _all = takeDescriptors();
          // Refused: its end is there to be read.
          await turnUntil(() => refused.every(isAtEnd));
          assert.equal(accepted.length, 0);
        }
        refused.forEach(closeFd);
        clock.mock.restore();
        assert.deepEqual(
          warnings.map(({ code, message }) => [code, message.includes(listener.name)]),
          Array.from({ length: told }, () => ['CUFFI_REFUSED', true]),
        );
      }
      using client = await connect('short');
      await turnUntil(() => accepted.length === 1);
      await accepted[0]?.send('here');
      assert.equal(await client.receive(), 'here');
    } finally {
      process.off('warning', warned);
      for (const peer of accepted) peer.close();
      listener.close();
      await loop;
    }
  });

  test('a process is refused as well if a descriptor is left only for its socket', async () => {
    using listener = listen('for-one');
    for (let room = 0, isAccepted = false; !isAccepted; room++) {
      assert.ok(room < 16);
      const client = connectSocket(listener.name);
      const accepting = listener.accept().then((peer) => {
        isAccepted = true;
        return peer;
      });
      {
        using _all = takeDescriptors(room);
        await turnUntil(() => isAccepted || isAtEnd(client));
      }
      const next = isAccepted ? undefined : connectSocket(listener.name);
      (await accepting).close();
      closeFd(client);
      if (next !== undefined) {
        closeFd(next);
        isAccepted = false;
      }
    }
  });

  test('a wait for a process can be aborted while no descriptor is left', async () => {
    using listener = listen('given-up');
    const stop = new AbortController();
    {
      using _all = takeDescriptors();
      const opened = mock.method(fs, 'openSync');
      syncBuiltinESMExports();
      const accepting = listener.accept({ signal: stop.signal });
      for (let turn = 0; turn < 100; turn++) await setImmediate();
      // It sleeps meanwhile: each look costs the spare descriptor.
      assert.ok(opened.mock.callCount() < 50, `${opened.mock.callCount()} looks`);
      mock.restoreAll();
      syncBuiltinESMExports();
      stop.abort(new Error('enough'));
      await assert.rejects(accepting, /enough/);
      const closed = assert.rejects(listener.accept(), { name: 'ClosedError' });
      listener.close();
      await closed;
    }
  });

  /** Runs `use` while, before each call of a function of node:fs, `first` is called with its path. */
  function withIntruder<T>(
    name: 'chmodSync' | 'openSync' | 'unlinkSync',
    first: (path: unknown) => void,
    use: () => T,
  ): T {
    const original = fs[name] as (...args: unknown[]) => unknown;
    mock.method(fs, name, (...args: unknown[]) => {
      first(args[0]);
      return original(...args);
    });
    syncBuiltinESMExports();
    try {
      return use();
    } finally {
      mock.restoreAll();
      syncBuiltinESMExports();
    }
  }

  test('a lock on a directory, which any user may take, keeps nobody from listening there', async () => {
    const path = join(folder, 'locked.sock');
    closeFd(listenSocket(path));
    // As a process of another user that may read the directory.
    const foreign = openSync(folder, 'r');
    assert.equal(libc.flock(foreign, LOCK_EX), 0);
    try {
      using listener = listen(path);
      using client = await connect(path);
      assert.equal(client.closed, false);
      assert.deepEqual(entriesOf(folder, 'locked'), ['locked.sock']);
      listener.close();
    } finally {
      closeSync(foreign);
    }
  });

  test('a lock that a killed process left is taken over, and one of another user is reported', () => {
    const path = join(folder, 'dead.sock');
    const lock = join(folder, '.dead.sock.cuffi-lock');
    const make = (): void => {
      closeFd(listenSocket(path));
      writeFileSync(lock, '', { mode: 0o600 });
    };
    make();
    listen(path).close();
    assert.deepEqual(entriesOf(folder, 'dead'), []);

    const refused = { name: 'IpcError', message: /cuffi-lock is not a file of this user alone/ };
    make();
    chmodSync(lock, 0o666);
    assert.throws(() => listen(path), refused);
    rmSync(lock);
    if (notRoot) {
      rmSync(path);
      return;
    }
    writeFileSync(lock, '', { mode: 0o600 });
    chownSync(lock, 65_534, 65_534);
    assert.throws(() => listen(path), refused);
    rmSync(lock);
    symlinkSync(join(folder, 'elsewhere'), lock);
    assert.throws(() => listen(path), { name: 'IpcError', message: /ELOOP/ });
    assert.equal(existsSync(join(folder, 'elsewhere')), false);
    rmSync(lock);
    rmSync(path);
  });

  test('only one of two processes that replace a dead socket at once listens', async () => {
    const path = join(folder, 'contended.sock');
    closeFd(listenSocket(path));
    await using program = new Program(LISTENER);
    await program.next();
    let answer: Promise<string> | undefined;
    const listenHere = (): Listener =>
      withIntruder(
        'unlinkSync',
        (removed) => {
          if (removed !== path || answer) return;
          // This one has found it dead. The other one comes now, and has time to find the same.
          answer = program.ask<string>({ listen: path });
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
        },
        () => listen(path),
      );
    const refused = /another process listens at/;
    // Either may be the one, and the other hears of it.
    let here: Listener | undefined;
    try {
      here = listenHere();
    } catch (error) {
      assert.match(String(error), refused);
    }
    try {
      const there = (await answer) as string;
      if (here) assert.match(there, refused);
      else assert.equal(there, 'listening');
      using client = await connect(path);
      assert.equal(client.pid, here ? process.pid : program.pid);
    } finally {
      here?.close();
    }
    await program.ask({});
    assert.deepEqual(entriesOf(folder, 'contended'), []);
  });

  test('a socket of a killed process is removed when another process listens at another name', async () => {
    {
      await using program = new Program(LISTENER);
      await program.next();
      assert.equal(await program.ask({ listen: 'to-be-killed' }), 'listening');
      using _another = listen('beside-it');
      assert.deepEqual(entriesOf(join(folder, 'cuffi'), 'killed'), ['to-be-killed']);
      await program.kill();
    }
    writeFileSync(join(folder, 'cuffi', 'no-socket-of-a-killed'), '');
    using live = listen('lives-on');
    using next = listen('next');
    assert.deepEqual(entriesOf(join(folder, 'cuffi'), 'killed'), ['no-socket-of-a-killed']);
    assert.ok(existsSync(live.name) && existsSync(next.name));
  });

  test('a process that exits while it listens leaves no socket', async () => {
    for (const name of ['ends-here', join(folder, 'ends-here.sock')]) {
      await using program = new Program(LISTENER);
      await program.next();
      assert.equal(await program.ask({ listen: name }), 'listening');
      const path = name.startsWith('/') ? name : join(folder, 'cuffi', name);
      assert.ok(existsSync(path));
      const exit = once(program.process, 'exit');
      program.process.send({ end: true });
      assert.deepEqual(await exit, [0, null]);
      assert.equal(existsSync(path), false);
    }
  });

  test('a relative path is resolved at the time of the call', async () => {
    const [here, there] = [mkdtempSync(join(folder, 'here-')), mkdtempSync(join(folder, 'there-'))];
    const before = process.cwd();
    try {
      process.chdir(here);
      const late = connect('./late.sock', { timeoutMs: 60_000 });
      const listener = listen('./early.sock');
      assert.equal(listener.name, join(here, 'early.sock'));
      process.chdir(there);
      using client = await connect(listener.name);
      client.close();
      listener.close();
      assert.equal(existsSync(join(here, 'early.sock')), false);
      using later = listen(join(here, 'late.sock'));
      using found = await late;
      assert.equal(found.closed, false);
      later.close();
    } finally {
      process.chdir(before);
    }
  });

  test('a path that is too long can be used from a working directory near it', async () => {
    const deep = join(folder, 'd'.repeat(60), 'e'.repeat(60));
    mkdirSync(deep, { recursive: true });
    const path = join(deep, '@socket');
    for (const options of [{}, { allowOtherUsers: true }])
      assert.throws(() => listen(path, options), {
        name: 'RangeError',
        message: /has \d+ bytes, and the path of a socket has at most 107: choose a shorter one/,
      });
    await assert.rejects(connect(path), RangeError);
    const before = process.cwd();
    try {
      process.chdir(deep);
      for (const options of [{}, { allowOtherUsers: true }]) {
        closeFd(listenSocket('./@socket'));
        using listener = listen('./@socket', options);
        using client = await connect(path);
        client.close();
        listener.close();
        assert.equal(existsSync(path), false);
      }
    } finally {
      process.chdir(before);
    }
  });

  test('a socket for all users changes no mode but its own, whatever is put in its place', () => {
    const shared = mkdtempSync(join(folder, 'shared-'));
    const secret = join(mkdtempSync(join(folder, 'private-')), 'key');
    writeFileSync(secret, 'private', { mode: 0o600 });
    const path = join(shared, 'x.sock');
    const usual = process.umask(0o077);
    try {
      let replaced = 0;
      withIntruder(
        'chmodSync',
        () => {
          for (const entry of readdirSync(shared)) {
            const at = join(shared, entry);
            const isDirectory = statSync(at).isDirectory();
            renameSync(at, join(folder, `taken-${replaced}`));
            replaced += 1;
            if (isDirectory) mkdirSync(at);
            symlinkSync(secret, isDirectory ? join(at, 'socket') : at);
          }
        },
        () => {
          using listener = listen(path, { allowOtherUsers: true });
          assert.equal(modeOf(listener.name), 0o666);
        },
      );
      assert.equal(modeOf(secret), 0o600);
      assert.equal(replaced, 1);
      // What the other user has put there is left alone.
      assert.equal(readdirSync(shared).length, 1);
      assert.equal(existsSync(path), false);
    } finally {
      process.umask(usual);
    }
  });

  test("a directory that replaces the process's own one is not used", () => {
    const shared = mkdtempSync(join(folder, 'shared-'));
    for (const put of [
      (at: string) => mkdirSync(at, { mode: 0o777 }),
      (at: string) => symlinkSync(folder, at),
      (at: string) => {
        mkdirSync(at, { mode: 0o700 });
        if (!notRoot) chownSync(at, 65_534, 65_534);
        else chmodSync(at, 0o755);
      },
    ]) {
      const usual = process.umask(0);
      try {
        const use = (): void => {
          listen(join(shared, 'x.sock'), { allowOtherUsers: true });
        };
        const first = (): void => {
          for (const entry of readdirSync(shared)) {
            rmSync(join(shared, entry), { recursive: true });
            put(join(shared, entry));
          }
        };
        withIntruder('openSync', first, () => assert.throws(use, { name: 'IpcError' }));
      } finally {
        process.umask(usual);
      }
      for (const entry of readdirSync(shared)) rmSync(join(shared, entry), { recursive: true });
    }
  });

  test('a socket for all users is complete when it appears, and leaves no other files', async () => {
    const shared = mkdtempSync(join(folder, 'shared-'));
    const path = join(shared, 'x.sock');
    closeFd(listenSocket(path));
    using listener = listen(path, { allowOtherUsers: true });
    assert.deepEqual(readdirSync(shared), ['x.sock']);
    assert.equal(modeOf(path), 0o666);
    assert.throws(() => listen(path, { allowOtherUsers: true }), /this process listens at/);
    assert.deepEqual(readdirSync(shared), ['x.sock']);
    using client = await connect(path);
    client.close();
    listener.close();
    assert.deepEqual(readdirSync(shared), []);
  });

  test('invalid arguments are refused', async () => {
    assert.throws(() => listen('x', wrong({ mode: 1 })), /unknown option 'mode'/);
    assert.throws(() => listen('x', wrong({ allow: 1 })), TypeError);
    assert.throws(() => listen('@x', { allow: () => true, allowOtherUsers: true }), TypeError);
    assert.throws(() => listen('x', { allowOtherUsers: true }), /other users cannot reach "x"/);
    assert.throws(() => listen(1 as never), TypeError);
    for (const orphanGraceMs of [-1, 0.5, 2 ** 31, Number.NaN]) {
      assert.throws(() => listen('x', { orphanGraceMs }), /orphanGraceMs .* from 0 to 2147483647/);
      await assert.rejects(connect('x', { orphanGraceMs }), RangeError);
    }
    for (const name of ['', '.', '..', 'a\0b', 'x'.repeat(108), '@']) {
      assert.throws(() => listen(name), RangeError, name);
      await assert.rejects(connect(name), RangeError, name);
    }
    await assert.rejects(connect('x', wrong({ retry: true })), /unknown option 'retry'/);
    await assert.rejects(connect('x', { timeoutMs: 0.5 }), RangeError);
  });

  test('a process that spawnPeer did not start has no parent', () => {
    for (const told of [undefined, '', '3:1', '0:99', 'x'] as const) {
      if (told !== undefined) process.env['CUFFI_PARENT'] = told;
      assert.throws(parentPeer, { name: 'IpcError', message: /not started by spawnPeer/ });
      assert.equal(process.env['CUFFI_PARENT'], undefined);
    }
    // A descriptor of that number that is another socket, and a descriptor of that inode that is not a socket.
    const [near, far] = socketPair();
    const file = createMemfd('file', 0);
    for (const told of [`${near}:1`, `${file}:${fstatSync(file).ino}`]) {
      process.env['CUFFI_PARENT'] = told;
      assert.throws(parentPeer, { name: 'IpcError', message: /not started by spawnPeer/ });
    }
    [near, far, file].forEach(closeFd);
  });

  test('the connection to a parent is not inherited by programs that its child starts', () => {
    const [near, far] = socketPair();
    const isInherited = (): boolean => {
      const flags = /^flags:\s*(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${near}`, 'utf8'));
      return (Number.parseInt(flags?.[1] ?? '', 8) & O_CLOEXEC) === 0;
    };
    // As it comes through the start of a program.
    assert.equal(libc.fcntl(near, F_SETFD, 0), 0);
    assert.equal(isInherited(), true);
    process.env['CUFFI_PARENT'] = `${near}:${fstatSync(near).ino}`;
    const parent = parentPeer();
    assert.equal(isInherited(), false);
    assert.equal(process.env['CUFFI_PARENT'], undefined);
    assert.equal(parentPeer(), parent);
    parent.close();
    closeFd(far);
  });
});
