import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  CU_MEMHOSTALLOC_PORTABLE,
  CU_MEMHOSTALLOC_WRITECOMBINED,
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../../ffi/functions.ts';
import { addressOf } from '../../../../../ffi/native.ts';
import {
  AutoFreePointer,
  BaseMemoryManager,
  Context,
  CuffiError,
  DeviceBuffer,
  DeviceMemory,
  DriverMemoryManager,
  HostOnlyMemoryManager,
  IpcHandle,
  MappedMemory,
  MappedPointer,
  type MemhostallocOptions,
  type MemoryInfo,
  MemoryPointer,
  MemoryPool,
  memoryManager,
  PinnedBuffer,
  PinnedPointer,
  pin,
  Stream,
  setMemoryManager,
} from '../../../../../src/index.ts';
import { getIpcHandle } from '../../../../../src/ipc/index.ts';
import { recordArguments } from '../../../../support/arguments.ts';
import { failing, keepingBooks } from '../../../../support/faults.ts';
import { Latch } from '../../../../support/latch.ts';
import { collectGarbage, collectUntil, watchMappings } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';

/** A manager with methods that a test can replace. */
class Replaced extends DriverMemoryManager {
  static methods: Partial<Record<keyof BaseMemoryManager, unknown>> = {};

  constructor(context: Context) {
    super(context);
    Object.assign(this, Replaced.methods);
  }
}

function replace(methods: typeof Replaced.methods): void {
  emulate();
  Replaced.methods = methods;
  setMemoryManager(Replaced);
}

/** An array that shares no page with any other. */
const page = (): Uint8Array => new Uint8Array(new ArrayBuffer(1 << 17), 1 << 16, 4096);

