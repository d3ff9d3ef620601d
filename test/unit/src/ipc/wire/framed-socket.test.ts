/** A socket on the event loop, without a connection around it, and its queue of unsent messages. */

import assert from 'node:assert/strict';
import { fstatSync } from 'node:fs';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { closeFd, createMemfd, isOpenFd, libc } from '../../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../../ffi/linux/message.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { FrameKind, HEADER_BYTE_LENGTH } from '../../../../../src/ipc/protocol.ts';
import {
  FramedSocket,
  type MessageType,
  SendQueue,
} from '../../../../../src/ipc/wire/framed-socket.ts';
import { FrameAssembler, helloFrame, writeHeader } from '../../../../../src/ipc/wire/frames.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  MAX_UNSENT_BYTE_LENGTH,
  MAX_UNSENT_VALUES,
} from '../../../../../src/ipc/wire/limits.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import {
  descriptorsReturnTo,
  openDescriptors,
  replaceLibc,
} from '../../../../support/process-state.ts';
import { withRoomFor } from '../../../ffi/fixtures/descriptors.ts';

/** Sends a value of zeros, in as many frames as it needs. */
function sendValue(socket: number, sequence: number, byteLength: number): void {
  for (let offset = 0; offset < byteLength; offset += FRAGMENT_BYTE_LENGTH) {
    const part = Math.min(FRAGMENT_BYTE_LENGTH, byteLength - offset);
    const packet = Buffer.alloc(HEADER_BYTE_LENGTH + part);
    writeHeader(packet, 0, { kind: FrameKind.value, sequence, byteLength, offset, request: 0 });
    assert.ok(sendMessage(socket, packet));
  }
}

