/** Processes in pid and network namespaces of their own, as containers have them. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import { kinds } from '../../src/cli/kinds.ts';
import { Context, Device } from '../../src/index.ts';
import { explain, ipcSupport, listen, type Peer } from '../../src/ipc/index.ts';
import { killed, programFile, startProcess } from '../support/program.ts';
import type { Question } from './fixtures/container.ts';

const APART = ['--pid', '--net', '--mount', '--mount-proc', '--fork', '--kill-child'];
const { path: file, execArgv } = programFile(new URL('./fixtures/container.ts', import.meta.url));
const directory = mkdtempSync(join(tmpdir(), 'cuffi-container-'));

const support = ipcSupport(Device.get());
const options = {
  timeout: 60_000,
  skip:
    spawnSync('unshare', [...APART, 'true']).status !== 0 &&
    'this process may not make namespaces (unshare)',
};

/** A process apart; dispose kills it. */
function program(...args: string[]) {
  const child = startProcess('unshare', [...APART, process.execPath, ...execArgv, file, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return { child, [Symbol.asyncDispose]: () => killed(child) };
}

/** One that has connected through the socket. */
async function start(): Promise<{ readonly peer: Peer } & AsyncDisposable> {
  const path = join(directory, 'socket');
  using listener = listen(path);
  const connecting = program(path);
  const peer = await listener.accept({ timeoutMs: 30_000 });
  return {
    peer,
    [Symbol.asyncDispose]() {
      peer.close();
      return connecting[Symbol.asyncDispose]();
    },
  };
}

async function ask(peer: Peer, question: Question): Promise<unknown> {
  await peer.send(question);
  return peer.receive({ timeoutMs: 30_000 });
}

describe('processes of several containers', () => {
  after(() => rmSync(directory, { recursive: true }));

  test('pools and virtual memory go through a socket that containers share', options, async () => {
    await using container = await start();
    for (const kind of ['pool', 'virtual'] as const) {
      if (!support[kinds[kind].capability].supported) continue;
      using memory = kinds[kind].allocate(1000, Context.primary());
      const { buffer } = memory;
      buffer.fill(1);
      await buffer.context.synchronize();
      const found = await ask(container.peer, { buffer });
      assert.deepEqual(found, { pid: 1, peerPid: 0, read: [1] });
      assert.deepEqual([...new Set(await buffer.copyToHost())], [2]);
    }
  });

  test('plain memory of a container with the same pid number is refused, and cannot be verified elsewhere', {
    ...options,
    skip: options.skip || support.memory.reason || false,
  }, async () => {
    await using one = await start();
    await using other = await start();
    const descriptor = await ask(one.peer, {});
    assert.equal(await ask(other.peer, { descriptor }), 'same-pid');
    assert.equal(await ask(one.peer, { descriptor }), 'same-process');
    assert.equal(explain(descriptor).code, 'unverified');
  });

  test(
    'the killing of a process whose pid is unknown here is reported as a kill',
    options,
    async () => {
      for (let time = 0; time < 3; time++)
        assert.equal(await seenEnd('hold'), 'PeerGoneError PeerGoneError');
    },
  );

  test('a process that closes its socket silently, and lives on, has closed', options, async () => {
    assert.equal(await seenEnd('sever'), 'ClosedError ClosedError');
  });
});

/** How the other process, whose pid it does not know, was seen to end. */
async function seenEnd(task: 'hold' | 'sever'): Promise<string | undefined> {
  const path = join(directory, task);
  await using other = program(path, task);
  await using watcher = program(path, 'watch');
  const lines = createInterface(watcher.child.stdout)[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, '0');
  if (task === 'hold') other.child.kill('SIGKILL');
  return (await lines.next()).value;
}
