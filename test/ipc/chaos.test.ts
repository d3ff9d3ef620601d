/** Two honest processes do random things: every call settles, and nothing is left in either. */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { listen } from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { openDescriptors } from '../support/process-state.ts';
import { killed, startProgram } from '../support/program.ts';
import { act, type Errand, type Left, left, prepare, Random, type Told } from './fixtures/chaos.ts';

const CONNECTIONS = 40;
/** So many connections are open at a time. */
const AT_ONCE = 4;
const chaos = new URL('./fixtures/chaos.ts', import.meta.url);

/** The second process, which may be killed and started again. */
class Second {
  #child: ChildProcess | undefined;
  #before: Left | undefined;

  async start(): Promise<void> {
    this.#child = startProgram(chaos, ['chaos'], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      timeout: iterations(60_000, 900_000),
    });
    await once(this.#child, 'message');
    // What is made at the first use stays.
    await this.#use(`first-${this.#child.pid}`);
    this.#before = await this.state();
  }

  async state(): Promise<Left> {
    const answer = this.#told(({ left }) => left);
    this.#send({ do: 'state' });
    return await answer;
  }

  /** Nothing is left there of what was begun since it was started. */
  async check(): Promise<void> {
    let now = await this.state();
    const most = (this.#before?.descriptors ?? 0) + KEPT;
    for (let tries = 0; tries < 500 && now.descriptors > most; tries++) {
      await delay(10);
      now = await this.state();
    }
    assert.equal(now.leases, 0, 'leases of the second process');
    assert.ok(now.descriptors <= most, `${now.descriptors} descriptors there after ${most}`);
  }

  connect(name: string, seed: number, steps: number): void {
    this.#send({ do: 'act', name, seed, steps });
  }

  async kill(): Promise<void> {
    await killed(this.#running);
  }

  get #running(): ChildProcess {
    return this.#child as ChildProcess;
  }

  #send(errand: Errand): void {
    if (this.#running.connected) this.#running.send(errand);
  }

  async #use(name: string): Promise<void> {
    const settled = this.#told(({ acted }) => acted);
    await meet(this, name, 1, 60);
    await settled;
  }

  /** The first message that has something. */
  #told<T>(what: (told: Told) => T | undefined): Promise<T> {
    return new Promise((resolve) => {
      const child = this.#running;
      const hear = (message: unknown): void => {
        const found = what(message as Told);
        if (found === undefined) return;
        child.off('message', hear);
        resolve(found);
      };
      child.on('message', hear);
    });
  }
}

prepare();
const second = new Second();

/** One connection: both ends use it at random until it is closed. */
async function meet(
  other: Second,
  name: string,
  seed: number,
  steps: number,
  signal?: AbortSignal,
): Promise<void> {
  const socket = join(tmpdir(), `cuffi-chaos-${process.pid}-${name}`);
  using listener = listen(socket);
  other.connect(socket, seed + 0x10000, steps);
  const peer = await listener.accept({ timeoutMs: 20_000, ...(signal && { signal }) });
  await act(peer, seed, steps);
}

/** Of the process whose memory was opened last a descriptor is kept. */
const KEPT = 1;
/** What is open here when all that is made at its first use was made. */
let most = 0;

async function isNoMoreThan(before: number): Promise<void> {
  for (let tries = 0; tries < 500 && openDescriptors() > before; tries++) await delay(10);
  assert.ok(openDescriptors() <= before, `${openDescriptors()} descriptors after ${before}`);
}

async function run(seed: number): Promise<void> {
  const random = new Random(seed);
  let isFresh = false;
  for (let at = 0; at < CONNECTIONS; at += AT_ONCE) {
    if (!isFresh) await second.start();
    isFresh = true;
    const kills = random.chance(4);
    const killed = new AbortController();
    const meetings = Array.from({ length: AT_ONCE }, (_, n) =>
      meet(
        second,
        `${seed}-${at + n}`,
        random.below(2 ** 31),
        20 + random.below(60),
        killed.signal,
      ),
    );
    if (kills) {
      await delay(random.below(30));
      await second.kill();
      killed.abort();
      isFresh = false;
    }
    const results = await Promise.allSettled(meetings);
    for (const result of results) {
      // Killed before it came, it is waited for in vain.
      if (result.status === 'rejected' && result.reason !== killed.signal.reason)
        throw result.reason;
    }
    const now = await left();
    assert.equal(now.leases, 0, 'leases here');
    if (most > 0) await isNoMoreThan(most);
    if (isFresh) await second.check();
    most ||= openDescriptors() + KEPT;
  }
  await second.kill();
}

const seeds = [20_261_122, ...Array.from({ length: iterations(0, 199) }, () => randomInt(2 ** 31))];

describe('connections in random use', () => {
  after(() => second.kill());
  for (const seed of seeds)
    test(
      `40 connections of two processes leave nothing, whatever they do: seed ${seed}`,
      {
        timeout: 120_000,
      },
      () => run(seed),
    );
});
