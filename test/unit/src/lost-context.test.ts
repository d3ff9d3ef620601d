/** What happens to everything that is open when the device is lost. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { arena } from '../../../ffi/arena.ts';
import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import { cu, selectDriver } from '../../../ffi/driver.ts';
import { emulatedKernels } from '../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../ffi/emulator/index.ts';
import { addressOf } from '../../../ffi/native.ts';
import { CUresult } from '../../../ffi/results.ts';
import { check } from '../../../src/check.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  DeviceMemory,
  deviceArray,
  float32,
  Graph,
  ManagedMemory,
  MappedMemory,
  MemoryPool,
  managedArray,
  mappedArray,
  PinnedBuffer,
  pin,
  pinnedArray,
  Stream,
  toDeviceSync,
  VirtualMemory,
} from '../../../src/index.ts';
import { exportIpc, getIpcHandle } from '../../../src/ipc/index.ts';
import { Resource } from '../../../src/lifetime.ts';
import { nextLoopIteration } from '../../../src/poller.ts';
import { broken, losing } from '../../support/faults.ts';
import { loadKernels } from '../../support/kernels.ts';
import { Latch } from '../../support/latch.ts';
import { leaves } from '../../support/left-open.ts';
import { emulate, ForeignContext } from './emulate.ts';

const lost = { name: 'CudaError', status: CUresult.CUDA_ERROR_LAUNCH_FAILED, sticky: true };

describe('a lost context', () => {
  test('waits reject, calls throw a sticky error, and nothing hangs', async () => {
    leaves('entry of src/memory/page-lock.ts failedUnlocks', 'a lost device unlocks nothing');
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    const context = Context.primary();
    const stream = Stream.create({ nonBlocking: true });
    const event = CudaEvent.create();
    const pool = MemoryPool.create({ maxSize: 1 << 20 });
    const buffer = DeviceBuffer.allocate(1 << 20);
    const other = DeviceBuffer.allocate(4096);
    const pooled = pool.allocate(4096, { stream });
    const pinned = PinnedBuffer.allocate(4096);
    const view = new Uint8Array(pinned.buffer);
    const latch = new Latch(context);
    latch.hold(stream);
    event.record(stream);
    other.close();
    const waits = [
      stream.synchronize(),
      event.synchronize(),
      buffer.copyFrom(new Uint8Array(1 << 20), { stream }),
      context.synchronize(),
    ];
    const flushing = context.flush();
    lose();
    for (const wait of waits) await assert.rejects(wait, lost);
    await flushing;
    assert.equal(context.releases.size, 0);
    assert.throws(() => buffer.fill(0), lost);
    assert.throws(() => buffer.copyToHostSync(), lost);
    assert.throws(() => DeviceBuffer.allocate(1), lost);
    assert.throws(() => pool.allocate(1, { stream }), lost);
    for (const each of [pooled, buffer, pinned, event, stream, pool]) {
      each.close();
      assert.equal(each.closed, true);
      each.close();
    }
    assert.equal(view[0], 0);
    assert.equal(context.resources.size, 0);
  });

  /** What a test leaves open: collected, it would be given back to the driver of another test. */
  const kept: unknown[] = [];

  const PAGE = 4096;

  /** A page that nothing else is in: what the driver did not unlock stays locked. */
  function pageOfItsOwn(): Uint8Array {
    const pages = new Uint8Array(2 * PAGE);
    const offset = PAGE - (addressOf(pages) % PAGE);
    return pages.subarray(offset, offset + PAGE);
  }

  /** A device that can be lost, and one of each that can be closed. */
  function everything() {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    const stream = Stream.create({ nonBlocking: true });
    const pool = MemoryPool.create({ maxSize: 1 << 24 });
    const shareable = MemoryPool.create({ maxSize: 1 << 24, shareable: true });
    const shared = shareable.allocate(4096);
    exportIpc(shared);
    const virtual = VirtualMemory.reserve(1 << 22, { shareable: true });
    exportIpc(virtual.grow(4096));
    const interprocess = CudaEvent.create({ interprocess: true });
    getIpcHandle(interprocess);
    const buffer = DeviceBuffer.allocate(4096);
    const viewed = PinnedBuffer.allocate(4096);
    viewed.buffer;
    const open = {
      stream,
      event: CudaEvent.create(),
      interprocess,
      buffer,
      view: buffer.subarray(1, 2),
      private: DeviceMemory.create({ private: true }).allocate(10),
      pooled: pool.allocate(4096, { stream }),
      'pooled by default': pool.allocate(4096),
      shared,
      pinned: PinnedBuffer.allocate(4096),
      viewed,
      'write-combined': PinnedBuffer.allocate(4096, { writeCombined: true }),
      locked: pin(pageOfItsOwn()),
      mapped: MappedMemory.create().allocate(4096),
      managed: ManagedMemory.create().allocate(4096),
      virtual,
      module: loadKernels(),
      graph: Graph.capture(stream, () => buffer.fill(1, { stream })),
      array: toDeviceSync(new Float32Array(4)),
      'array of a pool': deviceArray([4], float32, { memory: pool }),
      'pinned array': pinnedArray([4], float32),
      'mapped array': mappedArray([4], float32),
      'managed array': managedArray([4], float32),
      shareable,
      pool,
    };
    kept.push(open);
    leaves(/./, 'what is open when the device is lost', Number.POSITIVE_INFINITY);
    return { open, lose, context: Context.primary() };
  }

  type Name = keyof ReturnType<typeof everything>['open'];
  const names = Object.keys(everything().open) as Name[];

  /** The warnings of releases that come meanwhile, and until the event loop has turned. */
  async function warningsDuring(act: () => void): Promise<string[]> {
    const warnings: string[] = [];
    const note = (warning: Error & { readonly code?: string }): void => {
      if (warning.code === 'CUFFI_RELEASE') warnings.push(warning.message);
    };
    process.on('warning', note);
    act();
    for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
    process.off('warning', note);
    return warnings;
  }

  test('everything closes silently after an error has reported the loss', async () => {
    const { open, lose, context } = everything();
    lose();
    await assert.rejects(open.stream.synchronize(), lost);
    const warnings = await warningsDuring(() => {
      for (const [name, each] of Object.entries(open)) {
        each.close();
        assert.equal(each.closed, true, name);
      }
    });
    assert.deepEqual(warnings, []);
    // The modules of the built-in kernels, which the capture has loaded, belong to the context.
    assert.equal(context.resources.size, 2);
  });

  test('owners close their resources silently, too', async () => {
    const { open, lose, context } = everything();
    lose();
    assert.throws(() => open.stream.done, lost);
    open.pool.close({ buffers: true });
    open.shareable.close({ buffers: true });
    context.resources.closeAll('a test');
    assert.equal(context.resources.size, 0);
  });

  test('pending releases run silently, too', async () => {
    const { open, lose, context } = everything();
    const latch = new Latch(context);
    latch.hold(open.stream);
    open.buffer.fill(1, { stream: open.stream });
    const waiting = [open.buffer, open.managed, open.pinned, open.module, open.graph, open.virtual];
    for (const each of waiting) each.close();
    assert.ok(context.releases.size >= waiting.length);
    const warnings = await warningsDuring(() => {
      lose();
      assert.throws(() => open.stream.done, lost);
    });
    assert.equal(context.releases.size, 0);
    assert.deepEqual(warnings, []);
  });

  // A view gives nothing back.
  for (const name of names.filter((each) => each !== 'view'))
    test(`the first close that finds the loss throws, and the others are silent: ${name}`, () => {
      const { open, lose } = everything();
      lose();
      const { [name]: first, ...others } = open;
      const close = (): void =>
        name === 'pool' || name === 'shareable'
          ? open[name].close({ buffers: true })
          : first.close();
      assert.throws(close, lost);
      assert.equal(first.closed, true);
      for (const other of Object.values<{ close(): void }>(others)) other.close();
    });

  test('a pending release that finds the loss warns once', async () => {
    const { open, lose, context } = everything();
    const latch = new Latch(context);
    latch.hold(open.stream);
    open.buffer.fill(1, { stream: open.stream });
    for (const each of [open.buffer, open.managed, open.pinned]) each.close();
    lose();
    const warnings = await warningsDuring(() => context.releases.drainReady());
    assert.equal(context.releases.size, 0);
    assert.equal(warnings.length, 1, warnings.join('\n'));
    assert.match(warnings[0] as string, /CUDA_ERROR_LAUNCH_FAILED/);
  });

  test('an owner throws the error of the resource that finds the loss', () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    const buffers = [MemoryPool.default().allocate(4096), MemoryPool.default().allocate(4096)];
    lose();
    assert.throws(() => Context.primary().resources.closeAll('a test'), lost);
    for (const buffer of buffers) assert.equal(buffer.closed, true);
  });

  test('a loss that a release catches is still reported later', () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    const context = Context.primary();
    context.handle;
    const fail = (): void => check(cu.cuStreamQuery(CU_STREAM_LEGACY), 'cuStreamQuery');
    class Thing extends Resource {
      constructor(release: () => void) {
        super('Thing', { owner: context.resources, release });
      }
    }
    const catching = new Thing(() => assert.throws(fail, lost));
    const failing = new Thing(fail);
    const late = new Thing(fail);
    lose();
    catching.close();
    assert.throws(() => failing.close(), lost);
    late.close();
  });

  test('a using scope in which the loss is found throws that error itself', async () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    await assert.rejects(async () => {
      using stream = Stream.create({ nonBlocking: true });
      using event = CudaEvent.create();
      using pool = MemoryPool.create({ maxSize: 1 << 20 });
      using buffer = pool.allocate(4096, { stream });
      buffer.fill(1, { stream });
      event.record(stream);
      lose();
      await stream.synchronize();
    }, lost);
  });

  test('the end of autoSynchronize() rejects each time in a lost context', async () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    using stream = Stream.create({ nonBlocking: true });
    const scopes = [stream.autoSynchronize(), stream.autoSynchronize()];
    lose();
    for (const scope of scopes)
      await assert.rejects(scope[Symbol.asyncDispose]() as Promise<void>, lost);
  });

  test('onDone passes the error of a lost context to its callback', async () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    latch.hold(stream);
    const called = new Promise((resolve) => stream.onDone(resolve));
    lose();
    await assert.rejects(
      called.then((error) => Promise.reject(error)),
      lost,
    );
    assert.throws(() => latch[Symbol.dispose](), lost);
  });

  test('another error of a release is thrown in a working context, and dropped in a lost one', async () => {
    const status = CUresult.CUDA_ERROR_INVALID_VALUE;
    selectDriver(broken(emulate(), 'cuEventDestroy_v2', status));
    assert.throws(() => CudaEvent.create().close(), { status });
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(broken(driver, 'cuEventDestroy_v2', status));
    const event = CudaEvent.create();
    lose();
    assert.throws(() => event.done, lost);
    event.close();
  });

  test('all contexts are lost at once: resources of another device close silently, too', async () => {
    const env = { CUFFI_EMULATED_DEVICES: '2' };
    selectDriver(createEmulatedDriver({ arena, env, kernels: emulatedKernels }));
    const lone = (device: number) => {
      const module = loadKernels({ device });
      const stream = Stream.create({ device, nonBlocking: true });
      const event = CudaEvent.create({ device });
      return { module, stream, event };
    };
    const first = lone(0);
    const second = lone(1);
    const illegal = { status: CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, sticky: true };
    const { module, stream } = first;
    module.kernel('stray', ['pointer']).launch({ grid: 1, block: 1, stream }, 2 ** 46 + 4096);
    await assert.rejects(first.stream.synchronize(), illegal);
    await assert.rejects(second.stream.synchronize(), illegal);
    assert.throws(() => second.event.done, illegal);
    for (const { module, stream, event } of [first, second]) {
      event.close();
      stream.close();
      module.close();
    }
  });

  test('a borrowed context is never pushed to find out whether it is lost', async () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    using foreign = new ForeignContext();
    const context = Context.fromHandle(foreign.handle);
    const stream = Stream.create({ context, nonBlocking: true });
    const events = [CudaEvent.create({ context }), CudaEvent.create({ context })];
    lose();
    assert.throws(() => events[0]?.close(), lost);
    events[1]?.close();
    stream.close();
  });

  test('a loss that is found in a capture is reported once', async () => {
    const { open, lose } = everything();
    const { stream } = open;
    assert.throws(
      () =>
        Graph.capture(stream, () => {
          using _event = CudaEvent.create();
          lose();
          open.buffer.fill(1, { stream });
        }),
      lost,
    );
    for (const each of Object.values(open)) each.close();
  });

  test('a context that was reset after a loss counts as working again', () => {
    const emulated = emulate();
    const { driver, lose } = losing(emulated, CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    const context = Context.primary();
    const buffer = DeviceBuffer.allocate(64);
    lose();
    assert.throws(() => buffer.fill(1), lost);
    assert.equal(context.isLost, true);
    context.resetSync();
    assert.equal(context.isLost, false);
    assert.equal(buffer.closed, true);
  });
});
