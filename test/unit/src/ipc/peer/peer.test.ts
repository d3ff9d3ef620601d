import assert from 'node:assert/strict';
import { fstatSync } from 'node:fs';
import { afterEach, beforeEach, test } from 'node:test';
import fc from 'fast-check';
import { closeFd, createMemfd } from '../../../../../ffi/libc.ts';
import { receiveMessage, sendMessage, socketPair } from '../../../../../ffi/socket.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  HEADER_BYTE_LENGTH,
  MAX_UNSENT_VALUES,
  MAX_VALUE_BYTE_LENGTH,
  MAX_WAITING_VALUES,
} from '../../../../../src/ipc/peer/limits.ts';
import { Outbox } from '../../../../../src/ipc/peer/outbox.ts';
import { Tag } from '../../../../../src/ipc/peer/tags.ts';
import { nextTurn } from '../../../../../src/wait.ts';
import { openDescriptors } from '../../../../support/descriptors.ts';
import { dose } from '../../../../support/dose.ts';
import { rawSend } from '../../../ffi/fixtures/descriptors.ts';
import { peerPair, Stranger } from './support.ts';

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => assert.equal(openDescriptors(), before, 'descriptors'));

const one = Uint8Array.of(Tag.int32, 1, 0, 0, 0);
const ipcError = (message: RegExp) => ({ name: 'IpcError', message });
const closedError = (message: RegExp) => ({ name: 'ClosedError', message });

test('values arrive whole and in order, also those of many packets', async () => {
  using pair = peerPair();
  const large = new Uint8Array(3 * FRAGMENT_BYTE_LENGTH + 5).map((_, i) => i % 251);
  const values = [1, { large }, 'x'.repeat(FRAGMENT_BYTE_LENGTH - 6), [null], { large }, undefined];
  const sent = Promise.all(values.map((value) => pair.a.send(value)));
  for (const value of values) assert.deepStrictEqual(await pair.b.receive(), value);
  await sent;
});

test('a value is as it was when send was called', async () => {
  using pair = peerPair();
  const data = new Uint8Array(200_000).fill(1);
  const sends = Array.from({ length: 4 }, () => pair.a.send({ data }));
  data.fill(2);
  for (let n = 0; n < 4; n++) {
    const received = (await pair.b.receive()) as { data: Uint8Array };
    assert.deepEqual(new Set(received.data), new Set([1]));
  }
  await Promise.all(sends);
});

test('what was sent before the end is received before the end is told', async () => {
  using pair = peerPair();
  for (let i = 0; i < 3; i++) await pair.a.send(i);
  pair.a.close();
  await nextTurn();
  assert.equal(pair.b.closed, false);
  const received: unknown[] = [];
  for await (const value of pair.b) received.push(value);
  assert.deepEqual(received, [0, 1, 2]);
  assert.equal(pair.b.closed, true);
  const told = closedError(/^this Peer is closed: process \d+ has closed the connection$/);
  await assert.rejects(pair.b.receive(), told);
  await assert.rejects(pair.b.send(1), told);
  for await (const value of pair.b) assert.fail(String(value));
});

test('nothing whose send had resolved is lost when the sender closes', async () => {
  using pair = peerPair();
  let sent = 0;
  const sends = Array.from({ length: 500 }, (_, i) =>
    pair.a.send({ i, pad: new Uint8Array(5000) }).then(() => (sent += 1)),
  );
  for (let turns = 0; turns < 50; turns++) await nextTurn();
  pair.a.close();
  await Promise.allSettled(sends);
  assert.ok(sent > MAX_WAITING_VALUES && sent < 500, `${sent}`);
  let received = 0;
  for await (const value of pair.b) assert.equal((value as { i: number }).i, received++);
  assert.equal(received, sent);
});

test('close() ends loops here, rejects what waits, and may be called twice', async () => {
  using pair = peerPair();
  const loop = (async () => {
    for await (const value of pair.a) assert.fail(String(value));
  })();
  const receiving = pair.a.receive();
  pair.a.close();
  pair.a.close();
  await loop;
  await assert.rejects(receiving, closedError(/^this Peer is closed$/));
  await assert.rejects(pair.a.send(1), closedError(/^this Peer is closed$/));
  await assert.rejects(pair.b.receive(), closedError(/has closed the connection/));
});

test('leaving a loop leaves the peer open', async () => {
  using pair = peerPair();
  await pair.a.send(1);
  await pair.a.send(2);
  for await (const value of pair.b) {
    assert.equal(value, 1);
    break;
  }
  assert.equal(await pair.b.receive(), 2);
});

