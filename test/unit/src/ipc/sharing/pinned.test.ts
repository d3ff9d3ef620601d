import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import { closeFd, createPipe, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { allocatePages, createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { Context, DeviceBuffer, PinnedBuffer, Stream } from '../../../../../src/index.ts';
import { exportIpc, leases } from '../../../../../src/ipc/index.ts';
import { importFromPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { broken, keepingBooks } from '../../../../support/faults.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { processState } from '../../../../support/process-state.ts';
import { emptySharingSession } from '../../../../support/sharing.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

const bytesOf = ({ buffer }: PinnedBuffer): Uint8Array => new Uint8Array(buffer);

/** The end of a pipe whose other end is closed. */
function endOfPipe(): number {
  const [readEnd, writeEnd] = createPipe();
  closeFd(writeEnd);
  return readEnd;
}

describe('a shareable PinnedBuffer', () => {
  test('is the same memory at both ends, for hosts and devices', async () => {
    emulate();
    using pair = peerPair();
    using pinned = PinnedBuffer.allocate(10_000, { shareable: true, mapped: true });
    assert.deepEqual(
      [pinned.shareable, pinned.imported, bytesOf(pinned).every((byte) => byte === 0)],
      [true, false, true],
    );
    await pair.a.send(pinned);
    using received = (await pair.b.receive()) as PinnedBuffer;
    assert.deepEqual(
      [received.byteLength, received.shareable, received.imported, received.mapped],
      [10_000, true, true, true],
    );
    assert.notEqual(received.address, pinned.address);
    bytesOf(pinned).fill(7);
    using buffer = DeviceBuffer.allocate(10_000);
    await buffer.copyFrom(bytesOf(received));
    assert.ok(buffer.copyToHostSync().every((byte) => byte === 7));
    bytesOf(received)[9999] = 1;
    assert.equal(bytesOf(pinned)[9999], 1);
    // It is passed on without asking anybody, and outlives the buffer that was sent.
    await pair.b.send(received);
    using third = (await pair.a.receive()) as PinnedBuffer;
    pinned.close();
    received.close();
    assert.equal(bytesOf(third)[9999], 1);
    assert.match(String(third), /shareable/);
  });

  test("the receiver's streams wait for the sender's work on it", async () => {
    emulate();
    using pair = peerPair();
    using pinned = PinnedBuffer.allocate(64, { shareable: true });
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(producer);
    await pair.a.send(pinned);
    using received = (await pair.b.receive({ stream: consumer })) as PinnedBuffer;
    assert.deepEqual([received.closed, consumer.done], [false, false]);
    latch.open();
    await consumer.synchronize();
  });

  test('closing gives everything back at both ends', async () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    const context = Context.primary();
    using pair = peerPair();
    const round = async (): Promise<void> => {
      const pinned = PinnedBuffer.allocate(5000, { shareable: true });
      await pair.a.send(pinned);
      const received = (await pair.b.receive()) as PinnedBuffer;
      assert.deepEqual(
        leases.stats().leases.map(({ kind, byteLength }) => [kind, byteLength]),
        [['pinned', 5000]],
      );
      const fds = [pinned.fd, received.fd] as number[];
      pinned.close();
      received.close();
      await context.flush();
      await leases.drain({ timeoutMs: 5000 });
      assert.deepEqual(fds.map(isOpenFd), [false, false]);
    };
    await round();
    processState();
    const before = processState();
    for (let n = 0; n < 20; n += 1) await round();
    assert.deepEqual(processState(), before);
    assert.deepEqual(
      [...open].filter((what) => what.startsWith('cuMemHostRegister')),
      [],
    );
  });

  test('only memory that was allocated for it is sent, and only over a connection', async () => {
    emulate();
    using pair = peerPair();
    using plain = PinnedBuffer.allocate(64);
    using shareable = PinnedBuffer.allocate(64, { shareable: true });
    await assert.rejects(pair.a.send(plain), {
      name: 'IpcError',
      code: 'not-supported',
      message: /shareable: true/,
    });
    assert.throws(() => exportIpc(shareable), { name: 'IpcError', code: 'not-supported' });
    shareable.close();
    await assert.rejects(pair.a.send(shareable), { name: 'ClosedError' });
    for (const options of [{ writeCombined: true }, { portable: false }])
      assert.throws(() => PinnedBuffer.allocate(64, { ...options, shareable: true }), {
        name: 'TypeError',
      });
  });

  test('memory that cannot be allocated or locked leaves nothing behind', () => {
    const emulated = emulate();
    processState();
    const before = processState();
    assert.throws(() => PinnedBuffer.allocate(2 ** 50, { shareable: true }), {
      name: 'RangeError',
      message: /cannot allocate/,
    });
    selectDriver(broken(emulated, 'cuMemHostRegister_v2', CUresult.CUDA_ERROR_NOT_SUPPORTED));
    assert.throws(() => PinnedBuffer.allocate(64, { shareable: true }), { name: 'CudaError' });
    selectDriver(emulated);
    assert.deepEqual(processState(), before);
  });

  test('from a hostile process: other memory is refused, and its descriptors are closed', async () => {
    emulate();
    const size = 4096;
    const allocated = (byteLength: number): number => {
      const fd = createSealedMemfd('pinned', byteLength);
      allocatePages(fd, byteLength);
      return fd;
    };
    for (const make of [
      () => [],
      () => [allocated(size), allocated(size)],
      () => [allocated(2 * size)],
      // Its pages would be allocated here.
      () => [createSealedMemfd('pinned', size)],
      () => [endOfPipe()],
    ]) {
      const fds = make();
      assert.throws(
        () => importFromPeer({ kind: 'pinned', byteLength: size }, fds, emptySharingSession()),
        { name: 'IpcError' },
      );
      await until(() => fds.every((fd) => !isOpenFd(fd)));
    }
    const opened = importFromPeer(
      { kind: 'pinned', byteLength: size },
      [allocated(size)],
      emptySharingSession(),
    ) as PinnedBuffer;
    opened.close();
  });
});