describe('FramedSocket', () => {
  test('messages that a closed peer left are read to the end, whether or not a caller waited', async (t) => {
    const [socket, other] = socketPair();
    let wantsMore = true;
    const found: (number | string)[] = [];
    const wire = new FramedSocket(socket, {
      wantsMore: () => wantsMore,
      onMessage({ bytes }) {
        found.push(bytes.byteLength);
        // As while a long value is checked.
        if (found.length === 1) wantsMore = false;
        return true;
      },
      onSocketEnd() {
        found.push('end');
        wire.close(new Error('ended'));
      },
      onFailure(error) {
        found.push(String(error));
      },
      onDrained() {},
    });
    t.after(() => wire.close(new Error('over')));
    sendMessage(other, helloFrame());
    sendValue(other, 0, 10);
    sendValue(other, 1, 20);
    sendValue(other, 2, 2 * FRAGMENT_BYTE_LENGTH);
    closeFd(other);
    for (let turn = 0; turn < 5; turn++) await nextLoopIteration();
    assert.deepEqual(found, [10], 'the rest waits');
    wire
      .post({ kind: FrameKind.value, request: 0 }, Buffer.alloc(HEADER_BYTE_LENGTH + 1), [])
      ?.catch(() => {});
    assert.equal(wire.isEnding, true);
    await nextLoopIteration();
    wantsMore = true;
    wire.resume();
    for (let turn = 0; turn < 50 && wire.isOpen; turn++) await nextLoopIteration();
    assert.deepEqual(found, [10, 20, 2 * FRAGMENT_BYTE_LENGTH, 'end']);
  });

  test("messages that another holder of a dead peer's socket sends are read only up to a limit", async (t) => {
    const [socket, other] = socketPair();
    let [sequence, taken, ends] = [0, 0, 0];
    const packet = Buffer.alloc(HEADER_BYTE_LENGTH + 1);
    const sendOne = (): boolean => {
      writeHeader(packet, 0, {
        kind: FrameKind.value,
        sequence,
        byteLength: 1,
        offset: 0,
        request: 0,
      });
      if (!sendMessage(other, packet)) return false;
      sequence += 1;
      return true;
    };
    const wire = new FramedSocket(socket, {
      wantsMore: () => true,
      onMessage() {
        taken += 1;
        // There is always more, but not for ever.
        if (taken < 5000) sendOne();
        return false;
      },
      onSocketEnd() {
        ends += 1;
        wire.close(new Error('ended'));
      },
      onFailure: (error) => assert.fail(String(error)),
      onDrained() {},
    });
    t.after(() => {
      wire.close(new Error('over'));
      closeFd(other);
    });
    sendMessage(other, helloFrame());
    while (sendOne());
    wire.markPeerGone();
    while (wire.isOpen) await nextLoopIteration();
    assert.deepEqual([taken, ends], [4095, 1], 'the first frame counts');
  });

  test('what is mostly not there yet is looked for now and then, and each time once it is there', (t) => {
    const [socket, other] = socketPair();
    const found: number[] = [];
    const wire = new FramedSocket(socket, {
      wantsMore: () => true,
      onMessage({ bytes }) {
        found.push(bytes.byteLength);
        return true;
      },
      onSocketEnd() {},
      onFailure(error) {
        assert.fail(String(error));
      },
      onDrained() {},
    });
    t.after(() => {
      wire.close(new Error('over'));
      closeFd(other);
    });
    const { recvmsg } = libc;
    let reads = 0;
    t.after(() => replaceLibc('recvmsg', recvmsg as never));
    replaceLibc('recvmsg', (...args) => {
      reads += 1;
      return (recvmsg as (...args: number[]) => unknown)(...args);
    });
    const readsOf = (calls: number): number => {
      reads = 0;
      for (let n = 0; n < calls; n += 1) wire.readNow();
      return reads;
    };
    sendMessage(other, helloFrame());
    assert.ok(readsOf(8) >= 8);
    assert.ok(readsOf(160) <= 11, `${reads} reads`);
    sendValue(other, 0, 10);
    readsOf(16);
    assert.deepEqual(found, [10]);
    // From now on each call looks.
    sendValue(other, 1, 20);
    readsOf(1);
    assert.deepEqual(found, [10, 20]);
    assert.equal(readsOf(7), 7);
  });

  test('an open socket keeps the process alive, even while nothing is read or written', (t) => {
    const timers = (): number =>
      process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
    const [socket, other] = socketPair();
    let wantsMore = true;
    const wire = new FramedSocket(socket, {
      wantsMore: () => wantsMore,
      onMessage: () => false,
      onSocketEnd() {},
      onFailure: (error) => assert.fail(String(error)),
      onDrained() {},
    });
    t.after(() => {
      wire.close(new Error('over'));
      closeFd(other);
    });
    const before = timers();
    const after = (act: () => void): number => {
      act();
      return timers() - before;
    };
    const want = (isWanted: boolean) => () => {
      wantsMore = isWanted;
      wire.resume();
    };
    // A watch for nothing does not keep it alive.
    assert.equal(after(want(false)), 1);
    assert.equal(
      after(() => wire.setReferenced(false)),
      0,
    );
    assert.equal(
      after(() => wire.setReferenced(true)),
      1,
    );
    assert.equal(after(want(true)), 0);
    assert.equal(after(want(false)), 1);
    assert.equal(
      after(() => wire.close(new Error('over'))),
      0,
    );
  });
});

