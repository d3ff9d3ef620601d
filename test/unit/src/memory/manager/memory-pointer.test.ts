import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import {
  AutoFreePointer,
  Context,
  IpcHandle,
  MappedPointer,
  MemoryPointer,
  PinnedBuffer,
  PinnedPointer,
  type PointerInit,
  Stream,
} from '../../../../../src/index.ts';
import { className } from '../../../../../src/validate.ts';
import { failing } from '../../../../support/faults.ts';
import { collectUntil } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';

/** The constructor argument of a pointer to made-up memory, and a count of its frees. */
function memory(byteLength = 100): { readonly init: PointerInit; freed: number } {
  const made = {
    freed: 0,
    init: {
      context: Context.primary(),
      pointer: 4096,
      byteLength,
      finalizer: () => {
        made.freed += 1;
      },
    },
  };
  return made;
}

describe('MemoryPointer', () => {
  test('a memory pointer is a reference itself, and frees the memory when closed', () => {
    emulate();
    const made = memory();
    const pointer = new MemoryPointer(made.init);
    assert.deepEqual([pointer.refct, pointer.owner], [1, pointer]);
    pointer.close();
    pointer.close();
    assert.equal(made.freed, 1);
    assert.equal(pointer.refct, 0);
    assert.throws(() => pointer.pointer, {
      name: 'ClosedError',
      message: /^this MemoryPointer is closed: /,
    });
  });

  test('the memory stays allocated while a view of it is open', () => {
    emulate();
    const made = memory();
    const pointer = new MemoryPointer(made.init);
    const view = pointer.view(10, 30);
    const rest = view.view(5);
    const same = pointer.own();
    assert.deepEqual([view.pointer, view.byteLength, view.owner], [4106, 20, pointer]);
    assert.deepEqual([rest.pointer, rest.byteLength, rest.owner], [4111, 15, pointer]);
    assert.deepEqual([same.pointer, same.byteLength, pointer.refct], [4096, 100, 4]);
    for (const open of [pointer, view, same]) open.close();
    assert.deepEqual([made.freed, rest.refct, rest.pointer], [0, 1, 4111]);
    rest.close();
    assert.equal(made.freed, 1);
  });

  test('free() closes every view, and throws on a second call', () => {
    emulate();
    const made = memory();
    const pointer = new MemoryPointer(made.init);
    const view = pointer.own();
    view.free();
    assert.deepEqual([made.freed, pointer.closed, view.closed], [1, true, true]);
    const error = { name: 'ClosedError', message: /its memory was freed already/ };
    assert.throws(() => pointer.free(), error);
    assert.throws(() => view.view(0), error);
    pointer.close();
    assert.equal(made.freed, 1);
  });

  test('a finalizer that throws does so once, and memory without a finalizer is not freed', () => {
    emulate();
    const pointer = new MemoryPointer({
      ...memory().init,
      finalizer: () => {
        throw new Error('the library says no');
      },
    });
    assert.throws(() => pointer.close(), /the library says no/);
    pointer.close();
    new MemoryPointer({ context: Context.primary(), pointer: 1, byteLength: 1 }).close();
  });

  test('the finalizer gets the stream of the last close()', () => {
    emulate();
    using stream = Stream.create();
    const seen: unknown[] = [];
    const { init } = memory();
    const pointer = new AutoFreePointer({ ...init, finalizer: (options) => seen.push(options) });
    pointer.own().close({ stream });
    new MemoryPointer({ ...init, finalizer: (options) => seen.push(options) }).close();
    assert.deepEqual(seen, [{ stream }, {}]);
  });

  test('a reset of the context closes pointers without calling their finalizers', () => {
    emulate();
    const made = memory();
    const [pointer, auto] = [new MemoryPointer(made.init), new AutoFreePointer(made.init)];
    const view = auto.own();
    Context.primary().resetSync();
    for (const closed of [pointer, auto, view]) {
      assert.equal(closed.closed, true);
      closed.close();
    }
    assert.throws(() => pointer.free(), { message: /its context was reset/ });
    assert.equal(made.freed, 0);
  });

  test('a pointer that was never closed is freed when it is collected, with a warning', async () => {
    emulate();
    const made = memory();
    const warned = once(process, 'warning');
    (() => new AutoFreePointer(made.init))();
    assert.ok(await collectUntil(() => made.freed === 1));
    assert.equal((await warned)[0].code, 'CUFFI_LEAK');
  });

  test('an invalid init is refused, and leaves nothing to free', () => {
    emulate();
    const { init } = memory();
    for (const Pointer of [MemoryPointer, AutoFreePointer, PinnedPointer]) {
      for (const [change, name] of [
        [{ context: {} as Context }, 'TypeError'],
        [{ pointer: 0 }, 'RangeError'],
        [{ pointer: '1' as never }, 'TypeError'],
        [{ byteLength: -1 }, 'RangeError'],
        [{ finalizer: 1 as never }, 'TypeError'],
      ] as const)
        assert.throws(() => new Pointer({ ...init, ...change }), { name });
    }
    for (const Pointer of [MemoryPointer, AutoFreePointer, PinnedPointer, MappedPointer] as const) {
      const make = Pointer as unknown as new (...args: unknown[]) => unknown;
      const context = 'context must be a Context, not undefined';
      assert.throws(() => new make(), { name: 'TypeError', message: context });
      assert.throws(() => new make({}), { name: 'TypeError', message: context });
      assert.throws(() => new make(null), {
        message: `${className(Pointer)}: options must be a plain object, not null`,
      });
      assert.throws(() => new make({ ...init, size: 1 }), /unknown option 'size'/);
    }
    using pointer = new MemoryPointer(init);
    for (const [start, stop] of [
      [-1, 5],
      [101, 101],
      [5, 4],
      [0, 101],
    ] as const)
      assert.throws(
        () => pointer.view(start, stop),
        /^RangeError: (start|stop) must be an integer from \d+ to 100, not /,
      );
    assert.equal(pointer.refct, 1);
    assert.equal(pointer.view(100).byteLength, 0);
  });
});

