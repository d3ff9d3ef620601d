/** What is sent to an end that never takes it: requests to a loop, values to an end that serves. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { leases, type Peer } from '../../../../../src/ipc/index.ts';
import { Readiness } from '../../../../../src/ipc/peer/readiness.ts';
import { FrameKind, HEADER_BYTE_LENGTH, Tag } from '../../../../../src/ipc/protocol.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { turns, until } from '../../../../support/iterations.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { own, peerPair, RawPeer } from './support.ts';

const notServed = {
  name: 'IpcError',
  code: 'not-served',
  message: `process ${own.pid} serves no requests: it waits for values and has never called serve(). Serve there, or send values`,
};
const notReceived = {
  name: 'IpcError',
  code: 'not-received',
  message: `process ${own.pid} receives no values: it serves requests and has never called receive(). Receive there, or send requests`,
};
const timedOut = (message: RegExp) => ({ name: 'TimeoutError', message });
/** Longer than requests and values wait for an end that waits for the other kind. */
const LONG_MS = 600;

/** Takes all values, and returns them at the end. */
async function loop(peer: Peer): Promise<unknown[]> {
  const values: unknown[] = [];
  for await (const value of peer) values.push(value);
  return values;
}

describe('A request', () => {
  test('to an end that loops, or waits in receive(), and has never served is refused', async () => {
    for (const wait of [loop, (peer: Peer) => peer.receive()]) {
      using pair = peerPair();
      const waiting = wait(pair.b);
      await Promise.all([
        assert.rejects(pair.a.request(1), notServed),
        assert.rejects(pair.a.request(2, { timeoutMs: 60_000 }), notServed),
      ]);
      await pair.a.send('a value');
      pair.a.close();
      assert.deepEqual([await waiting].flat(), ['a value']);
    }
  });

  test('that came before the loop, or while the loop handles a value, is refused when it waits again', async () => {
    using pair = peerPair();
    const asked = [pair.a.request(1)];
    await pair.a.send('long');
    let isHandled = false;
    const looping = (async () => {
      for await (const value of pair.b) {
        await delay(LONG_MS);
        isHandled = value === 'long';
      }
    })();
    asked.push(pair.a.request(2));
    for (const each of asked) await assert.rejects(each, notServed);
    assert.equal(isHandled, true);
    pair.a.close();
    await looping;
  });

  test('is answered by an end that has received, and serves when its value has come', async () => {
    for (const isValueFirst of [true, false]) {
      using pair = peerPair();
      const served = (async () => {
        const name = await pair.b.receive();
        await pair.b.serve((value) => `${name} ${value}`);
      })();
      await nextLoopIteration();
      if (isValueFirst) await pair.a.send('hello');
      const asked = pair.a.request('you');
      if (!isValueFirst) await pair.a.send('hello');
      assert.equal(await asked, 'hello you');
      pair.a.close();
      await served;
    }
  });

  test('waits for an end that has received and takes its time until it serves', async () => {
    using pair = peerPair();
    const served = (async () => {
      await pair.b.receive();
      await delay(LONG_MS);
      await pair.b.serve((value) => value);
    })();
    await pair.a.send('settings');
    assert.equal(await pair.a.request(7), 7);
    pair.a.close();
    await served;
  });

  test('is answered after a refusal, once the other end serves', async () => {
    using pair = peerPair();
    const looping = loop(pair.b);
    await assert.rejects(pair.a.request(1), notServed);
    const stop = new AbortController();
    const served = assert.rejects(
      pair.b.serve((value) => value, { signal: stop.signal }),
      {
        name: 'AbortError',
      },
    );
    assert.equal(await pair.a.request(2), 2);
    stop.abort();
    await served;
    // It has served: what comes now waits for the next call.
    const asked = pair.a.request(3);
    await delay(LONG_MS);
    const servedAgain = pair.b.serve((value) => value);
    assert.equal(await asked, 3);
    pair.a.close();
    await Promise.all([looping, servedAgain]);
  });

  test('to an end that loops and serves a moment later is answered', async () => {
    using pair = peerPair();
    const looping = loop(pair.b);
    const asked = pair.a.request(1);
    await turns();
    const served = pair.b.serve((value) => value);
    assert.equal(await asked, 1);
    pair.a.close();
    await Promise.all([looping, served]);
  });

  test('to an end that has begun neither waits, and its time-out says so', async () => {
    using pair = peerPair();
    await assert.rejects(
      pair.a.request(1, { timeoutMs: LONG_MS }),
      timedOut(/: process \d+ has neither received nor served yet: does it call serve\(\)\?$/),
    );
    const asked = pair.a.request(2);
    await nextLoopIteration();
    const served = pair.b.serve((value) => value);
    assert.equal(await asked, 2);
    await assert.rejects(pair.a.request(new Promise(() => {}) as never), TypeError);
    pair.a.close();
    await served;
  });

  test('to an end that handles a value times out with what that end does, and a slow handler without', async () => {
    using pair = peerPair();
    await pair.a.send(1);
    await pair.b.receive();
    await nextLoopIteration();
    await assert.rejects(
      pair.a.request(1, { timeoutMs: 50 }),
      timedOut(/: process \d+ receives values and has never served: does it call serve\(\)\?$/),
    );
    const served = pair.b.serve(() => delay(100));
    await nextLoopIteration();
    await nextLoopIteration();
    await assert.rejects(pair.a.request(1, { timeoutMs: 50 }), timedOut(/longer than 50 ms$/));
    pair.a.close();
    await served;
  });

  test('that is refused leaves nothing of its memory', async () => {
    emulate();
    using pair = peerPair();
    using buffer = DeviceBuffer.allocate(64);
    const looping = loop(pair.b);
    await assert.rejects(pair.a.request({ buffer }), notServed);
    const before = openDescriptors();
    for (let n = 0; n < 2; n++) await assert.rejects(pair.a.request([buffer, buffer]), notServed);
    await until(() => leases.stats().leases.length === 0);
    assert.ok(openDescriptors() <= before);
    pair.a.close();
    await looping;
  });
});

