import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { connect, listen, parentPeer, spawnPeer } from '../../../../../src/ipc/index.ts';
import { FrameKind, Tag } from '../../../../../src/ipc/protocol.ts';
import { busyPoll, type PollResult } from '../../../../../src/ipc/wire/busy-poll.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/process-state.ts';
import { peerPair, RawPeer } from '../peer/support.ts';

const SECOND_US = 1_000_000;
/** No test waits for all of it. */
const polling = { busyPollUs: SECOND_US };

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => descriptorsReturnTo(before));

/** Whether a turn of the event loop has begun to run what was queued after this call. */
function watchTurn(): { readonly hasRun: boolean } {
  const watch = { hasRun: false };
  setImmediate(() => {
    watch.hasRun = true;
  });
  return watch;
}

describe('busyPoll', () => {
  test('polls until the awaited message comes, before the event loop continues', async () => {
    let looks = 0;
    const coming = new Promise<void>((resolve) => {
      const poll = (): PollResult => {
        looks += 1;
        if (looks < 1000) return 'nothing';
        resolve();
        return 'over';
      };
      // Far more than needed, on any machine.
      busyPoll({ durationUs: 60 * SECOND_US, poll });
    });
    const turn = watchTurn();
    await null;
    assert.equal(looks, 0, 'what is ready runs first');
    await coming;
    assert.deepEqual([looks, turn.hasRun], [1000, false]);
    for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
    assert.equal(looks, 1000);
  });

  test('stops polling when its time is over, until it is called again', async () => {
    let looks = 0;
    const polled = {
      durationUs: 1,
      poll(): PollResult {
        looks += 1;
        return 'nothing';
      },
    };
    for (let asked = 0; asked < 2; asked += 1) {
      looks = 0;
      busyPoll(polled);
      busyPoll(polled);
      await nextLoopIteration();
      const seen = looks;
      assert.ok(seen > 0);
      for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
      assert.equal(looks, seen);
    }
  });

  test('polls for all that wait, and the event loop turns when one of them was served', async () => {
    const found: string[] = [];
    let looks = 0;
    let turn = { hasRun: true };
    const serve = (name: string, poll: PollResult): PollResult => {
      found.push(`${name} ${turn.hasRun ? 'after' : 'without'} a turn`);
      turn = watchTurn();
      return poll;
    };
    await new Promise<void>((resolve) => {
      busyPoll({
        durationUs: SECOND_US,
        poll() {
          if (looks === 100) return serve('first', 'served');
          return looks === 200 ? serve('first, again', 'over') : 'nothing';
        },
      });
      busyPoll({
        durationUs: SECOND_US,
        poll() {
          looks += 1;
          if (looks < 300) return 'nothing';
          resolve();
          return serve('second', 'over');
        },
      });
    });
    assert.deepEqual(
      found,
      ['first', 'first, again', 'second'].map((name) => `${name} after a turn`),
    );
  });

  test('a value that is sent after receive() goes out before the thread polls for the reply', async () => {
    for (const [options, expected] of [
      [polling, false],
      [{}, true],
    ] as const) {
      using pair = peerPair(options);
      const first = pair.a.receive();
      const turn = watchTurn();
      await new Promise<void>((resolve) => process.nextTick(resolve));
      for (let n = 0; n < 100; n += 1) await null;
      // Not awaited: that may take a turn of the event loop.
      void pair.b.send('first');
      void pair.b.send('second');
      assert.equal(await first, 'first');
      assert.equal(turn.hasRun, expected, 'whether the loop went on before');
      assert.equal(await pair.a.receive(), 'second');
    }
  });

  test('peers of listeners and of connect poll too', async () => {
    const name = `@cuffi-polling-${process.pid}`;
    using listener = listen(name, polling);
    using guest = await connect(name, polling);
    using host = await listener.accept();
    for (const [from, to] of [
      [guest, host],
      [host, guest],
    ] as const) {
      const coming = to.receive();
      const turn = watchTurn();
      void from.send('hello');
      assert.equal(await coming, 'hello');
      assert.equal(turn.hasRun, false);
    }
  });

  test('the thread polls for answers, and for each request that a handler waits for', async () => {
    for (const [options, expected] of [
      [polling, false],
      [{}, true],
    ] as const) {
      using asking = new RawPeer(options);
      const answer = asking.peer.request('question');
      let turn = watchTurn();
      await new Promise<void>((resolve) => process.nextTick(resolve));
      asking.send(Uint8Array.of(Tag.true), { kind: FrameKind.response, request: 1 });
      assert.equal(await answer, true);
      assert.equal(turn.hasRun, expected, 'whether the loop went on before the answer');

      using asked = new RawPeer(options);
      let onRequest = (): void => {};
      const serving = asked.peer.serve(() => onRequest());
      for (const sequence of [0, 1, 2]) {
        const coming = new Promise<void>((resolve) => {
          onRequest = resolve;
        });
        turn = watchTurn();
        await new Promise<void>((resolve) => process.nextTick(resolve));
        const kind = FrameKind.request;
        asked.send(Uint8Array.of(Tag.true), { kind, request: sequence + 1, sequence });
        await coming;
        assert.equal(turn.hasRun, expected, `whether it went on before request ${sequence}`);
      }
      asked.peer.close();
      await serving;
    }
  });

  test('several waiting callers are all served, in order', async () => {
    using pair = peerPair(polling);
    const waiting = [pair.a.receive(), pair.a.receive(), pair.b.receive()];
    for (const value of [1, 2]) await pair.b.send(value);
    await pair.a.send(3);
    assert.deepEqual(await Promise.all(waiting), [1, 2, 3]);
  });

  test('the end, close() and an aborted wait end the polling', async () => {
    using pair = peerPair(polling);
    const abort = new AbortController();
    const givenUp = pair.a.receive({ signal: abort.signal });
    abort.abort(new Error('enough'));
    await assert.rejects(givenUp, /enough/);
    const closed = pair.a.receive();
    const ended = pair.b.receive();
    pair.a.close();
    await assert.rejects(closed, { name: 'ClosedError', message: /^this Peer is closed: / });
    await assert.rejects(ended, { name: 'ClosedError', message: /has closed the connection/ });

    using gone = new RawPeer(polling);
    const lost = gone.peer.receive();
    gone[Symbol.dispose]();
    await assert.rejects(lost, { name: 'ClosedError' });
    using hostile = new RawPeer(polling);
    const broken = hostile.peer.receive();
    hostile.send(new Uint8Array(3), { kind: 99 as never });
    await assert.rejects(broken, { name: 'IpcError', message: /unknown frame kind 99/ });
  });

  test('a value that is sent over many turns is not delayed by the wait for its reply', async () => {
    using pair = peerPair(polling, {});
    const data = new Uint8Array(4 << 20).fill(7);
    const sending = pair.a.send(data);
    const answer = pair.a.receive();
    const received = (await pair.b.receive()) as Uint8Array;
    await pair.b.send(received.byteLength);
    assert.equal(await answer, data.byteLength);
    await sending;
  });

  test('an invalid time is refused, however the peer is made', async () => {
    const wrong = [-1, 0.5, SECOND_US + 1, Number.NaN, Number.POSITIVE_INFINITY];
    const message = /^busyPollUs must be an integer from 0 to 1000000, not /;
    for (const busyPollUs of wrong) {
      const expected = { name: 'RangeError', message };
      assert.throws(() => spawnPeer('never started', { busyPollUs }), expected);
      assert.throws(() => parentPeer({ busyPollUs }), expected);
      assert.throws(() => listen('never there', { busyPollUs }), expected);
      await assert.rejects(connect('never there', { busyPollUs }), expected);
    }
    assert.throws(() => listen('x', { busyPollUs: '1' as never }), TypeError);
    assert.throws(() => parentPeer({ busyPoll: 1 } as object), /unknown option 'busyPoll'/);
  });
});