describe('setMemoryManager', () => {
  test('a manager can be set only before the first context', () => {
    emulate();
    for (const wrong of [undefined, {}, Date, () => 0, new DriverMemoryManager(Context.primary())])
      assert.throws(() => setMemoryManager(wrong as never), {
        name: 'TypeError',
        message: 'Manager must be a class that extends BaseMemoryManager',
      });
    assert.throws(() => setMemoryManager(DriverMemoryManager), {
      name: 'CuffiError',
      message: /a memory manager must be set before the first context exists/,
    });
    emulate();
    setMemoryManager(DriverMemoryManager);
    setMemoryManager(Replaced);
    Replaced.methods = {};
    assert.ok(memoryManager() instanceof Replaced);
    emulate();
    assert.ok(!(memoryManager() instanceof Replaced), 'it was set for another driver');
  });

  test('memory of a pool that a manager gives out is ordered in every stream, if its pointer names the buffer', () => {
    for (const isNamed of [true, false]) {
      let pool: MemoryPool | undefined;
      replace({
        memalloc(byteLength: number, options: { readonly stream?: Stream }) {
          pool ??= MemoryPool.create({ maxSize: 64 << 20 });
          const owner = pool.allocate(byteLength, options);
          const { context, address: pointer } = owner;
          const finalizer = (close: object): void => owner.close(close);
          return new MemoryPointer({
            context,
            pointer,
            byteLength,
            finalizer,
            ...(isNamed && { owner }),
          });
        },
      });
      const context = Context.primary();
      const [allocator, stream] = [0, 1].map(() => Stream.create({ nonBlocking: true })) as [
        Stream,
        Stream,
      ];
      using latch = new Latch();
      latch.hold(allocator);
      const buffer = DeviceBuffer.allocate(512, { stream: allocator });
      buffer.fill(1, { stream });
      assert.equal(stream.done, !isNamed);
      latch.open();
      context.synchronizeSync();
      for (const each of [buffer, allocator, stream]) each.close();
      pool?.close();
    }
  });

  test('another interface version and a class with missing methods are refused', () => {
    emulate();
    class Later extends DriverMemoryManager {
      override get interfaceVersion(): number {
        return 2;
      }
    }
    const error = {
      name: 'NotSupportedError',
      message: 'Later implements version 2 of the memory manager interface: version 1 is required',
    };
    assert.throws(() => setMemoryManager(Later), error);
    replace({});
    Object.defineProperty(Replaced.methods, 'initialize', { value: 1, enumerable: true });
    assert.throws(() => DeviceBuffer.allocate(1), {
      name: 'TypeError',
      message: 'Replaced lacks initialize',
    });
    abstract class Bare extends BaseMemoryManager {
      interfaceVersion = 1;
    }
    emulate();
    setMemoryManager(Bare as never);
    assert.throws(() => DeviceBuffer.allocate(1), {
      name: 'TypeError',
      message:
        'Bare lacks memalloc, memhostalloc, mempin, getIpcHandle, getMemoryInfo, reset, deferCleanup',
    });
    replace({});
    Object.defineProperty(Replaced.prototype, 'interfaceVersion', { value: 0, configurable: true });
    assert.throws(() => setMemoryManager(Replaced), { message: /implements version 0/ });
    assert.throws(() => DeviceBuffer.allocate(1), { message: /implements version 0/ });
    Reflect.deleteProperty(Replaced.prototype, 'interfaceVersion');
  });

  test('each context has its own instance, initialized at the first use and after a reset', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const events: string[] = [];
    class Noting extends DriverMemoryManager {
      readonly #name = `${this.context.device.ordinal}`;

      override initialize(): void {
        events.push(`initialize ${this.#name}`);
      }
      override reset(): void {
        events.push(`reset ${this.#name}`);
      }
    }
    setMemoryManager(Noting);
    const [first, second] = [Context.primary(0), Context.primary(1)];
    first.resetSync();
    assert.deepEqual(events, [], 'nothing was made before it was used');
    DeviceBuffer.allocate(1, { device: 1 }).close();
    DeviceBuffer.allocate(1, { context: second }).close();
    DeviceBuffer.allocate(1).close();
    assert.notEqual(memoryManager(first), memoryManager(second));
    assert.deepEqual([memoryManager().context, memoryManager(second).context], [first, second]);
    first.resetSync();
    DeviceBuffer.allocate(1).close();
    assert.deepEqual(events, ['initialize 1', 'initialize 0', 'reset 0', 'initialize 0']);
    memoryManager(second).initialize();
    assert.throws(
      () => memoryManager({} as Context),
      /^TypeError: context must be a Context, not an Object$/,
    );
  });

  test('a failed initialize() is retried', () => {
    let fails = true;
    replace({
      initialize() {
        if (fails) throw new Error('not yet');
      },
    });
    assert.throws(() => DeviceBuffer.allocate(1), /not yet/);
    Context.primary().resetSync();
    fails = false;
    DeviceBuffer.allocate(1).close();
  });
});

