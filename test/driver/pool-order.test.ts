/** Memory of a pool in other streams than that of its allocation. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import {
  Context,
  copyPitchedSync,
  cudaArrayInterface,
  type DeviceBuffer,
  dlpack,
  fillPitched,
  fromBuffer,
  Graph,
  MemoryPool,
  type Module,
  queuePitchedCopy,
  Stream,
} from '../../src/index.ts';
import { exportIpc } from '../../src/ipc/index.ts';
import { loadKernels } from '../support/kernels.ts';
import { Latch } from '../support/latch.ts';

const SIZE = 4096;
const options = {
  skip: MemoryPool.supported() ? false : 'the device has no memory pools',
  timeout: 60_000,
};
const SAXPY = ['float32', 'float32*', 'float32*', 'uint32'] as const;
const shape = { grid: 1, block: 32 };

describe('MemoryPool', () => {
  let module: Module;
  before(() => {
    module = loadKernels();
    const kernel = module.kernel('saxpy', SAXPY);
    // Loads the built-in kernels, too, which a busy context does not.
    using pool = MemoryPool.create();
    using memory = pool.allocate(SIZE);
    memory.fill(0);
    const array = fromBuffer(memory, SIZE / 4, 'float32');
    array.slice({ step: 2 }).fill(3.5);
    kernel.launch(shape, 0, memory, memory, 1);
    Context.primary().synchronizeSync();
  });
  after(() => module.close());

  const floats = (buffer: DeviceBuffer) => fromBuffer(buffer, SIZE / 4, 'float32');
  const rows = { width: 64, height: 8 };

  /** Each queues work with the memory in a stream, or makes a stream's work count for another reader. */
  const uses: Record<
    string,
    (memory: DeviceBuffer, stream: Stream, other: DeviceBuffer) => unknown
  > = {
    'a fill': (memory, stream) => memory.fill(1, { stream }),
    'a fill of a view': (memory, stream) => memory.subarray(8, 16).fill(1, { stream }),
    'a copy from it': (memory, stream, other) => memory.copyTo(other, { stream }),
    'a copy to it': (memory, stream, other) => other.copyTo(memory, { stream }),
    'an awaited copy to the host': (memory, stream) => memory.copyToHost(undefined, { stream }),
    'an awaited copy from the host': (memory, stream) =>
      memory.copyFrom(new Uint8Array(SIZE), { stream }),
    'rows that are filled': (memory, stream) =>
      fillPitched({ memory, rowPitch: 128 }, 1, rows, { stream }),
    'rows that are copied': (memory, stream, other) =>
      queuePitchedCopy({ memory: other }, { memory, rowPitch: 128 }, rows, { stream }),
    'a kernel': (memory, stream, other) =>
      module.kernel('saxpy', SAXPY).launch({ ...shape, stream }, 1, other, memory, 4),
    'a kernel with an array': (memory, stream, other) =>
      module.kernel('saxpy', SAXPY).launch({ ...shape, stream }, 1, other, floats(memory), 4),
    'items with gaps that are filled': (memory, stream) =>
      floats(memory).slice({ step: 2 }).fill(3.5, { stream }),
    'items with gaps that are copied': (memory, stream, other) =>
      floats(memory)
        .slice({ step: 2 })
        .copyTo(floats(other).slice({ step: 2 }), { stream }),
    'a graph': (memory, stream, other) => {
      using captured = Stream.create({ nonBlocking: true });
      const graph = Graph.capture(captured, () => memory.copyTo(other, { stream: captured }));
      graph.launch({ stream });
    },
    'a graph with another argument': (memory, stream, other) => {
      using captured = Stream.create({ nonBlocking: true });
      const kernel = module.kernel('saxpy', SAXPY);
      const graph = Graph.capture(captured, () =>
        kernel.launch({ ...shape, stream: captured }, 1, other, other, 4),
      );
      graph.setArguments(graph.kernelNode(kernel), 1, other, floats(memory), 4);
      graph.launch({ stream });
    },
    'a DLPack tensor': (memory, stream) => dlpack(floats(memory), { stream }),
    'a CUDA array interface': (memory, stream) => cudaArrayInterface(floats(memory), { stream }),
    'a descriptor with a ready event': (memory, stream) => exportIpc(memory, { stream }).close(),
    'its free': (memory, stream) => memory.close({ stream }),
  };

  /** Memory of a pool whose allocation waits for a latch, behind a fill with 0xee. */
  class PendingAllocation implements Disposable {
    readonly pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
    readonly allocator = Stream.create({ nonBlocking: true });
    readonly stream = Stream.create({ nonBlocking: true });
    readonly other = this.pool.allocate(SIZE, { stream: this.allocator });
    readonly latch = new Latch();
    readonly memory: DeviceBuffer;

    constructor() {
      const before = this.pool.allocate(SIZE, { stream: this.allocator });
      this.allocator.synchronizeSync();
      this.latch.hold(this.allocator);
      before.fill(0xee, { stream: this.allocator });
      before.close();
      this.memory = this.pool.allocate(SIZE, { stream: this.allocator });
    }

    [Symbol.dispose](): void {
      this.latch[Symbol.dispose]();
      this.pool.close({ buffers: true });
      for (const each of [this.allocator, this.stream]) each.close();
    }
  }

  for (const [name, use] of Object.entries(uses))
    test(`${name} in another stream waits for the allocation`, options, async () => {
      using pending = new PendingAllocation();
      const { memory, stream, other, latch } = pending;
      using unrelated = Stream.create({ nonBlocking: true });
      const used = use(memory, stream, other);
      assert.equal(stream.done, false);
      other.fill(1, { stream: unrelated });
      await unrelated.synchronize({ timeoutMs: 10_000 });
      latch.open();
      await used;
      await stream.synchronize();
    });

  test(
    'work in another stream keeps what it wrote to memory that was in use before',
    options,
    async () => {
      using pending = new PendingAllocation();
      const { memory, stream, latch, allocator } = pending;
      memory.fill(7, { stream });
      latch.open();
      await Promise.all([stream.synchronize(), allocator.synchronize()]);
      assert.deepEqual(new Set(await memory.copyToHost(undefined, { stream })), new Set([7]));
    },
  );

  test(
    'memory allocated in the legacy default stream is ordered in all other streams',
    options,
    async () => {
      using pool = MemoryPool.create({ maxSize: 64 << 20 });
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      const before = pool.allocate(SIZE);
      await Context.primary().synchronize();
      latch.hold(Stream.legacyDefault());
      before.fill(0xee);
      before.close();
      const memory = pool.allocate(SIZE);
      memory.fill(7, { stream });
      assert.equal(stream.done, false);
      latch.open();
      await Context.primary().synchronize();
      await stream.synchronize();
      assert.deepEqual(new Set(await memory.copyToHost(undefined, { stream })), new Set([7]));
      memory.close();
    },
  );

  test(
    'work in the legacy default stream waits for an allocation in another stream',
    options,
    async () => {
      using pending = new PendingAllocation();
      const { memory, latch, allocator } = pending;
      memory.fill(7);
      assert.equal(Stream.legacyDefault().done, false);
      latch.open();
      await Context.primary().synchronize();
      await allocator.synchronize();
      assert.deepEqual(new Set(copied(memory)), new Set([7]));
    },
  );

  const copied = (memory: DeviceBuffer): Uint8Array => {
    const host = new Uint8Array(SIZE);
    copyPitchedSync({ memory: host }, { memory }, { width: SIZE });
    return host;
  };

  test(
    'a stream waits for the allocation only, not for later work of its stream',
    options,
    async () => {
      using pending = new PendingAllocation();
      const { memory, stream, latch, allocator } = pending;
      using later = new Latch();
      later.hold(allocator);
      memory.fill(7, { stream });
      latch.open();
      await stream.synchronize({ timeoutMs: 10_000 });
      assert.equal(allocator.done, false);
      later.open();
    },
  );

  test(
    'memory that is closed without a stream is not given out while another stream uses it',
    options,
    async () => {
      for (const usesOwn of [false, true]) {
        using pool = MemoryPool.create({ maxSize: 64 << 20 });
        using allocator = Stream.create({ nonBlocking: true });
        using stream = Stream.create({ nonBlocking: true });
        using latch = new Latch();
        const memory = pool.allocate(SIZE, { stream: allocator });
        await allocator.synchronize();
        if (usesOwn) memory.fill(3, { stream: allocator });
        latch.hold(stream);
        memory.fill(1, { stream });
        memory.close();
        using next = pool.allocate(SIZE, { stream: allocator });
        next.fill(2, { stream: allocator });
        // A free must not make the stream of the allocation wait for the other one.
        const mayWait = allocator.done ? [] : [allocator];
        latch.open();
        for (const each of [stream, ...mayWait]) await each.synchronize();
        await Context.primary().flush();
        assert.deepEqual(
          new Set(await next.copyToHost(undefined, { stream: allocator })),
          new Set([2]),
        );
      }
    },
  );

  test(
    'memory that two streams use comes back when the work of both is done',
    options,
    async () => {
      const context = Context.primary();
      using pool = MemoryPool.create({ maxSize: 64 << 20 });
      using latch = new Latch();
      const streams = [0, 1, 2].map(() => Stream.create({ nonBlocking: true })) as [
        Stream,
        ...Stream[],
      ];
      const memory = pool.allocate(SIZE, { stream: streams[0] });
      for (const stream of streams) {
        latch.hold(stream);
        memory.fill(1, { stream });
      }
      memory.close();
      assert.ok(pool.used >= SIZE, 'it is not freed yet');
      latch.open();
      await context.flush();
      await context.synchronize();
      assert.equal(pool.used, 0);
      for (const stream of streams) stream.close();
    },
  );
});
