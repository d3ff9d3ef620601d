import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Context, CudaEvent, DeviceBuffer, VirtualMemory } from '../../../../../src/index.ts';
import { leases } from '../../../../../src/ipc/index.ts';
import { ReceiveQueue } from '../../../../../src/ipc/peer/receive-queue.ts';
import type { Session } from '../../../../../src/ipc/peer/session.ts';
import {
  MAX_QUEUED_BYTE_LENGTH,
  MAX_QUEUED_FDS,
  MAX_QUEUED_VALUES,
} from '../../../../../src/ipc/protocol.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from './support.ts';

const arrival = {
  contents: { build: () => true, value: 1 },
  objects: [],
  points: [],
};

describe('ReceiveQueue', () => {
  const limits = {
    values: { count: MAX_QUEUED_VALUES, size: { byteLength: 1, fdCount: 0 } },
    bytes: { count: 4, size: { byteLength: MAX_QUEUED_BYTE_LENGTH / 4, fdCount: 0 } },
    'file descriptors': { count: 4, size: { byteLength: 1, fdCount: MAX_QUEUED_FDS / 4 } },
  };
  for (const [what, { count, size }] of Object.entries(limits))
    test(`is full of ${what} that nobody took, and has room again when half is taken`, () => {
      const inbox = new ReceiveQueue({} as Session, { onDelivered() {} });
      for (let n = 0; n < count; n++) {
        assert.equal(inbox.isFull, false);
        inbox.add(arrival, size);
      }
      assert.equal(inbox.isFull, true);
      for (let n = 0; n < count / 2; n++) {
        assert.equal(inbox.hasRoom, false);
        let taken: unknown;
        inbox.receive({
          stream: undefined,
          resolve: (value) => {
            taken = value;
          },
          reject: () => assert.fail(),
        });
        assert.equal(taken, 1);
      }
      assert.deepEqual([inbox.isFull, inbox.hasRoom], [false, true]);
      inbox.end(new Error('over'));
      inbox.clear();
      assert.equal(inbox.isDrained, true);
    });
});

test('a value with objects of several contexts is delivered at once only if all of them can wait', () => {
  emulate({ CUFFI_EMULATED_DEVICES: '3' });
  const contexts = [0, 1, 2].map((device) => Context.primary(device));
  const objects = contexts.map((context) => DeviceBuffer.allocate(64, { context }));
  for (let waiting = 0; waiting < 8; waiting += 1) {
    const canWait = contexts.filter((_, at) => (waiting >> at) % 2 === 1);
    const session = {
      isGone: false,
      timeline: {
        isReached: () => false,
        wait: (_points: unknown, context: Context) => canWait.includes(context),
      },
      whenReached: () => new Promise(() => {}),
    };
    const queue = new ReceiveQueue(session as unknown as Session, { onDelivered() {} });
    let isDelivered = false;
    queue.receive({
      stream: undefined,
      resolve: () => {
        isDelivered = true;
      },
      reject: assert.fail,
    });
    queue.add(
      { ...arrival, objects, points: [{ index: 0, count: 1 }] },
      { byteLength: 1, fdCount: 0 },
    );
    assert.equal(isDelivered, canWait.length === 3, `${canWait}`);
  }
  for (const object of objects) object.close();
});

test('objects and descriptors of values that nobody took count: the sender is stopped', async (t) => {
  emulate();
  const put = t.mock.method(ReceiveQueue.prototype, 'add');
  using event = CudaEvent.create({ interprocess: true });
  using memory = VirtualMemory.reserve(2 << 20, { shareable: true });
  memory.grow(2 << 20);
  // As large as a value may be with its objects alone, and 64 descriptors.
  for (const [object, perValue, count] of [
    [event, 2048, 2],
    [memory.buffer, 16, 4],
  ] as const) {
    put.mock.resetCalls();
    using pair = peerPair();
    const sends = Array.from({ length: count + 4 }, () =>
      pair.a.send(new Array(perValue).fill(object)),
    );
    for (const send of sends) send.catch(() => {});
    for (let idle = 0, last = -1; idle < 20; idle++) {
      if (put.mock.callCount() !== last) idle = 0;
      last = put.mock.callCount();
      await nextLoopIteration();
    }
    assert.equal(put.mock.callCount(), count);
    pair.b.close();
    await Promise.allSettled(sends);
  }
  await leases.drain({ timeoutMs: 10_000 });
});
