import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, beforeEach, test } from 'node:test';
import { closeFd } from '../../../../../ffi/libc.ts';
import { connectSocket, listenSocket } from '../../../../../ffi/socket.ts';
import { connect, type Listener, listen, parentPeer } from '../../../../../src/ipc/index.ts';
import { isTrusted } from '../../../../../src/ipc/peer/credentials.ts';
import { openDescriptors } from '../../../../support/descriptors.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-listener-'));
process.env['XDG_RUNTIME_DIR'] = folder;
after(() => rmSync(folder, { recursive: true }));
const modeOf = (path: string): number => statSync(path).mode & 0o777;

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => assert.equal(openDescriptors(), before, 'descriptors'));

const wrong = (options: unknown): object => options as object;

for (const name of ['plain-name', join(folder, 'path.sock'), `@cuffi-test-${process.pid}`]) {
  test(`strangers meet at ${name.replace(folder, '…').replace(/\d+/, 'N')}`, async () => {
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

test('a plain name is a socket in a directory of this user alone', () => {
  using listener = listen('x');
  assert.equal(listener.name, join(folder, 'cuffi', 'x'));
  assert.equal(modeOf(join(folder, 'cuffi')), 0o700);
});

test('a directory that others may write to, or a link, is not trusted', async () => {
  const own = process.env['XDG_RUNTIME_DIR'];
  for (const make of [
    (path: string) => mkdirSync(path, { mode: 0o755 }),
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

test('a dead socket is replaced, anything else is left alone', async () => {
  const path = join(folder, 'stale.sock');
  closeFd(listenSocket(path));
  assert.ok(existsSync(path));
  using listener = listen(path);
  using client = await connect(path);
  assert.equal(client.closed, false);
  rmSync(path);
  await assert.rejects(connectElsewhere(path), { name: 'IpcError', message: /not one of listen/ });
  writeFileSync(path, 'a file');
  listener.close();
  assert.throws(() => listen(path), { name: 'IpcError', message: /no socket: it is left alone/ });
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

test('looking whether a name is in use is not a connection', async () => {
  using listener = listen('probed');
  assert.throws(() => listen('probed'), { name: 'IpcError' });
  await assert.rejects(listener.accept({ timeoutMs: 20 }), { name: 'TimeoutError' });
});

test('the loop of a listener ends with close(), and waiting accepts are told', async () => {
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
  while (count < 4) await new Promise(setImmediate);
  listener.close();
  await loop;
  await assert.rejects(listener.accept(), { name: 'ClosedError' });
});

test('connect waits for a listener only if asked, and can be given up', async () => {
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
      message: /^what allow answers must be true or false/,
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

const notRoot = process.geteuid?.() !== 0 && 'only root can be another user';

test('the kernel says which user is there, at both ends', { skip: notRoot }, async () => {
  const name = `@cuffi-users-${process.pid}`;
  const refusal = { name: 'IpcError', message: /is of user 65534, not of this process's/ };
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

test('what allow throws refuses that process and reaches the one who accepts', async () => {
  let calls = 0;
  const allow = (): boolean => {
    calls += 1;
    if (calls === 1) throw new Error('from allow');
    return true;
  };
  using listener = listen('throws', { allow });
  using first = await connect('throws');
  await assert.rejects(listener.accept(), /from allow/);
  await assert.rejects(first.receive(), { name: 'ClosedError' });
  using second = await connect('throws');
  using server = await listener.accept();
  await server.send(1);
  assert.equal(await second.receive(), 1);
});

test('wrong arguments are refused', async () => {
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
});
