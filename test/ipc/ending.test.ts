/** A process that waits for another one hears how that ends, however it ends, and in whatever it waits. */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, describe, test } from 'node:test';
import { connect, listen, type Peer, spawnPeer } from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { killed, programFile, startProgram } from '../support/program.ts';
import {
  type ends,
  type Heard,
  type Relation,
  relations,
  type Way,
  waitFor,
  ways,
} from './fixtures/waiter.ts';

const deadline = { timeout: 60_000 + iterations(0, 600_000) };
const waiter = new URL('./fixtures/waiter.ts', import.meta.url);
let names = 0;

const environment = (ends: string) => ({ ...process.env, ENDS: ends });
const outputOf = (ends: string) => (ends === 'throws' ? 'ignore' : 'inherit');

function start(args: readonly string[], ends: string): ChildProcess {
  const child = startProgram(waiter, args, {
    stdio: ['ignore', 'pipe', outputOf(ends)],
    env: environment(ends),
  });
  started.push(child);
  return child;
}

const started: ChildProcess[] = [];
afterEach(async () => {
  await Promise.all(started.splice(0).map(killed));
});

interface Round {
  readonly relation: Relation;
  readonly way: Way;
  readonly isBusy?: boolean;
  readonly ends?: keyof typeof ends;
}

/** What the one that waits says of the end of the other, which is killed if it does not end itself. */
async function heard(round: Round): Promise<Heard> {
  const { relation, way, isBusy = false, ends = 'hangs' } = round;
  names += 1;
  const name = join(tmpdir(), `cuffi-waiter-${process.pid}-${names}`);
  const args = [relation, name, way, ...(isBusy ? ['busy'] : [])];
  const kill = (pid: number): void => {
    if (ends === 'hangs') process.kill(pid, 'SIGKILL');
  };
  if (relation === 'is spawned') return heardByChild(start(['ends', ...args], ends), kill);
  // This process waits itself: that takes one start less.
  using peer = await meet(relation, name, args, ends);
  return await waitFor(peer, way, isBusy, kill);
}

/** Starts the process that ends, and returns the connection with it. */
async function meet(
  relation: Relation,
  name: string,
  args: readonly string[],
  ends: string,
): Promise<Peer> {
  if (relation === 'spawns') {
    const { path, execArgv } = programFile(waiter);
    const child = spawnPeer(path, {
      args: ['ends', ...args],
      execArgv,
      stdio: ['ignore', 'ignore', outputOf(ends)],
      env: environment(ends),
    });
    started.push(child.process);
    return child;
  }
  using listener = relation === 'accepts' ? listen(name) : undefined;
  start(['ends', ...args], ends);
  return await (listener?.accept() ?? connect(name, { timeoutMs: 20_000 }));
}

/** What a child says that waits for its parent: it prints it, and its parent has handed its output on. */
async function heardByChild(parent: ChildProcess, kill: (pid: number) => void): Promise<Heard> {
  const lines = createInterface({ input: parent.stdout as NodeJS.ReadableStream });
  let waited: Heard | undefined;
  for await (const line of lines) {
    const [, pid] = /^waiting (\d+)$/.exec(line) ?? [];
    if (pid === undefined) waited = JSON.parse(line) as Heard;
    else kill(Number(pid));
    if (waited) break;
  }
  assert.ok(waited, 'the process ended without a word');
  return waited;
}

const before = [0, 1, 2];

describe('a peer that is killed', () => {
  for (const relation of relations)
    test(`is heard of by a process that ${relation}, in whatever it waits`, deadline, async () => {
      for (let n = 0; n < iterations(1, 100); n++) {
        const way = ways[(n + relations.indexOf(relation)) % ways.length] as Way;
        const isBusy = Math.floor(n / ways.length) % 2 === 1;
        const { name, signal, values } = await heard({ relation, way, isBusy });
        assert.equal(name, 'PeerGoneError', `${way}: ${name}`);
        assert.equal(signal, relation === 'spawns' ? 'SIGKILL' : undefined);
        // It may be killed before it has sent them all.
        assert.deepEqual(values, before.slice(0, values.length));
      }
    });
});

describe('a peer that closes, and ends at once', () => {
  for (const relation of relations)
    test(`is an orderly end for a process that ${relation}`, deadline, async () => {
      for (let n = 0; n < iterations(1, 50); n++)
        for (const ends of ['closes', 'exits'] as const) {
          const loop = await heard({ relation, way: 'loop', ends });
          assert.deepEqual([loop.name, loop.values], [undefined, before]);
        }
      const { name } = await heard({ relation, way: 'ended', ends: 'closes' });
      assert.equal(name, 'ClosedError');
    });
});

describe('a peer that exits with code 0, and with work that a stream waits for', () => {
  for (const relation of relations)
    test(`is a PeerGoneError for a process that ${relation}`, deadline, async () => {
      for (let n = 0; n < iterations(1, 50); n++) {
        const reason = await heard({ relation, way: 'loop', ends: 'leaves work' });
        const { name, message, abandonedWaits, values } = reason;
        assert.deepEqual([name, abandonedWaits, values], ['PeerGoneError', 1, before]);
        // Only its parent learns how a process ended.
        const isParent = relation === 'spawns';
        assert.deepEqual([reason.exitCode, reason.signal], [isParent ? 0 : undefined, undefined]);
        const how = isParent ? 'has exited with code 0' : 'has ended';
        assert.match(message ?? '', new RegExp(`${how}; 1 waits for its work were abandoned`));
      }
    });
});

describe('a peer that fails', () => {
  for (const relation of relations)
    test(
      `is a PeerGoneError for a process that ${relation}, with the exit code of a child`,
      deadline,
      async () => {
        for (const [ends, code] of [
          ['fails', 3],
          ['throws', 1],
        ] as const) {
          const { name, message, exitCode, values } = await heard({ relation, way: 'loop', ends });
          assert.deepEqual([name, values], ['PeerGoneError', before]);
          // Only the parent learns how a process has ended.
          assert.equal(exitCode, relation === 'spawns' ? code : undefined);
          if (relation !== 'spawns') continue;
          assert.match(message ?? '', new RegExp(`has exited with code ${code}`));
        }
      },
    );
});