describe('A value', () => {
  test('to an end that serves and has never received is refused; it arrives if that end receives later', async () => {
    using pair = peerPair();
    const served = pair.b.serve((value) => value);
    assert.equal(await pair.a.request(1), 1);
    await assert.rejects(pair.a.send('a'), notReceived);
    // From now on at once, and nothing is sent.
    await assert.rejects(pair.a.send('b'), notReceived);
    assert.equal(await pair.a.request(2), 2);
    assert.equal(await pair.b.receive(), 'a');
    await until(() => pair.a.connection.sendHint === undefined);
    await pair.a.send('c');
    assert.equal(await pair.b.receive(), 'c');
    pair.a.close();
    await served;
  });

  test('that waits to be sent is refused as well, and the time-out of a request behind values says so', async () => {
    using pair = peerPair();
    const first = pair.a.send('before anything');
    const rest = Array.from({ length: 900 }, () => pair.a.send(new Uint8Array(1000)));
    await first;
    const results = Promise.allSettled(rest);
    const served = pair.b.serve((value) => value);
    const codes = (await results).map((each) =>
      each.status === 'rejected' ? each.reason.code : each.status,
    );
    assert.deepEqual(new Set(codes), new Set(['fulfilled', 'not-received']));
    await assert.rejects(pair.a.send(1), notReceived);
    await assert.rejects(
      pair.a.request(1, { timeoutMs: LONG_MS }),
      timedOut(/unreceived values are queued there/),
    );
    const values = [await pair.b.receive()];
    const looping = loop(pair.b);
    assert.equal(await pair.a.request(2), 2);
    pair.a.close();
    await served;
    values.push(...(await looping));
    assert.equal(values[0], 'before anything');
    assert.equal(values.length, 1 + codes.filter((code) => code === 'fulfilled').length);
  });

  test('is taken by a handler that receives', async () => {
    using pair = peerPair();
    const served = pair.b.serve(
      async (count) => {
        await delay(LONG_MS);
        const values: unknown[] = [];
        while (values.length < (count as number)) values.push(await pair.b.receive());
        return values;
      },
      { concurrency: 2 },
    );
    assert.deepEqual(await pair.a.request(0), []);
    const asked = pair.a.request(2);
    await pair.a.send('a');
    await pair.a.send('b');
    assert.deepEqual(await asked, ['a', 'b']);
    pair.a.close();
    await served;
  });

  test('to an end that serves and receives a moment later is sent', async () => {
    using pair = peerPair();
    const served = pair.b.serve((value) => value);
    await pair.a.request(1);
    const sent = pair.a.send('a');
    await turns();
    assert.equal(await pair.b.receive(), 'a');
    await sent;
    pair.a.close();
    await served;
  });

  test('to an end that has begun neither waits there, and the time-out of send() says so', async () => {
    using pair = peerPair();
    const sending: Promise<void>[] = [];
    for (let n = 0; n < 1000; n++) sending.push(pair.a.send(n));
    await assert.rejects(
      pair.a.send(1, { timeoutMs: 50 }),
      timedOut(/: process \d+ has neither received nor served yet: does it call receive\(\)\?$/),
    );
    const looping = loop(pair.b);
    await Promise.all(sending);
    pair.a.close();
    await looping;
  });

  test('that may never be received ends with the connection', async () => {
    using pair = peerPair();
    const served = pair.b.serve(() => delay(LONG_MS));
    const asked = assert.rejects(pair.a.request(1), { name: 'ClosedError' });
    await nextLoopIteration();
    await until(() => /serves requests/.test(pair.a.connection.sendHint ?? ''));
    const sent = assert.rejects(pair.a.send('a'), { name: 'ClosedError' });
    pair.b.close();
    await Promise.all([sent, asked, served]);
  });
});

