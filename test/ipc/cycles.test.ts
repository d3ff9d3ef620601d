/** Every kind of memory, opened and closed many times on both sides of a connection. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { type KindName, kindNames, kinds } from '../../src/cli/kinds.ts';
import {
  Context,
  CudaEvent,
  Device,
  type DeviceBuffer,
  MemoryPool,
  Stream,
} from '../../src/index.ts';
import { type ChildPeer, ipcSupport, leases, spawnPeer } from '../../src/ipc/index.ts';
import { nextLoopIteration } from '../../src/poller.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { valuesOf } from '../support/layouts.ts';
import { processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import type { Request } from './fixtures/connected.ts';
import { ask, shareConnected } from './fixtures/connected-children.ts';

const deadline = { timeout: 60_000 };
const program = programFile(new URL('./fixtures/connected.ts', import.meta.url)).path;
const context = Context.primary();
const support = ipcSupport(Device.get());
const children: ChildPeer[] = [];

function start(): ChildPeer {
  const child = spawnPeer(program);
  children.push(child);
  return child;
}

async function end(child: ChildPeer): Promise<void> {
  const { process: running } = child;
  const exit = once(running, 'exit');
  if (running.exitCode === null && running.kill('SIGKILL')) await exit;
  child.close();
}

const unsupported = (kind: KindName): string | false =>
  support[kinds[kind].capability].reason || false;

const BYTE_LENGTH = 3 << 20;
const partOf = (buffer: DeviceBuffer): DeviceBuffer => buffer.subarray(BYTE_LENGTH - 100);

/** Memory and an event, made here and opened there, and memory the other way round. */
async function cycle(child: ChildPeer, kind: KindName, mine: DeviceBuffer): Promise<void> {
  using event = CudaEvent.create({ interprocess: true });
  mine.fill(1);
  event.record(Stream.legacyDefault());
  assert.equal(await ask(child, { do: 'fill', buffer: partOf(mine), event, value: 2 }), 'filled');
  assert.deepEqual(await valuesOf(partOf(mine)), [2]);
  const request = { do: 'make', kind, byteLength: BYTE_LENGTH, value: 3 } as const;
  const theirs = await ask<DeviceBuffer>(child, request);
  assert.deepEqual(await valuesOf(partOf(theirs)), [3]);
  theirs.close();
  mine.close();
  await context.flush();
  assert.equal(await ask(child, { do: 'drop' }), 'dropped');
}

describe('opening and closing many times', () => {
  afterEach(async () => {
    for (const child of children.splice(0)) await end(child);
  });
  const shared = shareConnected(1);

  for (const kind of kindNames)
    test(`opened and closed many times, ${kind} memory leaves nothing on either side`, {
      timeout: 600_000,
      skip: unsupported(kind),
    }, async () => {
      const [child] = shared.lend();
      using pool =
        kind === 'pool' ? MemoryPool.create({ maxSize: 64 << 20, shareable: true }) : null;
      const round = async (): Promise<void> => {
        using other = pool ? null : kinds[kind].allocate(BYTE_LENGTH, context);
        const mine = other?.buffer ?? (pool as MemoryPool).allocate(BYTE_LENGTH);
        await cycle(child, kind, mine);
      };
      const states = async () => [processState(), await ask(child, { do: 'state' })];
      for (let n = 0; n < 3; n += 1) await round();
      await context.flush();
      const before = await states();
      for (let n = 0; n < iterations(20, 1000); n += 1) await round();
      await context.flush();
      assert.deepEqual(await states(), before);
    });

  test('a new pool in each round leaves nothing on either side', {
    timeout: 600_000,
    skip: unsupported('pool'),
  }, async () => {
    const [child] = shared.lend();
    const round = async (): Promise<void> => {
      using pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
      const mine = pool.allocate(BYTE_LENGTH);
      assert.equal(await ask(child, { do: 'fill', buffer: partOf(mine), value: 2 }), 'filled');
      assert.deepEqual(await valuesOf(partOf(mine)), [2]);
      mine.close();
    };
    const states = async () => {
      await context.flush();
      await leases.drain({ timeoutMs: 10_000 });
      // News of the last pool arrives before the next request.
      assert.equal(await ask(child, { do: 'drop' }), 'dropped');
      return [processState(), await ask(child, { do: 'state' })];
    };
    for (let n = 0; n < 3; n += 1) await round();
    const before = await states();
    // More than a connection keeps at a time.
    for (let n = 0; n < iterations(20, 1100); n += 1) await round();
    assert.deepEqual(await states(), before);
  });

  test('each mapping and pool that is opened while others close is unmapped and destroyed once', {
    ...deadline,
    skip: unsupported('pool'),
  }, async () => {
    await context.flush();
    const recorder = recordCalls();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name && call.status === 0).length;
    using stream = Stream.create({ nonBlocking: true });
    // Where the work would wait that comes behind that of the child, which waits for that held up here.
    using apart = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const rounds = iterations(200, 10_000);
    const take = async (kind: KindName): Promise<void> => {
      const child = start();
      await child.send({ do: 'flood', kind, count: rounds } satisfies Request);
      for (let i = 0; i < rounds; i += 1) {
        const { buffer } = (await child.receive({ stream: apart })) as { buffer: DeviceBuffer };
        if (i % 20 === 0) buffer.subarray(16, 32).fill(9, { stream });
        if (i % 50 === 0) assert.deepEqual(await valuesOf(buffer.subarray(0, 16)), [9]);
        // Not later: a held stream takes some hundred calls, and blocks the next.
        if (i === 100) latch.open();
        buffer.close();
      }
      assert.equal(await child.receive(), 'flooded');
      child.close();
    };
    await Promise.all([take('pool'), take('pool'), take('legacy')]);
    await stream.synchronize();
    await context.flush();
    assert.equal(count('cuMemPoolImportPointer'), count('cuMemFreeAsync'));
    assert.equal(count('cuIpcOpenMemHandle_v2'), count('cuIpcCloseMemHandle'));
    assert.equal(count('cuMemPoolImportFromShareableHandle'), count('cuMemPoolDestroy'));
    recorder.stop();
  });

  for (const kind of kindNames)
    test(`opened and closed again behind other work, ${kind} memory stays mapped until the last is done`, {
      ...deadline,
      skip: unsupported(kind),
    }, async () => {
      const [child] = shared.lend();
      using first = Stream.create({ nonBlocking: true });
      using second = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      using later = new Latch();
      let buffer = await ask<DeviceBuffer>(child, { do: 'make', kind, byteLength: 4096, value: 9 });
      const turns = async (): Promise<void> => {
        for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
      };
      latch.hold(first);
      buffer.fill(1, { stream: first });
      buffer.close();
      await turns();
      buffer = await ask<DeviceBuffer>(child, { do: 'again' });
      later.hold(second);
      buffer.fill(2, { stream: second });
      buffer.close();
      await turns();
      latch.open();
      await first.synchronize();
      await turns();
      later.open();
      // Of work that touched what was unmapped this throws CUDA_ERROR_LAUNCH_FAILED.
      await second.synchronize();
      using again = await ask<DeviceBuffer>(child, { do: 'again' });
      assert.deepEqual(await valuesOf(again), [2]);
    });
});
