/** What shared words allocate, whose memory they accept, and when it is released. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { describe, test } from 'node:test';
import {
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import { createMemfd, libc, type Mapping, mapShared } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { withAddress } from '../../../../../ffi/native.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { Context, Stream } from '../../../../../src/index.ts';
import { SharedWords } from '../../../../../src/ipc/timeline/words.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { recordCallsOf } from '../../../../support/arguments.ts';
import { broken, keepingBooks } from '../../../../support/faults.ts';
import { Latch } from '../../../../support/latch.ts';
import { openDescriptors, replaceLibc } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { pageFd, resetLost } from './support.ts';

describe('SharedWords', () => {
  test('a page that cannot be mapped leaves no descriptor, whether created or received', () => {
    emulate();
    const before = openDescriptors();
    const { mmap } = libc;
    const received = pageFd();
    replaceLibc('mmap', () => -1n);
    try {
      assert.throws(() => SharedWords.create('points'), { name: 'SystemError' });
      assert.throws(() => SharedWords.accept(received, 'page'), {
        name: 'IpcError',
        message: /cannot be mapped/,
      });
    } finally {
      replaceLibc('mmap', mmap);
    }
    assert.equal(openDescriptors(), before);
  });

  test('a page is registered once for the devices of all contexts, and again after a reset', () => {
    const emulated = emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const calls = recordCallsOf(emulated, 'cuMemHostRegister_v2', 'cuMemHostUnregister');
    const [context, other] = [Context.primary(0), Context.primary(1)];
    const page = SharedWords.create('points');
    for (const each of [context, other, context, other]) page.addressIn(each, 3);
    const [[, host] = []] = calls as readonly (readonly unknown[])[];
    const registering = [
      'cuMemHostRegister_v2',
      host,
      4096,
      CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE,
    ];
    assert.deepEqual(calls, [registering]);
    context.resetSync();
    for (const each of [context, other]) page.addressIn(each, 3);
    assert.deepEqual(calls, [registering, registering]);
    // The context of the other device has nothing of it.
    other.resetSync();
    for (const each of [other, context]) page.addressIn(each, 3);
    assert.deepEqual(calls, [registering, registering]);
    page.close();
    assert.deepEqual(calls, [registering, registering, ['cuMemHostUnregister', host]]);
  });

  test('a page that waits to be closed is unmapped by a reset, which has unregistered it', () => {
    const emulated = emulate();
    const context = Context.primary();
    const page = SharedWords.create('points');
    page.addressIn(context, 0);
    const before = context.onReset.size;
    let unmapped = 0;
    using recorder = recordCalls();
    {
      using _ = context.deferCleanup();
      page.close(() => {
        unmapped += 1;
      });
      assert.equal(unmapped, 0);
      resetLost(context, emulated);
    }
    assert.deepEqual([unmapped, page.isUnmapped], [1, true]);
    context.releases.drainReady();
    assert.deepEqual([unmapped, context.onReset.size], [1, before]);
    assert.deepEqual(
      recorder.calls.filter(({ name }) => name === 'cuMemHostUnregister'),
      [],
    );
  });

  const F_ADD_SEALS = 1033;

  /** A memfd that can be sealed but is not. */
  function createSealable(byteLength: number): number {
    const fd = withAddress(Buffer.from('points\0'), (address) => libc.memfd_create(address, 3));
    assert.equal(libc.ftruncate(fd, byteLength), 0);
    return fd;
  }

  /** A page with one additional seal. */
  function sealed(seal: number): number {
    const fd = createSealedMemfd('points', 4096);
    assert.equal(libc.fcntl(fd, F_ADD_SEALS, seal), 0);
    return fd;
  }

  test('a page is accepted only if nobody can take its memory away', () => {
    const shrinkOnly = createSealable(4096);
    assert.equal(libc.fcntl(shrinkOnly, F_ADD_SEALS, 2), 0);
    for (const fd of [
      createMemfd('points', 4096),
      createSealedMemfd('points', 8192),
      shrinkOnly,
      // No further seals; no writing; no new writable mappings.
      sealed(1),
      sealed(8),
      sealed(16),
      openSync('/dev/null', 'r+'),
      ...socketPair(),
    ])
      assert.throws(() => SharedWords.accept(fd, 'page', { isForDevices: true }), {
        name: 'IpcError',
      });
  });

  test('a page that the driver fails to unregister is closed nevertheless, and its connection ends', async () => {
    const lost = CUresult.CUDA_ERROR_LAUNCH_FAILED;
    selectDriver(broken(emulate(), 'cuMemHostUnregister', lost));
    const page = SharedWords.create('points');
    page.addressIn(Context.primary(), 0);
    const warned = once(process, 'warning');
    let isUnmapped = false;
    page.close(() => {
      isUnmapped = true;
    });
    assert.equal(isUnmapped, true);
    const [{ message }] = await warned;
    assert.match(message, /cuMemHostUnregister/);
  });

  test('a page is unregistered behind the work of each context that waits on it', async () => {
    const { driver, open } = keepingBooks(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    selectDriver(driver);
    const [context, other] = [Context.primary(0), Context.primary(1)];
    using stream = Stream.create({ device: 1, nonBlocking: true });
    using latch = new Latch(other);
    const isRegistered = (): boolean =>
      [...open].some((what) => what.startsWith('cuMemHostRegister') && !before.has(what));
    const before = new Set(open);
    const page = SharedWords.create('points');
    for (const each of [context, other]) page.addressIn(each, 0);
    latch.hold(stream);
    let isUnmapped = false;
    page.close(() => {
      isUnmapped = true;
    });
    await nextLoopIteration();
    context.releases.drainReady();
    assert.deepEqual([isUnmapped, isRegistered()], [false, true]);
    latch.open();
    await stream.synchronize();
    await context.flush();
    assert.deepEqual([isUnmapped, isRegistered()], [true, false]);
  });

  test('a counter is never set back by the host, only forward', () => {
    const page = SharedWords.create('points');
    const mappings: Mapping[] = [];
    mappings.push(mapShared(page.fd, 4096));
    const [mapping] = mappings as [Mapping];
    const theirs = new BigUint64Array(mapping.view());
    for (const [stands, count, then] of [
      [7n, 5, 7n],
      [7n, 7, 7n],
      [7n, 8, 8n],
      [0n, 1, 1n],
      // The high half belongs to the writer.
      [2n ** 32n + 7n, 5, 2n ** 32n + 7n],
    ] as const) {
      theirs[3] = stands;
      page.advanceTo({ index: 3, count });
      assert.equal(theirs[3], then, `${stands} to ${count}`);
    }
    mapping.unmap();
    page.close();
  });
});
