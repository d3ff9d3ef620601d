/** A socket on the event loop, without a connection around it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { closeFd } from '../../../../../ffi/linux/libc.ts';
import { sendMessage } from '../../../../../ffi/linux/message.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { FramedSocket } from '../../../../../src/ipc/wire/framed-socket.ts';
import { FrameKind, writeHeader } from '../../../../../src/ipc/wire/frames.ts';
import { FRAGMENT_BYTE_LENGTH, HEADER_BYTE_LENGTH } from '../../../../../src/ipc/wire/limits.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';

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
    while (sendOne());
    wire.markPeerGone();
    while (wire.isOpen) await nextLoopIteration();
    assert.deepEqual([taken, ends], [4096, 1]);
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