test('a slow reader holds the sender up, and neither keeps more than it may', async () => {
  using pair = peerPair();
  let sent = 0;
  const sending = (async () => {
    for (let i = 0; i < 2000; i++) {
      await pair.a.send(i);
      sent += 1;
    }
  })();
  // As long as anything moves; the kernel keeps some.
  for (let last = -1; last !== sent; ) {
    last = sent;
    for (let turns = 0; turns < 20; turns++) await nextTurn();
  }
  assert.ok(sent >= MAX_WAITING_VALUES && sent < 2000, `${sent}`);
  for (let i = 0; i < 2000; i++) assert.equal(await pair.b.receive(), i);
  await sending;
});

test('sends that nobody awaits are refused before they fill the memory', async () => {
  using pair = peerPair();
  const sends = Array.from({ length: 4 * MAX_UNSENT_VALUES }, (_, i) =>
    pair.a.send({ i, data: new Uint8Array(1000) }),
  );
  const results = await Promise.race([
    Promise.allSettled(sends.slice(-10)),
    new Promise<never>((_, reject) => setTimeout(reject, 5000).unref()),
  ]);
  for (const result of results)
    assert.match(
      String((result as PromiseRejectedResult).reason),
      /await send\(\) before the next/,
    );
  const all = Promise.allSettled(sends);
  pair.a.close();
  const states = (await all).map(({ status }) => status);
  assert.equal(states.indexOf('rejected'), states.lastIndexOf('fulfilled') + 1);
});

test('waits are given up by signal and by time, and what comes later is for the next', async () => {
  using pair = peerPair();
  const reason = new Error('enough');
  await assert.rejects(pair.a.receive({ signal: AbortSignal.abort(reason) }), reason);
  await assert.rejects(pair.a.send(1, { signal: AbortSignal.abort(reason) }), reason);
  const abort = new AbortController();
  const receiving = pair.a.receive({ signal: abort.signal });
  abort.abort(reason);
  await assert.rejects(receiving, reason);
  await assert.rejects(pair.a.receive({ timeoutMs: 1 }), {
    name: 'TimeoutError',
    message: /^receiving from process \d+ took longer than 1 ms$/,
  });
  await pair.b.send('later');
  assert.equal(
    await pair.a.receive({ signal: new AbortController().signal, timeoutMs: 9999 }),
    'later',
  );

  const large = new Uint8Array(1 << 20);
  await assert.rejects(pair.a.send(large, { timeoutMs: 1 }), { name: 'TimeoutError' });
  assert.deepEqual(await pair.b.receive(), large);
});

test('descriptors of what waits to be sent stay open, whatever their owner does', async () => {
  const [near, far] = socketPair();
  const outbox = new Outbox();
  const packet = (byteLength: number): Buffer => Buffer.alloc(HEADER_BYTE_LENGTH + byteLength, 1);
  const waiting: Promise<void>[] = [];
  while (waiting.length === 0) {
    const sending = outbox.post(near, packet(50_000), []);
    if (sending) waiting.push(sending);
  }
  const fd = createMemfd('sent', 0);
  const { ino } = fstatSync(fd);
  for (let n = 0; n < 2; n++) waiting.push(outbox.post(near, packet(1), [fd, fd]) as Promise<void>);
  closeFd(fd);
  const arrived: number[] = [];
  while (arrived.length < 2) {
    const message = receiveMessage(far);
    if (typeof message === 'object') arrived.push(...message.fds);
    else outbox.flush(near);
  }
  assert.deepEqual(
    arrived.map((each) => fstatSync(each).ino),
    [ino, ino],
  );
  // The last one goes with the connection, or went out already.
  outbox.rejectAll(new Error('over'));
  await Promise.allSettled(waiting);
  closeFd(near);
  for (let message = receiveMessage(far); message !== 'end'; message = receiveMessage(far))
    if (message) message.fds.forEach(closeFd);
  [...arrived, far].forEach(closeFd);
});

test('wrong arguments are refused', async () => {
  using pair = peerPair();
  const wrong = (options: unknown) => options as { timeoutMs: number };
  await assert.rejects(pair.a.send(1, wrong({ timeout: 1 })), /unknown option 'timeout'/);
  await assert.rejects(pair.a.receive(wrong({ timeoutMs: -1 })), RangeError);
  await assert.rejects(pair.a.receive(wrong({ signal: 1 })), TypeError);
  await assert.rejects(
    pair.a.send(() => 1),
    /^TypeError: value is a function/,
  );
  await pair.a.send('still open');
  assert.equal(await pair.b.receive(), 'still open');
});

