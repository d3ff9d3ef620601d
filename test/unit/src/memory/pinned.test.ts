import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import { OUT0 } from '../../../../ffi/arena.ts';
import {
  CU_MEMHOSTALLOC_DEVICEMAP,
  CU_MEMHOSTALLOC_PORTABLE,
  CU_MEMHOSTALLOC_WRITECOMBINED,
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../../ffi/constants.ts';
import { cu, recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import type { Address } from '../../../../ffi/types.ts';
import { Context, PinnedBuffer, pin, Stream } from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { broken, failing, keepingBooks } from '../../../support/faults.ts';
import { iterations } from '../../../support/iterations.ts';
import { Latch } from '../../../support/latch.ts';
import { leaves } from '../../../support/left-open.ts';
import {
  collectGarbage,
  collectUntil,
  isMapped,
  replaceLibc,
  watchMappings,
} from '../../../support/process-state.ts';
import { emulate } from '../emulate.ts';

const OUT_OF_MEMORY = 2;
const UNKNOWN = 999;

const isLocked = (address: Address): boolean =>
  Context.primary().run(() => cu.cuMemHostGetFlags(OUT0, address)) === 0;

/** Transfers the memory of an ArrayBuffer to another one, through the BYOB reader of a stream. */
async function moveAway(buffer: ArrayBuffer): Promise<ArrayBuffer> {
  const source = new ReadableStream({
    type: 'bytes',
    pull: ({ byobRequest }) => byobRequest?.respond(1),
  });
  const { value } = await source.getReader({ mode: 'byob' }).read(new Uint8Array(buffer));
  return (value as Uint8Array<ArrayBuffer>).buffer;
}

describe('PinnedBuffer', () => {
  test('arguments are checked before any driver call', () => {
    emulate();
    const recorder = recordCalls();
    for (const size of [0, -1, 1.5, Number.NaN, 2 ** 53])
      assert.throws(() => PinnedBuffer.allocate(size), {
        name: 'RangeError',
        message: `byteLength must be an integer of at least 1, not ${size}`,
      });
    assert.throws(
      () => PinnedBuffer.allocate('1' as never),
      /byteLength must be a number, not "1"/,
    );
    assert.throws(() => PinnedBuffer.allocate(1, { mapped: 1 as never }), {
      name: 'TypeError',
      message: 'mapped must be true or false, not 1',
    });
    assert.throws(() => PinnedBuffer.allocate(1, { wc: true } as never), {
      name: 'TypeError',
      message: /unknown option 'wc'; known: context, device, portable, mapped, writeCombined/,
    });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('each option reaches the driver, in the given context', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const second = Context.primary(1);
    for (const bits of Array.from({ length: 8 }).keys()) {
      const portable = (bits & 1) !== 0;
      const mapped = (bits & 2) !== 0;
      const writeCombined = (bits & 4) !== 0;
      recorder.calls.length = 0;
      const options = { context: second, portable, mapped, writeCombined };
      using pinned = PinnedBuffer.allocate(5000, options);
      assert.deepEqual(
        [pinned.portable, pinned.mapped, pinned.writeCombined],
        [portable, mapped, writeCombined],
      );
      const [registered] = recorder.of('cuMemHostRegister_v2');
      const [allocated] = recorder.of('cuMemHostAlloc');
      if (writeCombined) {
        assert.equal(registered, undefined);
        assert.deepEqual(allocated?.args.slice(1), [
          5000,
          CU_MEMHOSTALLOC_WRITECOMBINED |
            (portable ? CU_MEMHOSTALLOC_PORTABLE : 0) |
            (mapped ? CU_MEMHOSTALLOC_DEVICEMAP : 0),
        ]);
      } else {
        assert.equal(allocated, undefined);
        assert.deepEqual(
          [registered?.args[0], registered?.args[2]],
          [
            pinned.address,
            (portable ? CU_MEMHOSTREGISTER_PORTABLE : 0) |
              (mapped ? CU_MEMHOSTREGISTER_DEVICEMAP : 0),
          ],
        );
        assert.ok((registered?.args[1] as number) >= 5000);
      }
      assert.equal((allocated ?? registered)?.context, second.handle);
      assert.deepEqual(
        recorder.of('cuMemHostGetDevicePointer_v2').map(({ args, context }) => [args[1], context]),
        mapped ? [[pinned.address, second.handle]] : [],
      );
      assert.equal(pinned.devicePointer !== undefined, mapped);
    }
    recorder.calls.length = 0;
    PinnedBuffer.allocate(1, { device: 1 }).close();
    PinnedBuffer.allocate(1).close();
    assert.deepEqual(
      recorder.of('cuMemHostRegister_v2').map(({ args, context }) => [args[2], context]),
      [second, Context.primary(0)].map(({ handle }) => [CU_MEMHOSTREGISTER_PORTABLE, handle]),
    );
  });

  test('allocate() throws if the device does not support the options', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '99=0' });
    assert.throws(() => PinnedBuffer.allocate(1), {
      name: 'NotSupportedError',
      message: /cannot page-lock memory of the process/,
    });
    PinnedBuffer.allocate(1, { writeCombined: true }).close();
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '19=0' });
    assert.throws(() => PinnedBuffer.allocate(1, { mapped: true }), {
      name: 'NotSupportedError',
      message: /cannot access host memory/,
    });
    PinnedBuffer.allocate(1).close();
  });

  test('allocate() refuses more than the system has, before any driver call', () => {
    emulate();
    assert.throws(() => PinnedBuffer.allocate(2 ** 52), {
      name: 'RangeError',
      message:
        'the system cannot allocate 4503599627370496 bytes (4096 TiB) of host memory: close buffers that are no ' +
        'longer needed, or ask for less',
    });
  });

  test('a failed lock states the size, and nothing stays mapped', () => {
    const driver = emulate();
    const context = Context.primary();
    using mappings = watchMappings();
    for (const [name, options] of [
      ['cuMemHostRegister_v2', {}],
      ['cuMemHostGetDevicePointer_v2', { mapped: true }],
      ['cuMemHostAlloc', { writeCombined: true }],
    ] as const) {
      const books = keepingBooks(failing(driver, name, 1, UNKNOWN));
      selectDriver(books.driver);
      const error = { name: 'CudaError', call: name, status: UNKNOWN };
      assert.throws(() => PinnedBuffer.allocate(5000, { context, ...options }), error);
      assert.deepEqual([...books.open], []);
      assert.deepEqual([...mappings.open], []);
      assert.equal(context.resources.size, 0);
      PinnedBuffer.allocate(5000, { context, ...options }).close();
    }
  });

  test('allocate() retries after draining pending releases if memory runs out', () => {
    const driver = emulate();
    const context = Context.primary();
    const latch = new Latch();
    using stream = Stream.create({ nonBlocking: true });
    latch.hold(stream);
    PinnedBuffer.allocate(4096).close();
    assert.equal(context.releases.size, 1);
    latch.open();
    selectDriver(failing(driver, 'cuMemHostRegister_v2', 1, OUT_OF_MEMORY));
    PinnedBuffer.allocate(4096, { context }).close();
    assert.equal(context.releases.size, 0);
    selectDriver(broken(driver, 'cuMemHostRegister_v2', OUT_OF_MEMORY));
    assert.throws(() => PinnedBuffer.allocate(4096, { context }), {
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      doing: 'page-locking 4096 bytes (4 KiB) of host memory',
    });
    selectDriver(driver);
    latch[Symbol.dispose]();
  });

  test('memory that the driver fails to unlock causes a warning, reads zeros, and keeps its addresses', async () => {
    leaves('entry of src/memory/page-lock.ts failedUnlocks', 'it stays locked');
    const driver = emulate();
    const allocate = (): Address => {
      const pinned = PinnedBuffer.allocate(1 << 20);
      const view = new Uint8Array(pinned.buffer).fill(7);
      const { address } = pinned;
      selectDriver(broken(driver, 'cuMemHostUnregister', UNKNOWN));
      assert.throws(() => pinned.close(), { name: 'CudaError', call: 'cuMemHostUnregister' });
      selectDriver(driver);
      assert.equal(pinned.closed, true);
      assert.equal(view[5], 0);
      return address;
    };
    const address = allocate();
    await collectGarbage();
    assert.ok(isMapped(address));
  });

  test('a reset closes the buffer; its view reads zeros, and the addresses are freed with the view', async () => {
    emulate();
    const context = Context.primary();
    const allocate = (): { readonly address: Address; view: Uint8Array | undefined } => {
      const pinned = PinnedBuffer.allocate(16 << 20);
      const left = { address: pinned.address, view: new Uint8Array(pinned.buffer).fill(7) };
      context.resetSync();
      assert.throws(() => pinned.buffer, {
        name: 'ClosedError',
        message: /^this PinnedBuffer is closed: its context was reset$/m,
      });
      pinned.close();
      return left;
    };
    const left = allocate();
    assert.equal(left.view?.[9], 0);
    // Its pages can be locked again.
    pin(left.view as Uint8Array).close();
    left.view = undefined;
    assert.ok(await collectUntil(() => !isMapped(left.address)));
  });

  test('a release that a reset drops leaves the addresses to garbage collection', async () => {
    emulate();
    const context = Context.primary();
    const close = (): Address => {
      const latch = new Latch();
      const stream = Stream.create({ nonBlocking: true });
      latch.hold(stream);
      const pinned = PinnedBuffer.allocate(16 << 20);
      const { address } = pinned;
      pinned.close();
      assert.ok(isMapped(address));
      latch.open();
      context.resetSync();
      latch.word[Symbol.dispose]();
      return address;
    };
    const address = close();
    assert.ok(await collectUntil(() => !isMapped(address)));
  });

  test('the addresses are freed once, and never if a view was transferred', async () => {
    emulate();
    const { munmap } = libc;
    const unmapped: number[] = [];
    replaceLibc('munmap', (address, byteLength) => {
      unmapped.push(Number(address));
      return munmap(address, byteLength);
    });
    const times = (address: Address): number => unmapped.filter((each) => each === address).length;
    const closeAll = async (): Promise<{ addresses: Address[]; moved: ArrayBuffer }> => {
      using unseen = PinnedBuffer.allocate(4096);
      using seen = PinnedBuffer.allocate(4096);
      using taken = PinnedBuffer.allocate(4096);
      new Uint8Array(seen.buffer).fill(1);
      const { buffer } = taken;
      const moved = await moveAway(buffer);
      assert.equal(buffer.byteLength, 0);
      return { addresses: [unseen, seen, taken].map(({ address }) => address), moved };
    };
    try {
      const { addresses, moved } = await closeAll();
      assert.deepEqual(addresses.map(times), [1, 0, 0]);
      const [, seen, taken] = addresses as [Address, Address, Address];
      assert.ok(await collectUntil(() => times(seen) > 0));
      await collectGarbage();
      assert.deepEqual(addresses.map(times), [1, 1, 0]);
      assert.ok(isMapped(taken));
      assert.equal(moved.byteLength, 4096);
    } finally {
      replaceLibc('munmap', munmap);
    }
  });

  test('an open buffer that was dropped is unlocked and freed, with a warning', async () => {
    emulate();
    const drop = (): Address => {
      const pinned = PinnedBuffer.allocate(16 << 20);
      new Uint8Array(pinned.buffer).fill(1);
      return pinned.address;
    };
    const warned = once(process, 'warning');
    const address = drop();
    assert.ok(await collectUntil(() => !isLocked(address)));
    assert.ok(await collectUntil(() => !isMapped(address)));
    const [warning] = await warned;
    assert.equal(warning.message, 'a PinnedBuffer was garbage collected without close()');
  });

  test('closing the context closes the buffer, and then frees the memory', async () => {
    emulate();
    const context = Context.primary();
    const pinned = PinnedBuffer.allocate(16 << 20);
    const { address } = pinned;
    context.resources.closeAll('its context was closed');
    assert.equal(pinned.closed, true);
    assert.equal(isMapped(address), false);
  });

  test('thousands of buffers leave no memory, no registration and no object behind', async () => {
    const driver = emulate();
    const context = Context.primary();
    const { driver: booked, open } = keepingBooks(driver);
    selectDriver(booked);
    using mappings = watchMappings();
    for (let n = 0; n < iterations(2000, 10_000); n += 1) {
      using pinned = PinnedBuffer.allocate(5000, { context });
      if (n % 10 === 0) new Uint8Array(pinned.buffer)[0] = 1;
    }
    assert.deepEqual([...open], []);
    assert.equal(context.resources.size, 0);
    assert.ok(await collectUntil(() => mappings.open.size === 0));
  });

  test('toString() describes the buffer', () => {
    emulate();
    const pinned = PinnedBuffer.allocate(64, { mapped: true, writeCombined: true });
    assert.equal(`${pinned}`, 'PinnedBuffer(64 bytes, mapped, write-combined)');
    pinned.close();
    assert.equal(inspect(pinned), 'PinnedBuffer(64 bytes, mapped, write-combined, closed)');
  });
});
