/** What the driver is handed by one who seals inventions: in processes that may be lost by it. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, type TestContext, test } from 'node:test';
import {
  Context,
  type CudaEvent,
  DeviceBuffer,
  CudaEvent as Event,
  MemoryPool,
} from '../../src/index.ts';
import type { IpcDescriptor } from '../../src/ipc/descriptor.ts';
import { type ChildPeer, exportIpc, leases, spawnPeer } from '../../src/ipc/index.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { onHardware } from '../support/driver.ts';
import { iterations, seed } from '../support/iterations.ts';
import { comesBackTo, processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import type { Opening, Outcome } from './fixtures/opener.ts';

const program = programFile(new URL('./fixtures/opener.ts', import.meta.url)).path;
const VALUE = 173;
const BYTE_LENGTH = 4 << 20;
/** The child's exit shows a crash; its output does not. */
const quiet = { stdio: 'ignore' } as const;

/** The same numbers for the same seed: mulberry32. */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

/** A descriptor whose driver's bytes were changed, up to four of them, with a right checksum. */
function mutated(descriptor: IpcDescriptor, next: (below: number) => number): unknown {
  const { handle } = descriptor as { readonly handle: string };
  const bytes = Buffer.from(handle, 'base64');
  const count = 1 + next(4);
  for (let n = 0; n < count; n++) {
    const at = next(bytes.byteLength);
    bytes[at] = (bytes[at] as number) ^ (1 + next(255));
  }
  return withChecksum({ ...descriptor, handle: bytes.toString('base64') } as never);
}

/** Children one after the other: each until it is lost. */
class Openers implements AsyncDisposable {
  readonly #pool: MemoryPool | null;
  #child: ChildPeer | undefined;

  constructor(pool: MemoryPool | null) {
    this.#pool = pool;
  }

  /** @throws where it hangs */
  async open(opening: Opening): Promise<string> {
    this.#child ??= await this.#start();
    const child = this.#child;
    let outcome: Outcome;
    try {
      await child.send(opening);
      outcome = (await child.receive({ timeoutMs: 15_000 })) as Outcome;
    } catch (error) {
      const { name } = error as Error;
      if (name !== 'PeerGoneError' && name !== 'TimeoutError') throw error;
      const { exitCode, signalCode } = await this.#end();
      if (name === 'TimeoutError') return 'hung';
      return `crashed: ${signalCode ?? `exit code ${exitCode}`}`;
    }
    if (outcome.isLost) await this.#end();
    return outcome.what;
  }

  async #start(): Promise<ChildPeer> {
    const child = spawnPeer(program, quiet);
    this.#child = child;
    await child.send(this.#pool);
    return child;
  }

  async #end(): Promise<ChildPeer['process']> {
    const { process: running } = this.#child as ChildPeer;
    running.kill('SIGKILL');
    if (running.exitCode === null && running.signalCode === null) await once(running, 'exit');
    this.#child?.close();
    this.#child = undefined;
    return running;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child) await this.#end();
  }
}

/**
 * A driver of hardware may crash in its own code, or never return; the emulated one, and an error of
 * cuffi, may not.
 */
const isWrong = onHardware
  ? /^(outside|untyped|opened as|crashed: exit code)/
  : /^(outside|untyped|opened as|crashed|hung)/;

async function openMutated(
  test: TestContext,
  kind: string,
  object: DeviceBuffer | CudaEvent,
  count: number,
  pool: MemoryPool | null,
): Promise<void> {
  const { descriptor } = exportIpc(object);
  const outcomes = new Map<string, number>();
  await using openers = new Openers(pool);
  // As it is, it opens: what is refused is refused for its change.
  const expected = kind === 'event' ? 'opened, and is done' : 'opened, what was exported';
  assert.equal(await openers.open({ descriptor, value: VALUE }), expected);
  const next = random(seed() + kind.length);
  for (let n = 0; n < count; n++) {
    const what = await openers.open({ descriptor: mutated(descriptor, next), value: VALUE });
    outcomes.set(what, (outcomes.get(what) ?? 0) + 1);
  }
  for (const [what, times] of outcomes) test.diagnostic(`${kind}: ${times} of ${count} ${what}`);
  const wrong = [...outcomes.keys()].filter((what) => isWrong.test(what));
  assert.deepEqual(wrong, [], kind);
}

describe('hostile payloads', () => {
  test('changed payloads of the driver are refused, or open inside what was exported, or are lost alone', {
    timeout: 60_000 + iterations(0, 1_200_000),
  }, async (t) => {
    const shareable = MemoryPool.supported(0, { shareable: true });
    using pool = shareable ? MemoryPool.create({ maxSize: 64 << 20, shareable: true }) : null;
    using event = Event.create({ interprocess: true });
    const plain = DeviceBuffer.allocate(BYTE_LENGTH);
    const pooled = pool?.allocate(BYTE_LENGTH);
    plain.fill(VALUE);
    pooled?.fill(VALUE);
    await Context.primary().synchronize();
    // The first child makes what stays: what a driver and the runtime keep for the next.
    await openMutated(t, 'legacy', plain, 0, pool);
    await leases.drain();
    const before = processState();
    await openMutated(t, 'legacy', plain, iterations(6, 70), pool);
    if (pooled) await openMutated(t, 'pool', pooled, iterations(6, 70), pool);
    await openMutated(t, 'event', event, iterations(6, 60), pool);
    await comesBackTo(before);
    pooled?.close();
    plain.close();
  });
});