const half = Uint8Array.of(...new Array<number>(FRAGMENT_BYTE_LENGTH).fill(0));
const size = FRAGMENT_BYTE_LENGTH + 10;
/** What no cuffi sends. */
const broken: Readonly<Record<string, readonly [RegExp, (other: Stranger) => void]>> = {
  'bytes of something else': [/none of cuffi/, (o) => sendMessage(o.socket, Buffer.alloc(64, 'G'))],
  'a packet without content': [/has no content/, (o) => o.send(new Uint8Array(0))],
  'a message that is too long': [/cut off/, (o) => rawSend(o.socket, 65_537)],
  'another version': [
    /version 7 of the protocol/,
    (o) => sendMessage(o.socket, Uint8Array.of(0x63, 0x75, 7, 1, ...new Array<number>(20).fill(0))),
  ],
  'an unknown kind': [/kind 9 are unknown/, (o) => o.send(one, { kind: 9 as 1 })],
  'a value out of turn': [/of value 5 came where/, (o) => o.send(one, { sequence: 5 })],
  'a value without its beginning': [
    /byte 3 of value 0/,
    (o) => o.send(one, { offset: 3, byteLength: 8 }),
  ],
  'a value that is too large': [
    /it may have/,
    (o) => o.send(half, { byteLength: MAX_VALUE_BYTE_LENGTH + 1 }),
  ],
  'tiny parts': [/too few or too many/, (o) => o.send(one, { byteLength: 1 << 20 })],
  'more than was said': [/too few or too many/, (o) => o.send(one, { byteLength: 3 })],
  'a size that changes': [
    /changed its size/,
    (o) => {
      o.send(half, { byteLength: size });
      o.send(one, { byteLength: size + 1, offset: FRAGMENT_BYTE_LENGTH });
    },
  ],
  'no value at all': [/begins no part/, (o) => o.send(Uint8Array.of(200))],
  'descriptors that no value has': [
    /1 file descriptors came/,
    (o) => {
      const fd = createMemfd('unasked', 0);
      o.send(one, {}, [fd]);
      closeFd(fd);
    },
  ],
  'descriptors in the middle of a value': [
    /in the middle of a value/,
    (o) => {
      const fd = createMemfd('unasked', 0);
      o.send(half, { byteLength: size }, [fd]);
      o.send(new Uint8Array(10), { byteLength: size, offset: FRAGMENT_BYTE_LENGTH }, [fd]);
      closeFd(fd);
    },
  ],
};

for (const [what, [message, send]] of Object.entries(broken)) {
  test(`${what}: the connection ends with an IpcError, after what came before`, async () => {
    using other = new Stranger();
    // The packets that a case sends are of the first value.
    send(other);
    await assert.rejects(other.peer.receive(), ipcError(message));
    assert.equal(other.peer.closed, true);
    await assert.rejects(other.peer.receive(), ipcError(message));
    await assert.rejects(other.peer.send(1), ipcError(message));
    await assert.rejects(async () => {
      for await (const value of other.peer) assert.fail(String(value));
    }, ipcError(message));
    assert.equal(other.receive(), 'end');
  });
}

test('values before a broken one are received before the error', async () => {
  using other = new Stranger();
  other.send(one);
  other.send(Uint8Array.of(200), { sequence: 1 });
  await nextTurn();
  assert.equal(await other.peer.receive(), 1);
  await assert.rejects(other.peer.receive(), ipcError(/begins no part/));
});

test('an end in the middle of a value is the end, and its descriptors are closed', async () => {
  using other = new Stranger();
  const fd = createMemfd('half', 0);
  other.send(one);
  other.send(half, { sequence: 1, byteLength: size }, [fd, fd]);
  closeFd(fd);
  closeFd(other.socket);
  assert.equal(await other.peer.receive(), 1);
  await assert.rejects(other.peer.receive(), closedError(/has closed the connection/));
});

test('an object that cannot be opened fails its value alone, and the next is received', async () => {
  using other = new Stranger();
  const parcel = Uint8Array.of(Tag.parcel, 2, 1, Tag.null);
  const fd = createMemfd('lost', 0);
  other.send(parcel, {}, [fd, fd]);
  other.send(one, { sequence: 1 });
  closeFd(fd);
  await assert.rejects(other.peer.receive(), { name: 'IpcError' });
  assert.equal(await other.peer.receive(), 1);
});

test('whatever bytes come, the process lives and the error is an IpcError', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.uint8Array({ minLength: 1, maxLength: 60 }), { minLength: 1 }),
      async (packets) => {
        using other = new Stranger();
        for (const packet of packets) sendMessage(other.socket, packet);
        await assert.rejects(other.peer.receive(), ipcError(/./));
      },
    ),
    { numRuns: dose(50, 2000) },
  );
});
