import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Inbox } from '../../../../../src/ipc/peer/inbox.ts';
import {
  MAX_WAITING_BYTE_LENGTH,
  MAX_WAITING_FDS,
  MAX_WAITING_VALUES,
} from '../../../../../src/ipc/peer/limits.ts';

const arrival = {
  contents: { build: () => true, value: 1 },
  objects: [],
  points: [],
};

describe('Inbox', () => {
  const limits = {
    values: { count: MAX_WAITING_VALUES, size: { byteLength: 1, fdCount: 0 } },
    bytes: { count: 4, size: { byteLength: MAX_WAITING_BYTE_LENGTH / 4, fdCount: 0 } },
    'file descriptors': { count: 4, size: { byteLength: 1, fdCount: MAX_WAITING_FDS / 4 } },
  };
  for (const [what, { count, size }] of Object.entries(limits))
    test(`is full of ${what} that nobody took, and has room again when half is taken`, () => {
      const inbox = new Inbox();
      for (let n = 0; n < count; n++) {
        assert.equal(inbox.isFull, false);
        inbox.put(arrival, size);
      }
      assert.equal(inbox.isFull, true);
      for (let n = 0; n < count / 2; n++) {
        assert.equal(inbox.hasRoom, false);
        inbox.take(
          () => true,
          () => assert.fail(),
        );
      }
      assert.deepEqual([inbox.isFull, inbox.hasRoom], [false, true]);
      inbox.end(new Error('over'));
      inbox.clear();
      assert.equal(inbox.isOver, true);
    });
});
