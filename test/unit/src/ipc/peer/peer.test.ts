import assert from 'node:assert/strict';
import { fstatSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { closeFd, createMemfd } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { receiveMessage } from '../../../../../ffi/linux/message.ts';
import { processStartTime } from '../../../../../ffi/linux/process.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { spawnPeer } from '../../../../../src/ipc/index.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import {
  FrameKind,
  HEADER_BYTE_LENGTH,
  MAX_QUEUED_VALUES,
} from '../../../../../src/ipc/protocol.ts';
import { SendQueue } from '../../../../../src/ipc/wire/framed-socket.ts';
import { FRAGMENT_BYTE_LENGTH, MAX_UNSENT_VALUES } from '../../../../../src/ipc/wire/limits.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/process-state.ts';
import { runProgram } from '../../emulate.ts';
import { peerPair } from './support.ts';

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => descriptorsReturnTo(before));

const closedError = (message: RegExp) => ({ name: 'ClosedError', message });

describe('Peer', () => {
  test('values arrive whole and in order, including those of many frames', async () => {
    using pair = peerPair();
    const large = new Uint8Array(3 * FRAGMENT_BYTE_LENGTH + 5).map((_, i) => i % 251);
    const values = [
      1,
      { large },
      'x'.repeat(FRAGMENT_BYTE_LENGTH - 6),
      [null],
      { large },
      undefined,
    ];
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

  test('values that have arrived are taken without a turn of the event loop, which turns nevertheless', async () => {
    using pair = peerPair();
    const count = 500;
    let turns = 0;
    const turn = (): void => {
      turns += 1;
      immediate = setImmediate(turn);
    };
    let immediate = setImmediate(turn);
    const sending = Promise.all(Array.from({ length: count }, (_, at) => pair.a.send({ at })));
    let atOnce = 0;
    for (let at = 0; at < count; at += 1) {
      const before = turns;
      assert.deepEqual(await pair.b.receive(), { at });
      if (turns === before) atOnce += 1;
    }
    clearImmediate(immediate);
    await sending;
    assert.ok(atOnce > count / 2, `${atOnce} of ${count} at once`);
    assert.ok(turns >= count / 64, `${turns} turns`);
  });

  test('values that were sent before the end are received before the end is reported', async () => {
    using pair = peerPair();
    for (let i = 0; i < 3; i++) await pair.a.send(i);
    pair.a.close();
    await nextLoopIteration();
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

  test('no value whose send has resolved is lost when the sender closes', async () => {
    using pair = peerPair();
    let sent = 0;
    const sends = Array.from({ length: 500 }, (_, i) =>
      pair.a.send({ i, pad: new Uint8Array(5000) }).then(() => (sent += 1)),
    );
    for (let turns = 0; turns < 50; turns++) await nextLoopIteration();
    pair.a.close();
    await Promise.allSettled(sends);
    assert.ok(sent > MAX_QUEUED_VALUES && sent < 500, `${sent}`);
    let received = 0;
    for await (const value of pair.b) assert.equal((value as { i: number }).i, received++);
    assert.equal(received, sent);
  });

  test('close() ends loops, rejects pending calls, and may be called twice', async () => {
    using pair = peerPair();
    const loop = (async () => {
      for await (const value of pair.a) assert.fail(String(value));
    })();
    const receiving = pair.a.receive();
    pair.a.close();
    pair.a.close();
    await loop;
    await assert.rejects(receiving, closedError(/^this Peer is closed: /));
    await assert.rejects(pair.a.send(1), closedError(/^this Peer is closed: /));
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

  test('a slow reader stops the sender, and neither queues more than its limit', async () => {
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
      for (let turns = 0; turns < 20; turns++) await nextLoopIteration();
    }
    assert.ok(sent >= MAX_QUEUED_VALUES && sent < 2000, `${sent}`);
    for (let i = 0; i < 2000; i++) assert.equal(await pair.b.receive(), i);
    await sending;
  });

  test('sends that nobody awaits are refused before they fill the memory', async () => {
    using pair = peerPair();
    const sends = Array.from({ length: 4 * MAX_UNSENT_VALUES }, (_, i) =>
      pair.a.send({ i, data: new Uint8Array(1000) }),
    );
    for (const result of await Promise.allSettled(sends.slice(-10)))
      assert.match(
        String((result as PromiseRejectedResult).reason),
        /await send\(\) before the next/,
      );
    const all = Promise.allSettled(sends);
    pair.a.close();
    const states = (await all).map(({ status }) => status);
    assert.equal(states.indexOf('rejected'), states.lastIndexOf('fulfilled') + 1);
  });

  test('waits end by signal and by timeout, and later values go to the next caller', async () => {
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

    const large = new Uint8Array(15 << 20);
    await assert.rejects(pair.a.send(large, { timeoutMs: 1 }), { name: 'TimeoutError' });
    assert.deepEqual(await pair.b.receive(), large);
  });

  test('descriptors of queued values stay open, whatever their owner does', async () => {
    const [near, far] = socketPair();
    const outbox = new SendQueue();
    const packet = (byteLength: number): Buffer => Buffer.alloc(HEADER_BYTE_LENGTH + byteLength, 1);
    const waiting: Promise<void>[] = [];
    while (waiting.length === 0) {
      const sending = outbox.post(near, { kind: FrameKind.value, request: 0 }, packet(50_000), []);
      if (sending) waiting.push(sending);
    }
    const fd = createMemfd('sent', 0);
    const { ino } = fstatSync(fd);
    for (let n = 0; n < 2; n++)
      waiting.push(
        outbox.post(near, { kind: FrameKind.value, request: 0 }, packet(1), [
          fd,
          fd,
        ]) as Promise<void>,
      );
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

  test('messages that are never sent end their leases: values, requests and responses', async () => {
    const [near, far] = socketPair();
    const outbox = new SendQueue();
    const packet = Buffer.alloc(HEADER_BYTE_LENGTH + 50_000, 1);
    while (
      !outbox.post(near, { kind: FrameKind.control, request: 0 }, packet, [])?.catch(() => {})
    );
    const dropped: string[] = [];
    for (const kind of ['value', 'request', 'response'] as const)
      outbox
        .post(near, { kind: FrameKind[kind], request: 1 }, packet, [], () => dropped.push(kind))
        ?.catch(() => {});
    outbox.rejectAll(new Error('over'));
    // The newest first: each restores its control entries before later ones.
    assert.deepEqual(dropped, ['response', 'request', 'value']);
    [near, far].forEach(closeFd);
  });

  test('invalid arguments are refused', async () => {
    using pair = peerPair();
    const wrong = (options: unknown) => options as { timeoutMs: number };
    await assert.rejects(pair.a.send(1, wrong({ timeout: 1 })), /unknown option 'timeout'/);
    await assert.rejects(pair.a.receive(wrong({ timeoutMs: -1 })), RangeError);
    await assert.rejects(pair.a.receive(wrong({ signal: 1 })), TypeError);
    await assert.rejects(pair.a.send((() => 1) as unknown), /^TypeError: value is a function/);
    await pair.a.send('still open');
    assert.equal(await pair.b.receive(), 'still open');
  });

  test('a peer that cannot be made leaves nothing open', (t) => {
    const own = { pid: process.pid, uid: 0 };
    const startTime = processStartTime('self') as number;
    {
      // Its process cannot be watched.
      const watched = PeerProcess.fromIdentity(process.pid, startTime);
      const { onGone } = watched;
      t.mock.method(watched, 'onGone', (gone: () => void) => {
        onGone.call(watched, gone)();
        throw new Error('it cannot be watched');
      });
      const [near, far] = socketPair();
      assert.throws(() => new Peer(near, own, { process: watched }), /cannot be watched/);
      assert.equal(receiveMessage(far), 'end');
      closeFd(far);
      assert.equal(openDescriptors(), before);
    }
    // Its socket cannot be: it is a file.
    const watched = PeerProcess.fromIdentity(process.pid, startTime);
    const file = createSealedMemfd('no socket', 4096);
    assert.throws(() => new Peer(file, own, { process: watched }), /./);
    assert.equal(openDescriptors(), before);
  });

  test('a child is started as the options say, and a child that fails to start leaves nothing open', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-child-'));
    try {
      const script = join(folder, 'told.mjs');
      writeFileSync(
        script,
        'console.log(JSON.stringify([process.cwd(), process.execArgv, process.argv.slice(2), process.env.TOLD]))',
      );
      const child = spawnPeer(script, {
        cwd: folder,
        execArgv: ['--no-deprecation'],
        args: ['one', 'two'],
        env: { TOLD: 'three' },
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      let told = '';
      for await (const chunk of child.process.stdout as Readable) told += chunk;
      assert.deepEqual(JSON.parse(told), [
        realpathSync(folder),
        ['--no-deprecation'],
        ['one', 'two'],
        'three',
      ]);
      assert.equal((await child.ended).name, 'ClosedError');
      child.close();
      assert.throws(() => spawnPeer(script, { cwd: 'a\0b' }), { code: 'ERR_INVALID_ARG_VALUE' });
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  const referenced = new URL('../fixtures/referenced.ts', import.meta.url);

  for (const [mode, seen] of [
    ['unreferenced', ''],
    ['unreferenced and closed', ''],
    ['referenced again', 'a value\n'],
    ['referenced again and closed', 'the child has ended with 7\n'],
  ] as const)
    test(`a child and its connection keep this process alive unless they are unreferenced: ${mode}`, () => {
      const { code, stdout, stderr } = runProgram(referenced, [mode]);
      assert.deepEqual({ code, stdout, stderr }, { code: 0, stdout: seen, stderr: '' });
    });
});
