import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { serveParent } from '../../../../src/cli/serve-parent.ts';
import { ClosedError, PeerGoneError } from '../../../../src/errors.ts';

/** A parent that sends `values`, or throws those that are errors, and is closed then. */
function parentThatSends(values: readonly unknown[], sendError?: Error) {
  const left = [...values];
  const replies: unknown[] = [];
  return {
    replies,
    get closed() {
      return left.length === 0;
    },
    async receive() {
      const value = left.shift();
      if (value instanceof Error) throw value;
      return value;
    },
    async send(reply: unknown) {
      if (sendError) throw sendError;
      replies.push(reply);
    },
  };
}

const double = async (value: unknown): Promise<unknown> => {
  if (typeof value !== 'number') throw new TypeError(`${value} is not a number`);
  return 2 * value;
};
const failed = (message: string): unknown => ({ message });

describe('serveParent', () => {
  test('each value has one reply, in order, after the first reply of all', async () => {
    const parent = parentThatSends([1, 2, 3, 'never replied to']);
    await serveParent(parent, 'ready', double, failed);
    assert.deepEqual(parent.replies, ['ready', 2, 4, 6]);
  });

  test('the reply to what cannot be received or served has the reason, and the loop goes on', async () => {
    const parent = parentThatSends([new Error('cannot be opened'), 'x', 4, 'never replied to']);
    await serveParent(parent, 'ready', double, failed);
    assert.deepEqual(parent.replies, [
      'ready',
      { message: 'cannot be opened' },
      { message: 'x is not a number' },
      8,
    ]);
  });

  test('a parent that has exited ends the loop, and any other error rejects', async () => {
    for (const gone of [
      new ClosedError('closed'),
      new PeerGoneError('gone', { pid: 1, abandonedWaits: 0 }),
    ])
      await serveParent(parentThatSends([1], gone), 'ready', double, failed);
    const error = new Error('cannot be sent');
    await assert.rejects(serveParent(parentThatSends([1], error), 'ready', double, failed), error);
  });
});