describe('AutoFreePointer', () => {
  test('the memory lives as long as the results of own() and view()', () => {
    emulate();
    const made = memory();
    const pointer = new AutoFreePointer(made.init);
    assert.equal(pointer.refct, 0);
    const [first, second] = [pointer.own(), pointer.view(1)];
    first.close();
    assert.equal(made.freed, 0);
    second.close();
    assert.deepEqual([made.freed, pointer.closed], [1, true]);
    const unused = memory();
    new AutoFreePointer(unused.init).close();
    assert.equal(unused.freed, 1);
    const used = memory();
    const base = new AutoFreePointer(used.init);
    const view = base.own();
    base.close();
    assert.deepEqual([used.freed, view.closed], [0, false]);
    view.close();
    assert.equal(used.freed, 1);
  });
});

describe('MappedPointer', () => {
  test('a mapped pointer has both addresses, and frees the memory if the driver does not know it', () => {
    const driver = emulate();
    using pinned = PinnedBuffer.allocate(4096, { mapped: true });
    const made = memory(4096);
    const init = { ...made.init, pointer: pinned.address };
    const mapped = new MappedPointer(init);
    assert.deepEqual([mapped.hostPointer, mapped.pointer], [pinned.address, pinned.devicePointer]);
    assert.equal(mapped.refct, 0);
    mapped.own().close();
    assert.equal(made.freed, 1);
    const { context } = init;
    selectDriver(failing(driver, 'cuMemHostGetDevicePointer_v2', 1, 1));
    assert.throws(() => new MappedPointer({ ...init, context }), { name: 'CudaError' });
    assert.equal(made.freed, 2);
    assert.throws(
      () => new MappedPointer({ ...init, byteLength: -1 }),
      /^RangeError: byteLength must be an integer from 0 to \d+, not -1$/,
    );
    assert.equal(made.freed, 3);
  });
});

describe('IpcHandle', () => {
  test('an IPC handle has 64 bytes, and takes its defaults from its memory', () => {
    emulate();
    using base = new MemoryPointer(memory().init);
    const handle = new Uint8Array(64);
    const { byteLength, sourceInfo, offset } = new IpcHandle({ base, handle });
    assert.deepEqual([byteLength, sourceInfo, offset], [100, base.context.device.uuid, 0]);
    for (const [wrong, name] of [
      [{ base: {} as MemoryPointer }, 'TypeError'],
      [{ handle: 'handle' as never }, 'TypeError'],
      [{ handle: new Uint8Array(63) }, 'RangeError'],
      [{ byteLength: 0 }, 'RangeError'],
      [{ offset: -1 }, 'RangeError'],
      [{ sourceInfo: 1 as never }, 'TypeError'],
    ] as const)
      assert.throws(() => new IpcHandle({ base, handle, ...wrong }), { name });
    assert.throws(() => new IpcHandle(undefined as never), {
      name: 'TypeError',
      message: 'base must be a MemoryPointer, not undefined',
    });
  });
});
