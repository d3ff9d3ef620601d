import assert from 'node:assert/strict';
import { randomFillSync } from 'node:crypto';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import {
  Context,
  Device,
  DeviceBuffer,
  PinnedBuffer,
  pin,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { STAGING } from '../../src/memory/staging.ts';
import { Latch } from '../support/latch.ts';
import { processState } from '../support/process-state.ts';

const MIB = 2 ** 20;

const noise = (byteLength: number): Uint8Array<ArrayBuffer> =>
  randomFillSync(new Uint8Array(byteLength));
const same = (actual: Uint8Array, expected: Uint8Array): void =>
  assert.ok(Buffer.compare(actual, expected) === 0, 'the bytes differ');

/** How often each function is called while `work` runs. */
async function countCalls(work: () => unknown): Promise<(name: FunctionName) => number> {
  using recorder = recordCalls();
  await work();
  return (name) => recorder.calls.filter((call) => call.name === name).length;
}

const skipVirtual = VirtualMemory.supported(Device.get(0)) ? false : 'needs virtual memory';

describe('copies between kinds of memory', () => {
  test('large arrays arrive whole both ways, whatever their sizes and offsets', async () => {
    using buffer = DeviceBuffer.allocate(18 * MIB);
    for (const [byteLength, hostOffset, offset] of [
      [MIB + 1, 0, 0],
      [5 * MIB + 7, 3, 4097],
      [17 * MIB + 3, 1, 11],
    ] as const) {
      const bytes = noise(byteLength + hostOffset).subarray(hostOffset);
      const part = buffer.subarray(offset, offset + byteLength);
      await part.copyFrom(bytes);
      const around = new Uint8Array(byteLength + 2);
      await part.copyToHost(around.subarray(1, -1));
      same(around.subarray(1, -1), bytes);
      assert.deepEqual([around[0], around.at(-1)], [0, 0]);
    }
  });

  test('several at once, both ways, share a few page-locked slots', async () => {
    const context = Context.primary();
    await context.flush();
    const sources = Array.from({ length: 4 }, () => noise(6 * MIB));
    const buffers = sources.map((source) => DeviceBuffer.allocate(source.byteLength));
    const calls = await countCalls(async () => {
      await Promise.all(buffers.map((buffer, n) => buffer.copyFrom(sources[n] as Uint8Array)));
      const back = await Promise.all(buffers.map((buffer) => buffer.copyToHost()));
      for (const [n, bytes] of back.entries()) same(bytes, sources[n] as Uint8Array);
      await context.flush();
    });
    assert.ok(calls('cuMemHostRegister_v2') <= STAGING.slotCount);
    assert.equal(calls('cuMemHostUnregister'), calls('cuMemHostRegister_v2'));
    for (const buffer of buffers) buffer.close();
  });

  test('a large copy waits for what was queued before it, and the event loop turns', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(3 * MIB);
    const latch = new Latch();
    latch.hold(stream);
    buffer.fill(7, { stream });
    let turns = 0;
    const turning = setInterval(() => {
      turns += 1;
      if (turns === 3) latch.open();
    }, 1);
    const bytes = await buffer.copyToHost(undefined, { stream });
    clearInterval(turning);
    assert.ok(turns >= 3);
    same(bytes, new Uint8Array(3 * MIB).fill(7));
    latch[Symbol.dispose]();
  });

  test('a blocking copy has arrived when it returns, for streams of every kind', () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(MIB);
    using other = DeviceBuffer.allocate(MIB);
    for (const byteLength of [64, 4096, 65_536, MIB]) {
      for (let round = 0; round < 8; round += 1) {
        const bytes = noise(byteLength);
        buffer.copyFromSync(bytes);
        buffer.copyTo(other, { stream });
        same(other.copyToHostSync(new Uint8Array(byteLength), { stream }), bytes);
      }
    }
  });

  test('a copy that is given up in the middle rejects, and the next one is right', async () => {
    using buffer = DeviceBuffer.allocate(32 * MIB);
    const bytes = noise(buffer.byteLength);
    for (const copy of [
      (signal: AbortSignal) => buffer.copyFrom(bytes, { signal }),
      (signal: AbortSignal) => buffer.copyToHost(undefined, { signal }),
    ]) {
      const giveUp = new AbortController();
      setImmediate(() => giveUp.abort(new Error('enough')));
      await assert.rejects(copy(giveUp.signal), /^Error: enough$/);
    }
    await buffer.copyFrom(bytes);
    same(await buffer.copyToHost(), bytes);
  });

  test('closing the buffer, and giving the array away, reject a copy in the middle', async () => {
    const context = Context.primary();
    {
      // The first awaited copy makes the stream that all use.
      using first = DeviceBuffer.allocate(2 * MIB);
      await first.copyToHost();
    }
    await context.flush();
    const before = processState();
    const closed = DeviceBuffer.allocate(32 * MIB);
    const reading = closed.copyToHost();
    setImmediate(() => closed.close());
    await assert.rejects(reading, { name: 'ClosedError' });

    using buffer = DeviceBuffer.allocate(32 * MIB);
    const bytes = noise(buffer.byteLength);
    const writing = buffer.copyFrom(bytes);
    // Held, as its memory must live until the copy has settled.
    let elsewhere: ArrayBuffer | undefined;
    setImmediate(() => {
      elsewhere = structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
    });
    await assert.rejects(writing, /the host memory was detached while it was copied/);
    assert.equal(elsewhere?.byteLength, 32 * MIB);
    buffer.close();
    await context.flush();
    assert.deepEqual(processState(), before);
  });

  test('page-locked arrays are copied in one call, and nothing else is page-locked', async () => {
    await Context.primary().flush();
    using buffer = DeviceBuffer.allocate(9 * MIB);
    using pinned = PinnedBuffer.allocate(10 * MIB);
    const inPinned = new Uint8Array(pinned.buffer, 5, 9 * MIB - 1);
    const array = new Uint8Array(9 * MIB);
    using locked = pin(array);
    assert.equal(locked.closed, false);
    for (const bytes of [inPinned, array]) {
      randomFillSync(bytes);
      const expected = Uint8Array.from(bytes);
      const calls = await countCalls(async () => {
        await buffer.copyFrom(bytes);
        bytes.fill(0);
        await buffer.copyToHost(bytes);
      });
      same(bytes, expected);
      assert.equal(calls('cuMemcpyHtoDAsync_v2'), 1);
      assert.equal(calls('cuMemcpyDtoHAsync_v2'), 1);
      assert.equal(calls('cuMemHostRegister_v2'), 0);
    }
  });

  test('a pinned array may be unpinned during its copy', async () => {
    using buffer = DeviceBuffer.allocate(16 * MIB);
    const bytes = noise(buffer.byteLength);
    const pinned = pin(bytes);
    const copying = buffer.copyFrom(bytes);
    setImmediate(() => pinned.close());
    await copying;
    same(await buffer.copyToHost(), bytes);
    await Context.primary().flush();
  });

  test('copies go over the borders of virtual memory', { skip: skipVirtual }, async () => {
    using memory = VirtualMemory.reserve(16 * MIB);
    memory.grow(3 * MIB);
    const buffer = memory.grow(9 * MIB);
    const bytes = noise(8 * MIB);
    await buffer.subarray(5).copyFrom(bytes);
    same(await buffer.subarray(5, 5 + bytes.length).copyToHost(), bytes);
  });

  test('a reset in the middle rejects the copy, and the next context copies as well', async () => {
    const context = Context.primary();
    const buffer = DeviceBuffer.allocate(32 * MIB);
    const copying = buffer.copyFrom(noise(buffer.byteLength));
    setImmediate(() => context.resetSync());
    await assert.rejects(copying, { name: 'ClosedError', message: /its context was reset/ });
    using next = DeviceBuffer.allocate(5 * MIB);
    const bytes = noise(next.byteLength);
    await next.copyFrom(bytes);
    same(await next.copyToHost(), bytes);
    await context.flush();
  });
});