describe('ManagerAdapter', () => {
  test('an error of the manager reaches the caller unchanged, and nothing stays allocated', () => {
    class Refusal extends CuffiError {}
    const refusal = new Refusal('no');
    const refuse = (): never => {
      throw refusal;
    };
    replace({
      memhostalloc: refuse,
      mempin: refuse,
      getIpcHandle: refuse,
      getMemoryInfo: refuse,
      deferCleanup: refuse,
      reset: refuse,
    });
    const context = Context.primary();
    const mapped = MappedMemory.create();
    using buffer = DeviceBuffer.allocate(64);
    const { size } = context.resources;
    for (const call of [
      () => PinnedBuffer.allocate(1),
      () => mapped.allocate(1),
      () => pin(page(), page()),
      () => getIpcHandle(buffer),
      () => context.memoryInfo(),
      () => context.deferCleanup(),
    ])
      assert.throws(call, (error) => error === refusal);
    assert.equal(context.resources.size, size);
    // A scope that failed to open defers no release.
    const recorder = recordCalls();
    DeviceMemory.create().allocate(1).close();
    assert.ok(recorder.calls.some(({ name }) => name === 'cuMemFree_v2'));
    recorder.stop();
    assert.throws(
      () => context.resetSync(),
      (error) => error === refusal,
    );
    assert.equal(buffer.closed, true, 'the context was reset nevertheless');
    replace({ memalloc: refuse });
    assert.throws(
      () => DeviceBuffer.allocate(1),
      (error) => error === refusal,
    );
  });

  test('an invalid result for memory is refused by name, and an unsuitable pointer is closed', () => {
    emulate();
    let answer: unknown;
    let freed = 0;
    Replaced.methods = { memalloc: () => answer, memhostalloc: () => answer, mempin: () => answer };
    setMemoryManager(Replaced);
    const context = Context.primary();
    const init = {
      context,
      pointer: 4096,
      byteLength: 100,
      finalizer: () => {
        freed += 1;
      },
    };
    const foreign = Context.fromHandle(context.handle);
    assert.equal(foreign, context);
    const refused = (call: () => unknown, message: string | RegExp): void =>
      assert.throws(call, { name: 'TypeError', message });
    for (answer of [undefined, null, 4096, {}, Promise.resolve()])
      refused(
        () => DeviceBuffer.allocate(100),
        /^what Replaced\.memalloc returns must be a MemoryPointer, not /,
      );
    answer = new PinnedPointer(init);
    refused(() => DeviceBuffer.allocate(100), /must be a MemoryPointer, not a PinnedPointer/);
    answer = new AutoFreePointer(init);
    refused(() => PinnedBuffer.allocate(100), /memhostalloc returns must be a PinnedPointer/);
    answer = new MemoryPointer(init);
    refused(
      () => MappedMemory.create().allocate(1),
      /memhostalloc returns must be a MappedPointer/,
    );
    answer = new AutoFreePointer(init);
    refused(() => pin(page()), /mempin returns must be a PinnedPointer/);
    answer = new AutoFreePointer({ ...init, byteLength: 99 });
    refused(
      () => DeviceBuffer.allocate(100),
      'Replaced.memalloc must return at least 100 bytes, not 99',
    );
    assert.equal(freed, 5);
    const closed = new MemoryPointer(init);
    closed.close();
    answer = closed;
    refused(() => DeviceBuffer.allocate(1), /must return an open pointer, not a closed one/);
    answer = new MemoryPointer(init);
    const buffer = DeviceBuffer.allocate(100);
    refused(
      () => DeviceBuffer.allocate(100),
      /a new pointer for each call, not one that it returned before/,
    );
    assert.deepEqual([freed, buffer.closed], [6, false]);
    buffer.close();
    assert.equal(freed, 7);
  });

  test('pin() takes over the lock of any manager whose release waits, and releases it once', async () => {
    emulate();
    const unlocked: number[] = [];
    let locks = 0;
    /** Locks nothing twice, as the driver does. */
    const mempin = (owner: Uint8Array): PinnedPointer => {
      const pointer = addressOf(owner);
      assert.ok(!held.has(pointer), 'it is locked already');
      held.add(pointer);
      locks += 1;
      return new PinnedPointer({
        context,
        pointer,
        byteLength: owner.byteLength,
        finalizer: () => {
          held.delete(pointer);
          unlocked.push(pointer);
        },
      });
    };
    const held = new Set<number>();
    Replaced.methods = { mempin };
    setMemoryManager(Replaced);
    const context = Context.primary();
    const [first, second] = [page(), page()];
    const stream = Stream.create({ nonBlocking: true });
    {
      using latch = new Latch();
      latch.hold(stream);
      pin(first, second).close();
      const again = pin(second);
      assert.deepEqual([locks, unlocked], [2, []]);
      assert.throws(() => pin(second), /it is locked already/, 'only what is being released');
      assert.throws(() => pin(second.subarray(0, 64)), /it is locked already/, 'only that range');
      assert.throws(() => pin(second, { portable: false }), /it is locked already/, 'or flags');
      latch.open();
      await context.flush();
      assert.deepEqual(unlocked, [addressOf(first)]);
      again.close();
      assert.deepEqual(unlocked, [first, second].map(addressOf));
    }
    {
      using latch = new Latch();
      latch.hold(stream);
      using _busy = pin(first);
      assert.throws(() => pin(second, first), /it is locked already/);
      pin(second).close();
      assert.equal(locks, 4, 'what was locked before the error is taken over');
    }
    await context.flush();
    {
      using _scope = context.deferCleanup();
      pin(first).close();
      context.resetSync();
      held.clear();
      pin(first).close();
      assert.equal(locks, 6, 'a reset ends all locks');
    }
  });

  test('a lock that its manager has ended is not taken over', async () => {
    emulate();
    const pointers: PinnedPointer[] = [];
    Replaced.methods = {
      mempin: (owner: Uint8Array) => {
        const made = { context, pointer: addressOf(owner), byteLength: owner.byteLength };
        pointers.push(new PinnedPointer(made));
        return pointers.at(-1);
      },
    };
    setMemoryManager(Replaced);
    const context = Context.primary();
    const array = page();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    pin(array).close();
    pointers[0]?.close();
    using _again = pin(array);
    assert.equal(pointers.length, 2);
    latch.open();
    await context.flush();
    assert.equal(pointers[1]?.closed, false);
  });

  test('memory of another context is refused', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    Replaced.methods = {
      memalloc: () =>
        new MemoryPointer({ context: Context.primary(1), pointer: 4096, byteLength: 100 }),
    };
    setMemoryManager(Replaced);
    assert.throws(() => DeviceBuffer.allocate(100), {
      name: 'TypeError',
      message: 'Replaced.memalloc must return memory of its own context, not of another',
    });
  });

  test('invalid memory information, scopes and handles are refused by name', () => {
    let answer: unknown;
    const methods = { getMemoryInfo: () => answer, deferCleanup: () => answer };
    replace({ ...methods, getIpcHandle: () => answer });
    const context = Context.primary();
    for (answer of [undefined, 1, {}, { free: -1, total: 1 }, { free: 2, total: 1 }])
      assert.throws(() => context.memoryInfo(), {
        name: 'TypeError',
        message: /^Replaced\.getMemoryInfo must return \{ free, total \}, both in bytes/,
      });
    for (answer of [undefined, {}, { dispose() {} }])
      assert.throws(() => context.deferCleanup(), {
        name: 'TypeError',
        message: 'Replaced.deferCleanup must return a Disposable',
      });
    using buffer = DeviceBuffer.allocate(100);
    using base = new MemoryPointer({ context, pointer: buffer.address, byteLength: 100 });
    const handle = new Uint8Array(64);
    answer = 'handle for alloc 1';
    assert.throws(() => getIpcHandle(buffer), {
      name: 'TypeError',
      message: 'what Replaced.getIpcHandle returns must be an IpcHandle, not "handle for alloc 1"',
    });
    for (const [change, message] of [
      [{ byteLength: 99 }, 'byteLength 100, not 99'],
      [{ offset: 1 }, 'offset 0, not 1'],
      [{ sourceInfo: 'GPU-0' }, `sourceInfo ${context.device.uuid}, not GPU-0`],
    ] as const) {
      answer = new IpcHandle({ base, handle, ...change });
      assert.throws(() => getIpcHandle(buffer), {
        name: 'TypeError',
        message: `Replaced.getIpcHandle must return a handle with ${message}`,
      });
    }
  });

  test('a manager may query its context, and does not serve explicitly named resources', () => {
    let count = 0;
    class Asking extends DriverMemoryManager {
      override memalloc(byteLength: number): MemoryPointer {
        count += 1;
        const { context } = this;
        const buffer = DeviceBuffer.allocate(byteLength, { context });
        assert.ok(context.memoryInfo().free > 0);
        context.deferCleanup()[Symbol.dispose]();
        const { address: pointer } = buffer;
        return new MemoryPointer({ context, pointer, byteLength, finalizer: () => buffer.close() });
      }
    }
    emulate();
    setMemoryManager(Asking);
    DeviceBuffer.allocate(100).close();
    DeviceMemory.create().allocate(100).close();
    assert.equal(count, 1);
    assert.ok(memoryManager().getMemoryInfo().total > 0);
  });

  test('the free memory in an error comes from the driver, not from the manager', () => {
    const driver = emulate();
    selectDriver(failing(driver, 'cuMemAlloc_v2', 1, 2));
    Replaced.methods = { getMemoryInfo: () => assert.fail('asked') };
    setMemoryManager(Replaced);
    assert.throws(() => DeviceMemory.create().allocate(100), {
      name: 'CudaError',
      message: /allocating 100 bytes with \d+ bytes .* free/,
    });
  });

  test('host memory that is longer than requested is viewed up to the requested size', () => {
    const PAGE = 4096;
    class Generous extends DriverMemoryManager {
      override memhostalloc(
        byteLength: number,
        options?: MemhostallocOptions,
      ): PinnedPointer | MappedPointer {
        const pointer = super.memhostalloc(Math.ceil(byteLength / PAGE) * PAGE, options);
        if (pointer instanceof MappedPointer) return pointer;
        const { context } = this;
        const finalizer = (): void => pointer.close();
        return new PinnedPointer({
          context,
          pointer: pointer.pointer,
          byteLength: PAGE,
          finalizer,
        });
      }
    }
    emulate();
    setMemoryManager(Generous);
    for (const mapped of [true, false]) {
      using pinned = PinnedBuffer.allocate(100, { mapped });
      assert.deepEqual([pinned.buffer.byteLength, pinned.byteLength], [100, 100]);
      assert.throws(
        () => pinned.window(90, 11),
        /^RangeError: byteLength must be an integer from 1 to 10, not 11$/,
      );
    }
  });

  test('host memory of another library is viewed, and released when no view is left', async () => {
    let freed = 0;
    class Lending extends DriverMemoryManager {
      override memhostalloc(byteLength: number): PinnedPointer {
        const lent = super.memhostalloc(byteLength);
        return new PinnedPointer({
          context: this.context,
          pointer: lent.pointer,
          byteLength,
          finalizer: () => {
            freed += 1;
            lent.close();
          },
        });
      }
    }
    emulate();
    setMemoryManager(Lending);
    const use = (): void => {
      const pinned = PinnedBuffer.allocate(5000);
      new Uint8Array(pinned.buffer).fill(1);
      pinned.close();
    };
    use();
    assert.equal(freed, 0);
    assert.ok(await collectUntil(() => freed === 1));
    PinnedBuffer.allocate(5000).close();
    assert.equal(freed, 2);
  });

  test('the streams of allocate() and close() reach the manager', () => {
    const seen: unknown[] = [];
    emulate();
    class Ordered extends DriverMemoryManager {
      override memalloc(byteLength: number, options = {}): MemoryPointer {
        seen.push(options);
        const held = super.memalloc(byteLength).own();
        const finalizer = (last: object): void => {
          seen.push(last);
          held.close();
        };
        const { pointer } = held;
        return new AutoFreePointer({ context: this.context, pointer, byteLength, finalizer });
      }
    }
    setMemoryManager(Ordered);
    using stream = Stream.create();
    const buffer = DeviceBuffer.allocate(10, { stream });
    assert.equal(buffer.resource?.context, Context.primary());
    buffer.close({ stream });
    buffer.resource?.allocate(10).close();
    assert.deepEqual(seen, [{ stream }, { stream }, {}, {}]);
  });

  test('after any failed driver call under a manager, nothing leaks and the manager works again', async () => {
    const furnish = () => {
      const books = keepingBooks(emulate());
      selectDriver(books.driver);
      setMemoryManager(DriverMemoryManager);
      const context = Context.primary();
      const use = (): void => {
        using buffer = DeviceBuffer.allocate(4096, { context });
        getIpcHandle(buffer.subarray(100));
        PinnedBuffer.allocate(4096, { context, mapped: true }).close();
        PinnedBuffer.allocate(4096, { context, mapped: true, writeCombined: true }).close();
        MappedMemory.create({ context }).allocate(4096).close();
        pin(page(), { context }).close();
        context.memoryInfo();
      };
      use();
      return { ...books, context, use };
    };
    const { use: once } = furnish();
    using recorder = recordCalls();
    once();
    recorder.stop();
    const names = recorder.calls.map(({ name }) => name as FunctionName);
    for (const [at, name] of names.entries()) {
      // What the driver fails to free stays.
      const next = names[at + 1] ?? '';
      if (/Pop|Free|Unregister/.test(name) || (/Push/.test(name) && /Free|Unreg/.test(next)))
        continue;
      const { driver, open, context, use } = furnish();
      using mappings = watchMappings();
      const nth = names.slice(0, at + 1).filter((other) => other === name).length;
      selectDriver(failing(driver, name, nth, 1));
      try {
        use();
      } catch (error) {
        assert.ok(error instanceof CuffiError, `${name}: ${error}`);
      }
      selectDriver(driver);
      // Work in a context that could not be entered counts as running: what it may use waits.
      await context.flush();
      assert.deepEqual([...open, ...mappings.open], [], `${name}, call ${at + 1}: left open`);
      assert.equal(context.resources.size, 0, name);
      use();
    }
  });

  test('a buffer that was never closed is returned to the manager when it is collected', async () => {
    const books = keepingBooks(emulate());
    selectDriver(books.driver);
    setMemoryManager(DriverMemoryManager);
    const part = (() => DeviceBuffer.allocate(4096).subarray(0, 10))();
    await collectGarbage();
    assert.equal(books.open.size, 1, 'a view keeps it');
    assert.equal(part.closed, false);
    (() => DeviceBuffer.allocate(4096))();
    assert.equal(books.open.size, 2);
    assert.ok(await collectUntil(() => books.open.size === 1));
    assert.equal(part.byteLength, 10);
  });

  test('a buffer is closed if the manager frees its memory', () => {
    let pointer: MemoryPointer | undefined;
    class Freeing extends DriverMemoryManager {
      override memalloc(byteLength: number): MemoryPointer {
        pointer = super.memalloc(byteLength);
        return pointer;
      }
    }
    emulate();
    setMemoryManager(Freeing);
    const buffer = DeviceBuffer.allocate(10);
    const part = buffer.subarray(5);
    pointer?.free();
    assert.deepEqual([buffer.closed, part.closed], [true, true]);
    assert.throws(() => part.address, { name: 'ClosedError' });
    buffer.close();
  });
});