describe('SendQueue', () => {
  let before = 0;
  let [near, far] = [0, 0];
  beforeEach(() => {
    before = openDescriptors();
    [near, far] = socketPair();
  });
  afterEach(async () => {
    for (const fd of [near, far]) if (isOpenFd(fd)) closeFd(fd);
    await descriptorsReturnTo(before);
  });

  const frame = (byteLength: number, fill = 0): Buffer =>
    Buffer.alloc(HEADER_BYTE_LENGTH + byteLength, fill);
  const ignore = (): void => {};
  /** A message of a kind; requests and responses have numbers. */
  const typeOf = (kind: FrameKind): MessageType => ({
    kind,
    request: kind > FrameKind.control ? 1 : 0,
  });

  /**
   * Collects the messages that the other end got: the kind, the length and the first byte of each.
   */
  function reader(): () => (readonly [kind: number, byteLength: number, first: number])[] {
    const assembly = new FrameAssembler();
    return () => {
      const arrived: (readonly [number, number, number])[] = [];
      for (let next = receiveMessage(far); typeof next === 'object'; next = receiveMessage(far)) {
        const whole = assembly.add(next);
        if (!whole) continue;
        whole.fds.forEach(closeFd);
        arrived.push([whole.kind, whole.bytes.byteLength, whole.bytes[0] as number]);
      }
      return arrived;
    };
  }

  test('a message that needs acknowledgement, and all after it, waits for that', async () => {
    const queue = new SendQueue();
    const read = reader();
    const { value, control } = FrameKind;
    let agree = ignore;
    const agreed = new Promise<void>((resolve) => {
      agree = resolve;
    });
    const sent: number[] = [];
    const post = (at: number, kind: FrameKind, waitsFor?: Promise<void>): void => {
      const sending = queue.post(near, typeOf(kind), frame(at, at), [], ignore, waitsFor);
      assert.ok(sending, `${at} waits`);
      void sending.then(() => sent.push(at));
    };
    assert.equal(queue.post(near, typeOf(value), frame(9, 9), []), undefined);
    post(1, value, agreed);
    post(2, value);
    post(3, control);
    assert.equal(queue.isAwaitingAck, true);
    // The socket has room all the time.
    queue.flush(near);
    await nextLoopIteration();
    queue.flush(near);
    assert.deepEqual([read(), sent], [[[value, 9, 9]], []]);
    agree();
    await nextLoopIteration();
    assert.equal(queue.isAwaitingAck, false);
    queue.flush(near);
    await nextLoopIteration();
    assert.deepEqual(sent, [1, 2, 3]);
    assert.deepEqual(read(), [
      [value, 1, 1],
      [value, 2, 2],
      [control, 3, 3],
    ]);
    assert.equal(queue.isEmpty, true);
  });

  test('nothing is sent between the frames of a value, and rejecting unstarted messages keeps control messages', async () => {
    const queue = new SendQueue();
    const read = reader();
    const { value, control: news } = FrameKind;
    const half = 100 * FRAGMENT_BYTE_LENGTH;
    const begun = queue.post(near, typeOf(value), frame(half, 1), []);
    const rejected: string[] = [];
    const dropped: string[] = [];
    for (const kind of ['value', 'request', 'response'] as const)
      queue
        .post(near, typeOf(FrameKind[kind]), frame(2, 2), [], () => dropped.push(kind))
        ?.catch(({ message }: Error) => rejected.push(`${kind}: ${message}`));
    const control = queue.post(near, typeOf(news), frame(3, 3), []);
    queue.rejectUnstarted(new Error('closed'));
    assert.deepEqual(dropped, ['response', 'request', 'value']);
    // There is room, but not for this message.
    const arrived = read();
    const last = queue.post(near, typeOf(news), frame(4, 4), []);
    for (let turn = 0; turn < 1000 && !queue.isEmpty; turn++) {
      queue.flush(near);
      arrived.push(...read());
      await nextLoopIteration();
    }
    await Promise.all([begun, control, last]);
    assert.deepEqual(arrived, [
      [value, half, 1],
      [news, 3, 3],
      [news, 4, 4],
    ]);
    assert.deepEqual(rejected, ['value: closed', 'request: closed', 'response: closed']);
  });

  const never = new Promise<never>(ignore);

  test('the number of queued values and their bytes are limited', () => {
    const most = MAX_UNSENT_BYTE_LENGTH / 4;
    const sizes = new Array<number>(3).fill(most - HEADER_BYTE_LENGTH);
    for (const [waiting, more, message] of [
      [
        [...sizes, most - HEADER_BYTE_LENGTH - 1],
        1 - HEADER_BYTE_LENGTH,
        /^5 values of 67108864 bytes \(64 MiB\) are already waiting to be sent: await send\(\) before the next one$/,
      ],
      [
        new Array<number>(MAX_UNSENT_VALUES - 1).fill(1),
        1,
        /^1024 values of 21504 bytes \(21 KiB\) are already waiting to be sent: await send\(\) before the next one$/,
      ],
    ] as const) {
      const queue = new SendQueue();
      const post = (byteLength: number): void => {
        queue.checkCapacity();
        queue
          .post(near, typeOf(FrameKind.value), frame(byteLength), [], ignore, never)
          ?.catch(ignore);
      };
      for (const byteLength of waiting) post(byteLength);
      post(more);
      assert.throws(() => post(1), { name: 'IpcError', message });
      queue.rejectAll(new Error('over'));
      queue.checkCapacity();
    }
  });

  test('a value is not queued, and no descriptor stays, if one cannot be duplicated', () => {
    const fd = createMemfd('sent', 0);
    const held = openDescriptors();
    const queue = new SendQueue();
    let dropped = 0;
    for (const room of [1, 2])
      withRoomFor(room, () => {
        const post = (): unknown =>
          queue.post(
            near,
            typeOf(FrameKind.value),
            frame(1),
            [fd, fd, fd],
            () => {
              dropped += 1;
            },
            never,
          );
        assert.throws(post, {
          name: 'IpcError',
          message: /cannot queue the value: there are not enough descriptors .*: .*EMFILE/,
        });
      });
    // The caller gets only the error, and keeps its descriptor.
    assert.deepEqual([dropped, queue.isEmpty, openDescriptors()], [0, true, held]);
    queue.checkCapacity();
    closeFd(fd);
  });

  /** Runs `use` without the privileges of root, who has no such limit. */
  function asOrdinaryUser<T>(use: () => T): T {
    const isRoot = process.geteuid?.() === 0;
    if (isRoot) process.seteuid?.(65_534);
    try {
      return use();
    } finally {
      if (isRoot) process.seteuid?.(0);
    }
  }

  test('a message that waits for descriptors in flight is retried, though no event tells of room', {
    timeout: 30_000,
  }, async () => {
    const [first, other] = socketPair();
    const wire = new FramedSocket(near, {
      wantsMore: () => true,
      onMessage: () => false,
      onSocketEnd: ignore,
      onFailure: (error) => assert.fail(String(error)),
      onDrained: ignore,
    });
    using _open = { [Symbol.dispose]: () => wire.close(new Error('over')) };
    const fd = createMemfd('sent', 0);
    const { ino } = fstatSync(fd);
    sendMessage(first, Buffer.of(1), new Array<number>(250).fill(fd));
    let sending: Promise<void> | undefined;
    withRoomFor(8, () => {
      sending = asOrdinaryUser(() => wire.post(typeOf(FrameKind.value), frame(1), [fd]));
    });
    closeFd(fd);
    assert.ok(sending, 'it waits');
    assert.equal(wire.sendQueue.isShortOfFds, true);
    assert.deepEqual(receiveMessage(far), { data: new Uint8Array(helloFrame()), fds: [] });
    assert.equal(receiveMessage(far), undefined);
    // The socket has room, and nobody reads or writes it.
    await sending;
    assert.equal(wire.sendQueue.isShortOfFds, false);
    const arrived = receiveMessage(far) as { readonly fds: readonly number[] };
    assert.deepEqual(
      arrived.fds.map((each) => fstatSync(each).ino),
      [ino],
    );
    [...arrived.fds, first, other].forEach(closeFd);
  });

  test('the descriptors of a value of many frames go only with the first frame', async () => {
    const queue = new SendQueue();
    const fd = createMemfd('sent', 0);
    assert.equal(
      queue.post(near, typeOf(FrameKind.value), frame(3 * FRAGMENT_BYTE_LENGTH), [fd]),
      undefined,
    );
    closeFd(fd);
    const counts: number[] = [];
    for (let next = receiveMessage(far); typeof next === 'object'; next = receiveMessage(far)) {
      counts.push(next.fds.length);
      next.fds.forEach(closeFd);
    }
    assert.deepEqual(counts, [1, 0, 0]);
  });
});