describe('Another end, which does as it likes,', () => {
  const tell = (other: RawPeer, begun: number, sequence = 0) =>
    other.send(Uint8Array.of(9, begun), { kind: FrameKind.control, sequence });

  test('is notified once of what this end begins, in one message for all that begins at once', async () => {
    using other = new RawPeer();
    const { peer } = other;
    const calls = [peer.receive(), peer.serve(() => 1), peer.receive()];
    for (const call of calls) call.catch(() => {});
    await until(() => other.receive() === undefined && other.begun === 3);
    other.send(Uint8Array.of(Tag.null));
    other.begun = 0;
    await calls[0];
    for (let turn = 0; turn < 3; turn++) await nextLoopIteration();
    assert.equal(other.receive(), undefined);
    assert.equal(other.begun, 0);
  });

  test('may say anything about itself: sends wait, are refused, and are sent again', async () => {
    using other = new RawPeer();
    const { peer } = other;
    tell(other, 2);
    await until(() => /serves requests/.test(peer.connection.sendHint ?? ''));
    let isSent = false;
    const sent = peer.send(1).then(() => {
      isSent = true;
    });
    await turns();
    assert.equal(isSent, false);
    tell(other, 1, 1);
    await sent;
    tell(other, 2, 2);
    await until(() => peer.connection.sendHint !== undefined);
    const refused = peer.send(2);
    tell(other, 6, 3);
    await assert.rejects(refused, { code: 'not-received' });
    await assert.rejects(peer.send(3), { code: 'not-received' });
    tell(other, 3, 4);
    await until(() => peer.connection.sendHint === undefined);
    await peer.send(4);
  });

  test('cannot make more sends wait than may wait to be sent', async () => {
    using other = new RawPeer();
    const { peer } = other;
    tell(other, 2);
    await until(() => /serves requests/.test(peer.connection.sendHint ?? ''));
    const sends: Promise<unknown>[] = [];
    for (let n = 0; n < 1024; n++) {
      sends.push(peer.send(n).catch((error) => error.name));
      other.receive();
    }
    await assert.rejects(peer.send(1), { name: 'IpcError', code: 'limit-exceeded' });
    peer.close();
    assert.deepEqual(new Set(await Promise.all(sends)), new Set(['ClosedError']));
  });

  test('gets one refusal for each request, and may refuse with null only', async () => {
    using other = new RawPeer();
    const looping = loop(other.peer);
    for (const [sequence, request] of [7, 9].entries())
      other.send(Uint8Array.of(Tag.null), { kind: FrameKind.request, request, sequence });
    const refused: number[][] = [];
    await until(() => {
      const message = other.receive();
      if (typeof message === 'object')
        refused.push([
          message.data[3] as number,
          message.data[16] as number,
          ...message.data.subarray(HEADER_BYTE_LENGTH),
        ]);
      return refused.length === 2;
    });
    assert.deepEqual(refused, [
      [FrameKind.unserved, 7, Tag.null],
      [FrameKind.unserved, 9, Tag.null],
    ]);
    const asked = other.peer.request(1);
    other.send(Uint8Array.of(Tag.int32, 1, 0, 0, 0), {
      kind: FrameKind.unserved,
      request: 1,
      sequence: 2,
    });
    await assert.rejects(asked, { name: 'IpcError', message: /a refusal came with a value/ });
    await assert.rejects(looping, { name: 'IpcError' });
  });
});

describe('Readiness', () => {
  test('refuses nothing any more once the connection has ended', (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    for (const isEnded of [false, true]) {
      let refusals = 0;
      const readiness = new Readiness({
        peerName: 'the peer',
        values: { hasArrivals: false, isAwaited: true },
        requests: {
          hasWaiting: true,
          isIdle: false,
          refuseWaiting: () => {
            refusals += 1;
          },
        },
        control: { tellBegun: () => {} },
        sendQueue: { rejectUnstarted: () => {} },
      });
      readiness.check();
      if (isEnded) readiness.end(new Error('over'));
      t.mock.timers.tick(60_000);
      assert.equal(refusals, isEnded ? 0 : 1);
    }
  });
});