describe('HostOnlyMemoryManager', () => {
  test('the options of host memory reach the driver', () => {
    const recorder = recordArguments(emulate());
    const manager = memoryManager();
    const flagsOf = (use: () => { close(): void }): unknown => {
      recorder.calls.length = 0;
      use().close();
      const [lock] = recorder.calls.filter(({ name }) => /HostAlloc|HostRegister/.test(name));
      return [lock?.name, lock?.args[2]];
    };
    const REGISTER = 'cuMemHostRegister_v2';
    for (const portable of [true, false]) {
      const register = portable ? CU_MEMHOSTREGISTER_PORTABLE : 0;
      const mapped = register | CU_MEMHOSTREGISTER_DEVICEMAP;
      assert.deepEqual(
        [
          flagsOf(() => manager.memhostalloc(1, { portable })),
          flagsOf(() => manager.memhostalloc(1, { portable, mapped: true })),
          flagsOf(() => manager.mempin(page(), { portable })),
          flagsOf(() => manager.mempin(page(), { portable, mapped: true })),
          flagsOf(() => manager.memhostalloc(1, { portable, writeCombined: true })),
        ],
        [
          [REGISTER, register],
          [REGISTER, mapped],
          [REGISTER, register],
          [REGISTER, mapped],
          [
            'cuMemHostAlloc',
            CU_MEMHOSTALLOC_WRITECOMBINED | (portable ? CU_MEMHOSTALLOC_PORTABLE : 0),
          ],
        ],
      );
    }
  });

  test('host memory works without an implementation of device memory', () => {
    emulate();
    class HostOnly extends HostOnlyMemoryManager {
      readonly interfaceVersion = 1;

      memalloc(): never {
        throw new CuffiError('no device memory here');
      }
      getIpcHandle(): never {
        throw new CuffiError('none to share');
      }
      getMemoryInfo(): MemoryInfo {
        return { free: 0, total: 0 };
      }
    }
    setMemoryManager(HostOnly);
    assert.throws(() => DeviceBuffer.allocate(1), /no device memory here/);
    const pinned = PinnedBuffer.allocate(5000);
    assert.equal(pinned.buffer.byteLength, 5000);
    const mapped = MappedMemory.create().allocate(5000);
    new Uint8Array(mapped.buffer).fill(3);
    assert.deepEqual(new Set(mapped.copyToHostSync()), new Set([3]));
    using _ = pin(page());
    for (const buffer of [pinned, mapped]) buffer.close();
    assert.throws(() => pinned.address, { name: 'ClosedError' });
  });

  test('host memory is released when closed, collected or reset', async () => {
    const books = keepingBooks(emulate());
    selectDriver(books.driver);
    setMemoryManager(DriverMemoryManager);
    using mappings = watchMappings();
    const context = Context.primary();
    const kinds = [
      { mapped: false },
      { mapped: true },
      { mapped: true, writeCombined: true },
    ] as const;
    const manager = memoryManager();
    for (const kind of kinds) {
      PinnedBuffer.allocate(5000, kind).close();
      manager.memhostalloc(5000, kind);
      manager.mempin(page(), { mapped: kind.mapped });
      (() => PinnedBuffer.allocate(5000, kind))();
    }
    manager.reset();
    assert.ok(await collectUntil(() => books.open.size === 0), [...books.open].join());
    assert.equal(mappings.open.size, 0);
    assert.throws(() => manager.mempin(new Uint8Array(0)), /^RangeError: owner is empty$/);
    assert.throws(
      () => manager.memhostalloc(0),
      /^RangeError: byteLength must be an integer of at least 1, not 0$/,
    );
    assert.throws(
      () => manager.memhostalloc(1, { mapped: 1 as never }),
      /^TypeError: mapped must be true or false, not 1$/,
    );
    const kept = manager.memhostalloc(5000);
    context.resetSync();
    assert.equal(kept.closed, true);
  });

  test('unreleased host memory is released with its pointer, and by a reset', async () => {
    const books = keepingBooks(emulate());
    selectDriver(books.driver);
    using mappings = watchMappings();
    const context = Context.primary();
    // No manager was set, so a reset of the context does not notify this one.
    const manager = memoryManager();
    const dropped = (() => {
      manager.memhostalloc(5000);
      manager.memhostalloc(5000, { mapped: true });
      const array = page();
      manager.mempin(array);
      return new WeakRef(array);
    })();
    assert.ok(await collectUntil(() => books.open.size === 0 && mappings.open.size === 0));
    await collectGarbage();
    assert.equal(dropped.deref(), undefined);
    const closed = [manager.memhostalloc(5000), manager.memhostalloc(5000, { mapped: true })];
    context.resetSync();
    assert.deepEqual(
      closed.map((pointer) => pointer.closed),
      [true, true],
    );
    closed.length = 0;
    assert.ok(await collectUntil(() => mappings.open.size === 0));
  });
});

describe('memoryManager', () => {
  test('without a manager, memory comes from the driver, and memoryManager() returns the plain one', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(100);
    assert.ok(buffer.resource instanceof DeviceMemory);
    const manager = memoryManager();
    assert.equal(memoryManager(Context.primary()), manager);
    assert.ok(manager instanceof DriverMemoryManager);
    const pointer = manager.memalloc(4096);
    const view = pointer.view(1000, 1100);
    assert.equal(manager.getIpcHandle(view).offset, 1000);
    assert.deepEqual(manager.getMemoryInfo(), Context.primary().memoryInfo());
    view.close();
    assert.equal(pointer.closed, true);
  });
});
