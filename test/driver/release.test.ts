import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import {
  Context,
  type CudaError,
  Device,
  DeviceBuffer,
  ManagedMemory,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { formatBytes } from '../../src/validate.ts';
import { turns, until } from '../support/iterations.ts';
import { Latch, LatchWord } from '../support/latch.ts';
import { startProgram } from '../support/program.ts';

const context = Context.primary();
const free = (): number => context.memoryInfo().free;
const MIB = 1 << 20;

/** Two streams, each held up by a latch of its own. */
class HeldStreams implements Disposable {
  readonly first = Stream.create({ nonBlocking: true });
  readonly second = Stream.create({ nonBlocking: true });
  readonly #firstLatch = new Latch(context);
  readonly #secondLatch = new Latch(context);

  /** Lets the work of the first stream end while the second is held up: the GPU is never idle. */
  async handOver(): Promise<void> {
    this.holdSecond();
    this.#firstLatch.open();
    await this.first.synchronize();
    assert.equal(this.second.done, false);
  }

  holdFirst(): void {
    this.#firstLatch.hold(this.first);
  }

  holdSecond(): void {
    this.#secondLatch.hold(this.second);
  }

  [Symbol.dispose](): void {
    this.#firstLatch.open();
    this.#secondLatch.open();
    context.synchronizeSync();
    this.#firstLatch[Symbol.dispose]();
    this.#secondLatch[Symbol.dispose]();
    this.first.close();
    this.second.close();
  }
}

const device = Device.get();
const skip =
  VirtualMemory.supported(device) && device.attribute('managedMemory') !== 0
    ? false
    : 'the device has no virtual or no managed memory';

describe('the release queue', () => {
  after(() => context.flush());

  test('a GPU that is never idle gives back what it is done with, above the count of ten', async () => {
    await context.flush();
    using held = new HeldStreams();
    const buffers = Array.from({ length: 12 }, () => DeviceBuffer.allocate(4 * MIB));
    const before = free();
    held.holdFirst();
    for (const buffer of buffers) buffer.fill(1, { stream: held.first });
    for (const buffer of buffers) buffer.close();
    assert.deepEqual(context.pendingReleases, { count: 12, byteLength: 48 * MIB });
    await turns();
    assert.equal(context.pendingReleases.count, 12);
    await held.handOver();
    await until(() => context.pendingReleases.count === 0);
    assert.equal(held.second.done, false);
    assert.equal(free(), before + 48 * MIB);
  });

  test('flush gives back few, too, and waits for no work that came after', async () => {
    await context.flush();
    using held = new HeldStreams();
    const buffer = DeviceBuffer.allocate(4 * MIB);
    const before = free();
    held.holdFirst();
    buffer.close();
    const flushing = context.flush();
    await held.handOver();
    await flushing;
    assert.equal(held.second.done, false);
    assert.equal(free(), before + 4 * MIB);
  });

  test('an allocation that finds no room takes what the GPU is done with', async () => {
    await context.flush();
    using held = new HeldStreams();
    const byteLength = Math.floor((free() * 0.6) / (2 * MIB)) * 2 * MIB;
    const first = DeviceBuffer.allocate(byteLength);
    held.holdFirst();
    first.close();
    assert.throws(
      () => DeviceBuffer.allocate(byteLength),
      ({ code, message }: CudaError) =>
        code === 'CUDA_ERROR_OUT_OF_MEMORY' &&
        message.includes(
          `allocating ${formatBytes(byteLength)} with ${formatBytes(free())} free`,
        ) &&
        message.includes(
          `1 release of ${formatBytes(byteLength)} waits for the GPU: await context.flush()`,
        ),
    );
    await held.handOver();
    using second = DeviceBuffer.allocate(byteLength);
    assert.equal(held.second.done, false);
    assert.equal(second.byteLength, byteLength);
  });

  test('nothing is given back in a deferral, whose end an exception does not prevent', async () => {
    await context.flush();
    const buffer = DeviceBuffer.allocate(4 * MIB);
    const before = free();
    assert.throws(() => {
      using _outer = context.deferCleanup();
      {
        using _inner = context.deferCleanup();
        buffer.close();
      }
      assert.equal(free(), before);
      assert.equal(buffer.closed, true);
      throw new Error('within');
    }, /within/);
    await context.flush();
    assert.equal(free(), before + 4 * MIB);
  });

  test('what waits counts the bytes of virtual and managed memory too', { skip }, async () => {
    await context.flush();
    const virtual = VirtualMemory.reserve(64 * MIB);
    virtual.grow(3 * MIB);
    const { mappedByteLength } = virtual;
    const managed = ManagedMemory.create().allocate(4 * MIB);
    {
      using _ = context.deferCleanup();
      virtual.close();
      managed.close();
      const byteLength = mappedByteLength + 4 * MIB;
      assert.deepEqual(context.pendingReleases, { count: 2, byteLength });
    }
    await context.flush();
    assert.deepEqual(context.pendingReleases, { count: 0, byteLength: 0 });
  });

  test('what was closed while the GPU was busy is given back though the event loop sleeps', {
    timeout: 60_000,
  }, async () => {
    const child = startProgram(new URL('./fixtures/asleep.ts', import.meta.url), [], {
      // Otherwise V8 wakes the loop by itself, after some seconds, to collect garbage.
      execArgv: ['--no-memory-reducer'],
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
      const fd = Number((await lines.next()).value);
      await delay(100);
      using word = LatchWord.of(child.pid as number, fd);
      word.open();
      assert.equal((await lines.next()).value, 'given back');
      if (child.exitCode === null) await once(child, 'exit');
    } finally {
      child.kill('SIGKILL');
    }
  });
});
