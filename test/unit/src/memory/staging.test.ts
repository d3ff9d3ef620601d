import assert from 'node:assert/strict';
import { randomFillSync } from 'node:crypto';
import { describe, test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import { Context, DeviceBuffer } from '../../../../src/index.ts';
import { AsyncPool, STAGING } from '../../../../src/memory/staging.ts';
import { broken, failing, keepingBooks } from '../../../support/faults.ts';
import { until } from '../../../support/iterations.ts';
import { leaves } from '../../../support/left-open.ts';
import { watchMappings } from '../../../support/process-state.ts';
import { emulate } from '../emulate.ts';

describe('AsyncPool', () => {
  test('each item has one user, and waiting users are served in order', async () => {
    const pool = new AsyncPool(['a', 'b']);
    assert.deepEqual(await Promise.all([pool.acquire(), pool.acquire()]), ['a', 'b']);
    assert.equal(pool.isEmpty, true);
    const served: string[] = [];
    const waiting = [1, 2, 3].map((n) => pool.acquire().then((item) => served.push(`${n}${item}`)));
    pool.release('b');
    pool.release('a');
    pool.release('c');
    await Promise.all(waiting);
    assert.deepEqual(served, ['1b', '2a', '3c']);
    pool.release('a');
    assert.equal(pool.isEmpty, false);
  });
});

describe('copyStaged', () => {
  const MIB = 2 ** 20;

  type AsyncCall = (...args: unknown[]) => void;

  const noise = (byteLength: number): Uint8Array => randomFillSync(new Uint8Array(byteLength));

  /**
   * Checks a copy of `byteLength` bytes to the device and back. Returns a counter of the driver
   * calls.
   */
  async function copyBoth(byteLength: number): Promise<(name: FunctionName) => number> {
    using buffer = DeviceBuffer.allocate(byteLength);
    const bytes = noise(byteLength);
    using recorder = recordCalls();
    await buffer.copyFrom(bytes);
    assert.equal(Buffer.compare(await buffer.copyToHost(), bytes), 0);
    return (name) => recorder.calls.filter((call) => call.name === name).length;
  }

  test('copies of every size around a slice, and around all slots, arrive complete', async () => {
    emulate();
    for (const byteLength of [MIB, MIB + 1, 2 * MIB - 1, 4 * MIB, 16 * MIB + 1, 21 * MIB])
      await copyBoth(byteLength);
  });

  test('small arrays take no slot, and large ones at most the slot count', async () => {
    emulate();
    const { slotCount, slices } = STAGING;
    const small = await copyBoth(MIB);
    assert.deepEqual([small('cuMemHostRegister_v2'), small('cuMemcpyHtoDAsync_v2')], [0, 1]);
    const large = await copyBoth(32 * MIB);
    const made = large('cuMemHostRegister_v2');
    assert.ok(made > 0 && made <= slotCount);
    assert.equal(large('cuMemcpyHtoDAsync_v2'), slices);
    const again = await copyBoth(32 * MIB);
    assert.ok(again('cuMemHostRegister_v2') <= slotCount - made);
  });

  test('copies use fewer slots if little memory can be page-locked, and none if nothing can', async () => {
    const driver = emulate();
    using mappings = watchMappings();
    selectDriver(broken(driver, 'cuMemHostRegister_v2', 2));
    const without = await copyBoth(9 * MIB);
    assert.equal(without('cuMemcpyHtoDAsync_v2'), 3);
    assert.equal(mappings.open.size, 0);
    selectDriver(failing(driver, 'cuMemHostRegister_v2', 2, 2));
    const [one] = await Promise.all([copyBoth(9 * MIB), copyBoth(5 * MIB)]);
    assert.equal(one('cuMemcpyHtoDAsync_v2') > 3, true);
    assert.equal(mappings.open.size, 1);
    await Context.primary().flush();
    assert.equal(mappings.open.size, 0);
  });

  test('a copy without page-locked memory can be aborted between two parts', async () => {
    const driver = emulate();
    const controller = new AbortController();
    let parts = 0;
    selectDriver({
      ...broken(driver, 'cuMemHostRegister_v2', 2),
      cuMemcpyHtoDAsync_v2: (...args) => {
        parts += 1;
        controller.abort(new Error('enough'));
        return driver.cuMemcpyHtoDAsync_v2(...args);
      },
    });
    using buffer = DeviceBuffer.allocate(9 * MIB);
    const { signal } = controller;
    await assert.rejects(buffer.copyFrom(new Uint8Array(9 * MIB), { signal }), /enough/);
    assert.equal(parts, 1);
  });

  test('an aborted copy releases its slots for the next copies', async () => {
    const driver = emulate();
    let controller = new AbortController();
    selectDriver({
      ...driver,
      cuMemcpyHtoDAsync_v2: (...args) => {
        controller.abort(new Error('enough'));
        return driver.cuMemcpyHtoDAsync_v2(...args);
      },
    });
    using buffer = DeviceBuffer.allocate(8 * MIB);
    using recorder = recordCalls();
    // Each copy would keep at least one slot.
    for (let turn = 0; turn < STAGING.slotCount; turn += 1) {
      controller = new AbortController();
      const { signal } = controller;
      await assert.rejects(buffer.copyFrom(new Uint8Array(8 * MIB), { signal }), /enough/);
    }
    await copyBoth(8 * MIB);
    const made = recorder.calls.filter(({ name }) => name === 'cuMemHostRegister_v2');
    assert.ok(made.length <= STAGING.slotCount);
  });

  test('the number of threads that copy at once is limited over all copies', async (t) => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const { async: original } = libc.memmove as unknown as { async: AsyncCall };
    let running = 0;
    let most = 0;
    t.mock.method(
      libc.memmove as unknown as { async: AsyncCall },
      'async',
      (...args: unknown[]) => {
        running += 1;
        most = Math.max(most, running);
        const done = args.pop() as (...results: unknown[]) => void;
        original(...args, (...results: unknown[]) => {
          running -= 1;
          done(...results);
        });
      },
    );
    const buffers = [0, 0, 1].map((device) => DeviceBuffer.allocate(8 * MIB, { device }));
    await Promise.all(buffers.map((buffer) => buffer.copyFrom(new Uint8Array(8 * MIB))));
    await Promise.all(buffers.map((buffer) => buffer.copyToHost()));
    assert.equal(most, STAGING.threads);
    for (const buffer of buffers) buffer.close();
  });

  test('idle slots are unlocked and unmapped, and created again on demand', async (t) => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    using mappings = watchMappings();
    const timeout = setTimeout;
    let idle: (() => void) | undefined;
    let timer: NodeJS.Timeout | undefined;
    const fake = t.mock.method(globalThis, 'setTimeout', (use: () => void, ms: number) => {
      const made = timeout(use, ms);
      if (ms >= 1000) [idle, timer] = [use, made];
      return made;
    });
    await copyBoth(2 * MIB);
    fake.mock.restore();
    // The timer must not keep the process alive.
    assert.equal(timer?.hasRef(), false);
    const made = mappings.open.size;
    assert.ok(made > 0);
    assert.equal([...open].filter((handle) => handle.startsWith('cuMemHostRegister')).length, made);
    idle?.();
    assert.equal([...open].filter((handle) => /Register|Event/.test(handle)).length, 0);
    assert.equal(mappings.open.size, 0);
    await copyBoth(2 * MIB);
    assert.ok(mappings.open.size > 0);
  });

  test('slots in use stay until the copy ends, also after a reset', async () => {
    emulate();
    const context = Context.primary();
    using buffer = DeviceBuffer.allocate(16 * MIB);
    const copying = buffer.copyFrom(new Uint8Array(16 * MIB));
    await until(() => context.cacheTrimmers.size > 0);
    await context.flush();
    assert.equal(context.cacheTrimmers.size, 1);
    context.resetSync();
    await assert.rejects(copying, { name: 'ClosedError' });
    assert.equal(context.cacheTrimmers.size, 0);
  });

  test('after a reset, a copy is staged through new page-locked memory', async () => {
    emulate();
    const locked = async (): Promise<number> => (await copyBoth(4 * MIB))('cuMemHostRegister_v2');
    assert.ok((await locked()) > 0);
    let copies = 0;
    while ((await locked()) > 0) copies += 1;
    assert.ok(copies <= STAGING.slotCount);
    Context.primary().resetSync();
    assert.ok((await locked()) > 0);
  });

  test('after a reset while the first slot is filled, no other slots are created and the context stays closed', async () => {
    const { driver, open } = keepingBooks(emulate());
    let reset: (() => void) | undefined;
    selectDriver({
      ...driver,
      cuMemHostRegister_v2: (...args) => {
        if (reset) queueMicrotask(reset);
        return driver.cuMemHostRegister_v2(...args);
      },
    });
    const context = Context.primary();
    using buffer = DeviceBuffer.allocate(16 * MIB);
    using recorder = recordCalls();
    let before: string[] = [];
    let calls = 0;
    reset = () => {
      reset = undefined;
      context.resetSync();
      before = [...open];
      calls = recorder.calls.length;
    };
    await assert.rejects(buffer.copyFrom(new Uint8Array(16 * MIB)), { name: 'ClosedError' });
    assert.deepEqual([...open], before);
    const later = recorder.calls.slice(calls).map(({ name }) => name);
    assert.ok(!later.includes('cuDevicePrimaryCtxRetain'), later.join());
  });

  test('closing a buffer during its copy to the host does not expose its contents', async () => {
    const driver = emulate();
    let close: (() => void) | undefined;
    selectDriver({
      ...driver,
      cuMemcpyDtoHAsync_v2: (...args) => {
        if (close) queueMicrotask(close);
        return driver.cuMemcpyDtoHAsync_v2(...args);
      },
    });
    const buffer = DeviceBuffer.allocate(8 * MIB);
    buffer.fill(7);
    close = () => buffer.close();
    const host = new Uint8Array(8 * MIB);
    await assert.rejects(buffer.copyToHost(host), { name: 'ClosedError' });
    assert.ok(host.every((byte) => byte === 0));
  });

  test('detaching host memory during a copy rejects the copy, and the memory is not touched', async () => {
    leaves(/#activeCopies/, 'slots of drivers that were selected before stay for a second', 2);
    const driver = emulate();
    for (const way of ['copyFrom', 'copyToHost'] as const) {
      const host = new Uint8Array(8 * MIB);
      let moved: Uint8Array | undefined;
      const move = (): void => {
        moved ??= new Uint8Array(structuredClone(host.buffer, { transfer: [host.buffer] }));
      };
      selectDriver({
        ...driver,
        cuMemcpyHtoDAsync_v2: (...args) => {
          queueMicrotask(move);
          return driver.cuMemcpyHtoDAsync_v2(...args);
        },
        cuMemcpyDtoHAsync_v2: (...args) => {
          queueMicrotask(move);
          return driver.cuMemcpyDtoHAsync_v2(...args);
        },
      });
      using buffer = DeviceBuffer.allocate(8 * MIB);
      buffer.fill(7);
      await assert.rejects(buffer[way](host), {
        name: 'TypeError',
        message: 'the host memory was detached while it was copied',
      });
      assert.ok(moved?.every((byte) => byte === 0));
    }
  });

  test('detaching host memory while its last bytes are copied also rejects the copy', async (t) => {
    emulate();
    const memmove = libc.memmove as unknown as { async: AsyncCall };
    const { async: original } = memmove;
    for (const way of ['copyFrom', 'copyToHost'] as const) {
      const host = new Uint8Array(MIB + 1);
      const slices = Math.ceil(host.length / STAGING.minByteLength);
      let copied = 0;
      const { mock } = t.mock.method(memmove, 'async', (...args: unknown[]) => {
        const done = args.pop() as (...results: unknown[]) => void;
        original(...args, (...results: unknown[]) => {
          copied += 1;
          if (copied === slices) structuredClone(host.buffer, { transfer: [host.buffer] });
          done(...results);
        });
      });
      using buffer = DeviceBuffer.allocate(MIB + 1);
      await assert.rejects(buffer[way](host), {
        name: 'TypeError',
        message: 'the host memory was detached while it was copied',
      });
      mock.restore();
      assert.equal(copied, slices);
    }
  });

  test('a copy that fails halfway rejects and touches nothing afterwards, and the next copy succeeds', async () => {
    leaves(/#activeCopies/, 'slots of drivers that were selected before stay for a second', 2);
    const driver = emulate();
    for (const call of ['cuMemcpyHtoDAsync_v2', 'cuMemcpyDtoHAsync_v2', 'cuEventQuery'] as const) {
      selectDriver(failing(driver, call, 3, 700));
      using buffer = DeviceBuffer.allocate(8 * MIB);
      const bytes = new Uint8Array(8 * MIB);
      const copying =
        call === 'cuMemcpyDtoHAsync_v2' ? buffer.copyToHost(bytes) : buffer.copyFrom(bytes);
      await assert.rejects(copying, { name: 'CudaError', call });
      await copyBoth(8 * MIB);
    }
  });
});
