import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import { OUT0, readHandle, writeUint64 } from '../../../../ffi/arena.ts';
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
  CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH,
  CU_STREAM_NON_BLOCKING,
} from '../../../../ffi/constants.ts';
import { cu, recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { Driver, FunctionName } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import type { CUstream } from '../../../../ffi/types.ts';
import {
  Context,
  Device,
  DeviceBuffer,
  MemoryPool,
  PinnedBuffer,
  type PoolOptions,
  Stream,
} from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { broken, failing, keepingBooks } from '../../../support/faults.ts';
import { until } from '../../../support/iterations.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

const MIB = 1 << 20;

describe('MemoryPool', () => {
  test('invalid options are refused before any driver call', () => {
    emulate();
    const recorder = recordCalls();
    const wrong: readonly [options: object, error: RegExp][] = [
      [{ maxsize: 1 }, /unknown option 'maxsize'/],
      [{ maxSize: 0 }, /maxSize must be an integer of at least 1/],
      [{ maxSize: '1' }, /maxSize must be a number/],
      [{ releaseThreshold: -1 }, /releaseThreshold must be an integer/],
      [{ shareable: 1 }, /shareable must be true or false/],
      [{ reuse: { opportunistic: true } }, /reuse: unknown option 'opportunistic'/],
      [{ reuse: { allowOpportunistic: 1 } }, /allowOpportunistic must be true or false/],
    ];
    for (const [options, error] of wrong)
      assert.throws(() => MemoryPool.create(options as never), error);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('a release threshold is read as it was set, to the last byte, and Infinity beyond', () => {
    emulate();
    using pool = MemoryPool.create();
    const most = Number.MAX_SAFE_INTEGER;
    for (const threshold of [0, 1, 2 ** 32, most - 1, most, Number.POSITIVE_INFINITY]) {
      pool.releaseThreshold = threshold;
      assert.equal(pool.releaseThreshold, threshold);
      using made = MemoryPool.create({ releaseThreshold: threshold });
      assert.equal(made.releaseThreshold, threshold);
    }
    // Another library may set what is no safe integer.
    assert.equal(cu.cuMemPoolSetAttribute(pool.handle, 4, writeUint64(2n ** 53n)), 0);
    assert.equal(pool.releaseThreshold, Number.POSITIVE_INFINITY);
  });

  test('memory of a borrowed stream that was closed is freed behind its work', async () => {
    emulate();
    using pool = MemoryPool.create();
    Context.primary().run(() => cu.cuStreamCreateWithPriority(OUT0, CU_STREAM_NON_BLOCKING, 0));
    const theirs = readHandle<CUstream>(OUT0);
    for (const isBusy of [false, true]) {
      using latch = new Latch();
      const stream = Stream.fromHandle(theirs);
      const buffer = pool.allocate(MIB, { stream });
      await stream.synchronize();
      if (isBusy) latch.hold(stream);
      stream.close();
      const recorder = recordCalls();
      const freed = (): boolean => recorder.calls.some(({ name }) => name === 'cuMemFreeAsync');
      buffer.close();
      assert.equal(freed(), !isBusy);
      latch.open();
      await until(freed);
      recorder.stop();
    }
    cu.cuStreamDestroy_v2(theirs);
  });

  test('create() passes each given option to the driver, and no other', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const made = (options: PoolOptions): readonly [props: unknown, attributes: unknown] => {
      recorder.calls.length = 0;
      using pool = MemoryPool.create(options);
      const { handle } = pool;
      const props = recorder.of('cuMemPoolCreate').at(-1)?.args[1] as Record<string, number>;
      const attributes = recorder.of('cuMemPoolSetAttribute').map(({ args: [of, ...told] }) => {
        assert.equal(of, handle);
        return told;
      });
      const { allocType, handleTypes, maxSize } = props;
      assert.equal(allocType, CU_MEM_ALLOCATION_TYPE_PINNED);
      assert.equal(props['location.type'], CU_MEM_LOCATION_TYPE_DEVICE);
      return [{ device: props['location.id'], handleTypes, maxSize }, attributes];
    };
    const never = Number(2n ** 64n - 1n);
    assert.deepEqual(made({}), [
      { device: 0, handleTypes: CU_MEM_HANDLE_TYPE_NONE, maxSize: 0 },
      [[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, never]],
    ]);
    const handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const reuse = {
      followEventDependencies: false,
      allowOpportunistic: true,
      allowInternalDependencies: false,
    };
    const all = { maxSize: 64 * MIB, releaseThreshold: 5 * MIB, shareable: true, reuse };
    for (const place of [{ device: 1 }, { context: Context.primary(1) }])
      assert.deepEqual(made({ ...place, ...all }), [
        { device: 1, handleTypes, maxSize: 64 * MIB },
        [
          [CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 5 * MIB],
          [CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0],
          [CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1],
          [CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0],
        ],
      ]);
  });

  test('default() and supported() query the given device', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const { device } = MemoryPool.default(1).context;
    assert.equal(device, Device.get(1));
    assert.deepEqual(
      recorder.of('cuDeviceGetDefaultMemPool').map(({ args }) => args[1]),
      [device.handle],
    );
    assert.equal(MemoryPool.supported(1, { shareable: true }), true);
    const [tried] = recorder.of('cuMemPoolCreate').map(({ args }) => args[1]);
    assert.equal((tried as Record<string, number>)['location.id'], device.handle);
    assert.equal(recorder.of('cuMemPoolDestroy').length, 1);
  });

  test('attribute calls pass the pool, the device and the value', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    using pool = MemoryPool.create({ device: 1 });
    const { handle } = pool;
    recorder.calls.length = 0;
    pool.setAccess(0, 'read-write');
    assert.equal(pool.access(0), 'read-write');
    pool.setAccess(Device.get(0), 'none');
    assert.equal(pool.access(Device.get(1)), 'read-write');
    pool.trim();
    pool.trim(4096);
    pool.releaseThreshold = 77;
    pool.reuse = { allowOpportunistic: false };
    pool.resetHighWater();
    const of = (id: number, flags: number): object => ({
      'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
      'location.id': id,
      flags,
    });
    const told = recorder.calls.map(({ name, args }) => [name, ...args]);
    assert.deepEqual(
      told.filter(([name]) => `${name}`.startsWith('cuMemPool')),
      [
        ['cuMemPoolSetAccess', handle, of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), 1],
        ['cuMemPoolGetAccess', OUT0, handle, { type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }],
        ['cuMemPoolSetAccess', handle, of(0, CU_MEM_ACCESS_FLAGS_PROT_NONE), 1],
        ['cuMemPoolGetAccess', OUT0, handle, { type: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 }],
        ['cuMemPoolTrimTo', handle, 0],
        ['cuMemPoolTrimTo', handle, 4096],
        ['cuMemPoolSetAttribute', handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 77],
        ['cuMemPoolSetAttribute', handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0],
        ['cuMemPoolSetAttribute', handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0],
        ['cuMemPoolSetAttribute', handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0],
      ],
    );
  });

  test('memory is freed in the stream of its allocation, or in the stream passed to close()', () => {
    const recorder = recordArguments(emulate());
    const context = Context.primary();
    using pool = MemoryPool.create();
    using first = Stream.create();
    using second = Stream.create({ nonBlocking: true });
    const streams = (allocation?: Stream, end?: Stream): unknown[] => {
      recorder.calls.length = 0;
      const buffer = pool.allocate(100, allocation && { stream: allocation });
      const { address } = buffer;
      buffer.close(end && { stream: end });
      const [made] = recorder.of('cuMemAllocFromPoolAsync');
      const [freed] = recorder.of('cuMemFreeAsync');
      assert.deepEqual(made?.args.slice(1, 3), [100, pool.handle]);
      assert.equal(freed?.args[0], address);
      // Default streams belong to the current context.
      for (const call of [made, freed])
        assert.ok(call?.args.at(-1) || call?.context === context.handle);
      return [made?.args[3], freed?.args[1]];
    };
    assert.deepEqual(streams(), [0, 0]);
    assert.deepEqual(streams(first), [first.handle, first.handle]);
    assert.deepEqual(streams(first, second), [first.handle, second.handle]);
    assert.deepEqual(streams(undefined, second), [0, second.handle]);
    const legacy = Stream.legacyDefault();
    assert.deepEqual(streams(second, legacy), [second.handle, legacy.handle]);
  });

  test('a stream that was closed busy still frees its memory; if it was closed idle, the default stream does', async () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    using pool = MemoryPool.create({ device: 0 });
    pool.setAccess(1, 'read-write');
    for (const device of [0, 1]) {
      const context = Context.primary(device);
      const [busy, idle] = [1, 2].map(() => Stream.create({ context, nonBlocking: true }));
      assert.ok(busy && idle);
      const [held, free] = [busy, idle].map((stream) => pool.allocate(64, { stream }));
      assert.ok(held && free);
      const [handle, addresses] = [busy.handle, [held.address, free.address]];
      // Destroyed at once, because nothing runs.
      idle.close();
      {
        using latch = new Latch(context);
        latch.hold(busy);
        busy.close();
        recorder.calls.length = 0;
        held.close();
        free.close();
        assert.deepEqual(
          recorder.of('cuMemFreeAsync').map((call) => [...call.args, call.context]),
          [
            [addresses[0], handle, context.handle],
            [addresses[1], 0, pool.context.handle],
          ],
        );
      }
      await context.flush();
    }
    assert.equal(pool.used, 0);
  });

  test('allocate() checks its arguments before any driver call', () => {
    emulate();
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    const recorder = recordCalls();
    for (const size of [0, -1, 1.5, Number.NaN, 2 ** 53, 64 * MIB + 1])
      assert.throws(
        () => pool.allocate(size),
        size > 64 * MIB && size < 2 ** 53
          ? /^RangeError: 67108865 bytes \(64 MiB\) are more than the pool's maxSize of 67108864 bytes \(64 MiB\)$/
          : /^RangeError: byteLength must be an integer of at least 1, not /,
        String(size),
      );
    for (const size of ['16', null, undefined, 16n])
      assert.throws(
        () => pool.allocate(size as never),
        /^TypeError: byteLength must be a number, not /,
        String(size),
      );
    assert.throws(() => pool.allocate(1, { stream: {} as never }), /stream must be a Stream/);
    assert.throws(() => pool.allocate(1, { device: 0 } as never), /unknown option 'device'/);
    assert.throws(
      () => pool.trim(-1),
      /^RangeError: minBytesToKeep must be an integer of at least 0, not -1$/,
    );
    assert.throws(() => pool.close({ buffer: true } as never), /unknown option 'buffer'/);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('options with only a stream are read like all others, whatever object they are', () => {
    emulate();
    using pool = MemoryPool.create();
    using stream = Stream.create({ nonBlocking: true });
    const closed = Stream.create();
    closed.close();
    const recorder = recordCalls();
    const wrong: readonly [options: unknown, error: RegExp][] = [
      [null, /options must be a plain object, not null/],
      [stream, /options must be a plain object, not a Stream/],
      [[stream], /options must be a plain object, not an Array/],
      [
        new (class Options {
          stream = stream;
        })(),
        /options must be a plain object, not an Options/,
      ],
      [{ streem: stream }, /unknown option 'streem' \(did you mean 'stream'\?\); known: stream/],
      [{ stream, also: 1 }, /unknown option 'also'/],
      [{ stream: {} }, /stream must be a Stream, not an Object/],
      [{ stream: closed }, /this Stream is closed/],
    ];
    for (const [options, error] of wrong)
      assert.throws(() => pool.allocate(1, options as never), error);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    const bare = Object.assign(Object.create(null), { stream });
    for (const options of [undefined, {}, { stream: undefined }, bare])
      pool.allocate(1, options).close();
    assert.equal(pool.used, 0);
  });

  test('allocating and freeing in a stream take one driver call each, and one query of the stream', () => {
    emulate();
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    using stream = Stream.create();
    const recorder = recordCalls();
    pool.allocate(MIB, { stream }).close();
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name),
      ['cuMemAllocFromPoolAsync', 'cuStreamQuery', 'cuMemFreeAsync'],
    );
  });

  test('an allocation in a busy stream whose event cannot be made throws, and frees the memory', async () => {
    for (const name of ['cuEventCreate', 'cuEventRecord'] as const) {
      const { driver, open } = keepingBooks(emulate());
      selectDriver(driver);
      const context = Context.primary();
      const pool = MemoryPool.create({ maxSize: 64 * MIB });
      const stream = Stream.create({ nonBlocking: true });
      const latch = new Latch();
      latch.hold(stream);
      selectDriver(failing(driver, name, 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
      assert.throws(() => pool.allocate(MIB, { stream }), { name: 'CudaError' });
      pool.allocate(MIB, { stream }).close();
      latch[Symbol.dispose]();
      for (const each of [pool, stream]) each.close();
      await context.flush();
      assert.ok(![...open].some((what) => what.startsWith('cuMemAllocFromPool')), name);
    }
  });

  test('the events behind allocations are used again', () => {
    const driver = emulate();
    let made = 0;
    selectDriver({
      ...driver,
      cuEventCreate: (...args) => {
        made += 1;
        return driver.cuEventCreate(...args);
      },
    });
    using pool = MemoryPool.create({ maxSize: 64 * MIB });
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    for (let n = 0; n < 50; n += 1) pool.allocate(512, { stream }).close();
    assert.ok(made <= 2, `${made} events`);
  });

  test('supported() detects a driver that reports shareable pools and refuses them, with one probe', () => {
    const driver = emulate();
    let asked = 0;
    selectDriver({
      ...driver,
      cuMemPoolCreate: (out, props) => {
        asked += 1;
        return asked === 1 ? 1 : driver.cuMemPoolCreate(out, props);
      },
    });
    assert.equal(MemoryPool.supported(), true);
    assert.equal(MemoryPool.supported(0, { shareable: true }), false);
    assert.equal(MemoryPool.supported(0, { shareable: true }), false);
    assert.equal(asked, 1);
    assert.throws(() => MemoryPool.create({ shareable: true }), {
      name: 'NotSupportedError',
      message: /does not support memory pools that can be shared by file descriptor/,
    });
    MemoryPool.create({ maxSize: MIB }).close();
  });

  test('supported() throws if the probe fails for another reason', () => {
    selectDriver(broken(emulate(), 'cuMemPoolCreate', 999));
    assert.throws(() => MemoryPool.supported(0, { shareable: true }), { status: 999 });
  });

  test('create() on a device without pools throws an error that says what to use', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '115=0' });
    assert.equal(MemoryPool.supported(), false);
    assert.equal(MemoryPool.supported(0, { shareable: true }), false);
    const message = /has no memory pools: use DeviceBuffer\.allocate/;
    assert.throws(() => MemoryPool.create(), { name: 'NotSupportedError', message });
    assert.throws(() => MemoryPool.default(), { name: 'NotSupportedError', message });
  });

  test('create() destroys the pool if its settings fail', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(failing(driver, 'cuMemPoolSetAttribute', 1, 1));
    assert.throws(() => MemoryPool.create(), { call: 'cuMemPoolSetAttribute' });
    assert.deepEqual([...open], []);
  });

  test('close({ buffers: true }) closes all buffers newest first, even if one free fails', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(failing(driver, 'cuMemFreeAsync', 2, 1));
    const pool = MemoryPool.create();
    const buffers = [1, 2, 3].map((size) => pool.allocate(size));
    const addresses = buffers.map(({ address }) => address as number);
    const recorder = recordCalls();
    assert.throws(() => pool.close({ buffers: true }), { call: 'cuMemFreeAsync' });
    recorder.stop();
    assert.deepEqual(
      buffers.map(({ closed }) => closed),
      [true, true, true],
    );
    assert.equal(pool.closed, true);
    assert.deepEqual([...open], [`cuMemAllocFromPoolAsync ${addresses[1]}`]);
    assert.equal(recorder.calls.at(-1)?.name, 'cuMemPoolDestroy');
  });

  test('the access of other devices is revoked before the pool is destroyed', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '3' });
    const pool = MemoryPool.create();
    pool.setAccess(1, 'read-write');
    pool.setAccess(2, 'read-write');
    pool.setAccess(2, 'none');
    const recorder = recordCalls();
    pool.close();
    recorder.stop();
    const names = recorder.calls.map(({ name }) => name);
    assert.deepEqual(
      names.filter((name) => name.startsWith('cuMemPool')),
      ['cuMemPoolSetAccess', 'cuMemPoolDestroy'],
    );
  });

  test('the pool is destroyed even if revoking an access fails, and the error is thrown', () => {
    const driver = emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const books = keepingBooks(driver);
    selectDriver(failing(books.driver, 'cuMemPoolSetAccess', 2, 999));
    const pool = MemoryPool.create();
    pool.setAccess(1, 'read-write');
    assert.throws(() => pool.close(), { call: 'cuMemPoolSetAccess', status: 999 });
    assert.deepEqual([...books.open], []);
  });

  test('setAccess() throws a clear error for a device that cannot access the pool', () => {
    const driver = emulate({ CUFFI_EMULATED_DEVICES: '2' });
    selectDriver({
      ...driver,
      cuDeviceCanAccessPeer: (out, device) => driver.cuDeviceCanAccessPeer(out, device, device),
    });
    using pool = MemoryPool.create();
    assert.throws(() => pool.setAccess(1, 'read-write'), {
      name: 'NotSupportedError',
      message: /^Device 1 .* cannot access the memory of Device 0/,
    });
    assert.throws(
      () => pool.setAccess(2, 'none'),
      /^RangeError: there is no device 2: this process sees 2 \(0 to 1; CUDA_VISIBLE_DEVICES/,
    );
  });

  test('a reset of the context closes the pool and its buffers, and frees nothing twice', async () => {
    emulate();
    const context = Context.primary();
    const pool = MemoryPool.create();
    const borrowed = MemoryPool.default();
    const buffers = [pool.allocate(MIB), borrowed.allocate(MIB)];
    await context.reset();
    const recorder = recordCalls();
    for (const resource of [pool, borrowed, ...buffers]) {
      assert.equal(resource.closed, true);
      resource.close();
    }
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    assert.throws(() => pool.allocate(1), /its context was reset/);
    assert.throws(() => buffers[0]?.address, /its context was reset/);
  });

  test('memory allocated in a stream of another device is freed there', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using pool = MemoryPool.create({ device: 0 });
    pool.setAccess(1, 'read-write');
    using stream = Stream.create({ device: 1 });
    const buffer = pool.allocate(MIB, { stream });
    buffer.close();
    await stream.synchronize();
    assert.equal(pool.used, 0);
  });

  test('a plain buffer may also be closed in a stream, and is freed when the context is idle', () => {
    emulate();
    using stream = Stream.create();
    const buffer = DeviceBuffer.allocate(16);
    assert.throws(() => buffer.close({ streem: stream } as never), /unknown option 'streem'/);
    assert.throws(() => buffer.close({ stream: 1 } as never), /stream must be a Stream/);
    const closed = Stream.create();
    closed.close();
    assert.throws(() => buffer.close({ stream: closed }), /^ClosedError: this Stream is closed: /);
    assert.equal(buffer.closed, false);
    buffer.close({ stream });
    buffer.close({ stream });
    assert.equal(buffer.closed, true);
  });

  test('toString() describes the pool', () => {
    emulate();
    const pool = MemoryPool.create();
    assert.match(inspect(pool), /^MemoryPool\(on cuda:0\)$/);
    pool.close();
    assert.match(inspect(pool), /, closed\)$/);
    assert.match(String(MemoryPool.default()), /, borrowed\)$/);
  });

  test('memory that is closed during an awaited copy is freed after the queued transfers', async () => {
    const emulated = emulate();
    let isBusy = false;
    const cuStreamQuery: Driver['cuStreamQuery'] = (handle) =>
      isBusy ? CUresult.CUDA_ERROR_NOT_READY : emulated.cuStreamQuery(handle);
    let onQueued = (): void => {};
    const cuMemcpyDtoHAsync_v2: Driver['cuMemcpyDtoHAsync_v2'] = (...args) => {
      const status = emulated.cuMemcpyDtoHAsync_v2(...args);
      onQueued();
      return status;
    };
    selectDriver({ ...emulated, cuStreamQuery, cuMemcpyDtoHAsync_v2 });
    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    using stream = Stream.create({ nonBlocking: true });
    using pinned = PinnedBuffer.allocate(1 << 20);
    const buffer = pool.allocate(1 << 20, { stream });
    buffer.fill(7, { stream });
    await stream.synchronize();
    using recorder = recordCalls();
    let names: readonly string[] = [];
    onQueued = () => {
      isBusy = true;
      const before = recorder.calls.length;
      buffer.close();
      isBusy = false;
      names = recorder.calls.slice(before).map(({ name }) => name);
    };
    const copying = buffer.copyToHost(new Uint8Array(pinned.buffer), { stream });
    await assert.rejects(copying, { name: 'ClosedError' });
    const count = (name: FunctionName): number => names.filter((each) => each === name).length;
    assert.deepEqual([count('cuEventCreate'), count('cuEventDestroy_v2')], [1, 1]);
    assert.ok(names.indexOf('cuStreamWaitEvent') > 0);
    assert.ok(names.indexOf('cuMemFreeAsync') > names.indexOf('cuStreamWaitEvent'));
    assert.deepEqual(new Set(new Uint8Array(pinned.buffer)), new Set([7]));
  });
});
