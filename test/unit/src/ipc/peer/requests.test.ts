/** Requests between two ends in this process, and what an end may do that follows no rule. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import fc from 'fast-check';
import { closeFd, createMemfd } from '../../../../../ffi/linux/libc.ts';
import { DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { leases, type RequestContext } from '../../../../../src/ipc/index.ts';
import {
  FrameKind,
  HEADER_BYTE_LENGTH,
  MAX_PENDING_REQUESTS,
  MAX_QUEUED_FDS,
  Tag,
} from '../../../../../src/ipc/protocol.ts';
import { readHeader } from '../../../../../src/ipc/wire/frames.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { trials } from '../../../../support/iterations.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { leavesLeases, peerPair, RawPeer, readMessage, tableOf, unknownObject } from './support.ts';

/** A promise, and what settles it. */
function defer<T = void>() {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<T>((...settlers) => {
    [resolve, reject] = settlers;
  });
  return { promise, resolve, reject };
}
const turns = async (count: number): Promise<void> => {
  for (let turn = 0; turn < count; turn++) await nextLoopIteration();
};

describe('Peer.request and Peer.serve', () => {
  test('an answer is what the handler returns, or its Promise, to the request that it answers', async () => {
    using pair = peerPair();
    const seen: unknown[] = [];
    const serving = pair.b.serve((value) => {
      seen.push(value);
      return value === 'later' ? delay(5).then(() => 'late') : { value };
    });
    const answers = await Promise.all([
      pair.a.request('later'),
      pair.a.request(undefined),
      pair.a.request(new Map([['a', [1, 2, 3]]])),
    ]);
    assert.deepEqual(answers, [
      'late',
      { value: undefined },
      { value: new Map([['a', [1, 2, 3]]]) },
    ]);
    assert.deepEqual(seen.length, 3);
    pair.a.close();
    await serving;
    await assert.rejects(pair.a.request(1), { name: 'ClosedError' });
    await assert.rejects(pair.b.request(1), { name: 'ClosedError' });
    await assert.rejects(
      pair.b.serve(() => 1),
      { name: 'ClosedError' },
    );
  });

  test('both ends ask and serve at the same time, beside loops of values', async () => {
    using pair = peerPair();
    const { a, b } = pair;
    const servings = [a.serve((value) => `a: ${value}`), b.serve((value) => `b: ${value}`)];
    const values: unknown[] = [];
    const looping = (async () => {
      for await (const value of b) values.push(value);
    })();
    const answers = [];
    for (let n = 0; n < 50; n++) {
      answers.push(a.request(n), b.request(n));
      await a.send(n);
    }
    assert.deepEqual(
      await Promise.all(answers),
      Array.from({ length: 100 }, (_, at) => `${at % 2 === 0 ? 'b' : 'a'}: ${at >> 1}`),
    );
    await turns(5);
    assert.deepEqual(
      values,
      Array.from({ length: 50 }, (_, n) => n),
    );
    a.close();
    await Promise.all([...servings, looping]);
  });

  test('requests that come before serve() wait for it, in order, one at a time unless told otherwise', async () => {
    for (const [options, most] of [
      [undefined, 1],
      [{ concurrency: 3 }, 3],
      [{ concurrency: Number.POSITIVE_INFINITY }, 10],
    ] as const) {
      using pair = peerPair();
      const answers = Array.from({ length: 10 }, (_, n) => pair.a.request(n));
      await turns(3);
      let running = 0;
      let highest = 0;
      const order: unknown[] = [];
      const serving = pair.b.serve(async (value) => {
        order.push(value);
        running += 1;
        highest = Math.max(highest, running);
        await turns(20);
        running -= 1;
        return value;
      }, options);
      assert.deepEqual(await Promise.all(answers), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
      assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
      assert.equal(highest, most);
      pair.a.close();
      await serving;
    }
  });

  test('what the handler throws is thrown to its caller: its class, its stack, and the stack of the caller', async () => {
    using pair = peerPair();
    const unsendable = Object.assign(new RangeError('odd'), { cause: () => 1 });
    const thrown: readonly unknown[] = [
      new RangeError('no model', { cause: new TypeError('inner') }),
      'a text',
      undefined,
      unsendable,
      () => 1,
    ];
    const serving = pair.b.serve((at) => {
      throw thrown[at as number];
    });
    const rejections = await Promise.allSettled(thrown.map((_, at) => pair.a.request(at)));
    const [error, text, nothing, odd, fn] = rejections.map((result) =>
      result.status === 'rejected' ? result.reason : assert.fail('it resolved'),
    );
    assert.ok(error instanceof RangeError);
    assert.equal(error.message, 'no model');
    assert.ok(error.cause instanceof TypeError);
    const [, theirs, ours] =
      /^(RangeError: no model\n.*requests\.test.*)\n {4}in process \d+, which served the request\n(.*)$/s.exec(
        error.stack ?? '',
      ) ?? assert.fail(error.stack);
    assert.match(theirs as string, /at .*requests\.test/);
    assert.match(ours as string, /at (async )?Peer\.request/);
    assert.equal(text, 'a text');
    assert.equal(nothing, undefined);
    assert.deepEqual([odd.name, odd.message], ['RangeError', 'odd']);
    assert.equal(fn.message, 'the handler threw a function');
    pair.a.close();
    await serving;
  });

  test('an answer that cannot be sent is thrown to its caller, and serving goes on', async () => {
    using pair = peerPair();
    const serving = pair.b.serve((value) => (value === 'wrong' ? { fn: () => 1 } : value));
    await assert.rejects(pair.a.request('wrong'), {
      name: 'TypeError',
      message: /^value\.fn is a function/,
    });
    assert.equal(await pair.a.request('right'), 'right');
    pair.a.close();
    await serving;
  });

  test('a request that cannot be sent is refused at once, and asks nothing', async () => {
    using pair = peerPair();
    const asked: unknown[] = [];
    const serving = pair.b.serve((value) => asked.push(value));
    await assert.rejects(pair.a.request({ fn: (() => 1) as unknown }), {
      name: 'TypeError',
      message: /^value\.fn is a function/,
    });
    await assert.rejects(pair.a.request(1, { timeoutMs: -1 }), RangeError);
    await assert.rejects(
      pair.a.request(1, { signal: AbortSignal.abort(new Error('before')) }),
      /before/,
    );
    await assert.rejects(pair.a.serve(5 as never), {
      name: 'TypeError',
      message: 'peer.serve takes a handler function, not 5',
    });
    await assert.rejects(
      pair.a.serve(() => 1, { concurrency: 0 }),
      { name: 'RangeError', message: /concurrency/ },
    );
    await assert.rejects(
      pair.b.serve(() => 1),
      { name: 'CuffiError', message: /serve\(\) is already running on this Peer: use one handler/ },
    );
    // However many are refused: they do not count.
    for (let n = 0; n <= MAX_PENDING_REQUESTS; n++)
      await assert.rejects(pair.a.request(Symbol('x') as unknown), TypeError);
    assert.equal(await pair.a.request('sent'), 1);
    assert.deepEqual(asked, ['sent']);
    pair.a.close();
    await serving;
  });

  test('giving up aborts the signal of the handler, and its late answer is dropped', async () => {
    emulate();
    const before = leases.stats().leases.length;
    {
      using pair = peerPair();
      using buffer = DeviceBuffer.allocate(64);
      const contexts: RequestContext[] = [];
      const begun = [defer(), defer(), defer()];
      const finish = defer();
      const serving = pair.b.serve(
        async (_, context) => {
          contexts.push(context);
          begun[contexts.length - 1]?.resolve();
          await finish.promise;
          return buffer;
        },
        { concurrency: 3 },
      );
      const abort = new AbortController();
      const aborted = pair.a.request('aborted', { signal: abort.signal });
      await begun[0]?.promise;
      const late = pair.a.request('late', { timeoutMs: 20 });
      await begun[1]?.promise;
      const kept = pair.a.request('kept', { timeoutMs: 10_000 });
      await begun[2]?.promise;
      const { signal } = contexts[0] as RequestContext;
      assert.equal(signal.aborted, false);
      abort.abort(new Error('enough'));
      await assert.rejects(aborted, /^Error: enough$/);
      await assert.rejects(late, {
        name: 'TimeoutError',
        message: /^a request to process \d+ took longer than 20 ms$/,
      });
      await turns(3);
      assert.equal((signal.reason as DOMException).name, 'AbortError');
      assert.match(String(signal.reason), /process \d+ has canceled this request/);
      // The signal may be asked for afterwards.
      assert.equal(contexts[1]?.signal.aborted, true);
      assert.equal(contexts[2]?.signal.aborted, false);
      finish.resolve();
      const received = (await kept) as DeviceBuffer;
      received.close();
      // What came too late was closed.
      for (let turn = 0; turn < 100 && leases.stats().leases.length > before; turn++)
        await nextLoopIteration();
      assert.equal(leases.stats().leases.length, before);
      pair.a.close();
      await serving;
    }
  });

  test('a request that is given up before a handler takes it never reaches one, and its objects are closed', async () => {
    emulate();
    using pair = peerPair();
    using buffer = DeviceBuffer.allocate(64);
    const before = leases.stats().leases.length;
    const release = defer();
    const asked: unknown[] = [];
    const serving = pair.b.serve(async (value) => {
      asked.push(value);
      await release.promise;
    });
    const first = pair.a.request('first');
    const abort = new AbortController();
    const second = pair.a.request({ buffer }, { signal: abort.signal });
    const third = pair.a.request('third');
    await turns(3);
    assert.equal(leases.stats().leases.length, before + 1);
    abort.abort();
    await assert.rejects(second, { name: 'AbortError' });
    await turns(3);
    release.resolve();
    await Promise.all([first, third]);
    assert.deepEqual(asked, ['first', 'third']);
    await turns(5);
    assert.equal(leases.stats().leases.length, before);
    pair.a.close();
    await serving;
  });

  test('the end of the connection rejects what waits, aborts what runs, and ends serving when that is done', async () => {
    using pair = peerPair();
    const begun = defer<AbortSignal>();
    const finish = defer();
    let isOver = false;
    const serving = pair.b
      .serve(async (_, { signal }) => {
        begun.resolve(signal);
        await finish.promise;
        isOver = true;
      })
      .then(() => assert.equal(isOver, true));
    const running = assert.rejects(pair.a.request('running'), { name: 'ClosedError' });
    const waiting = assert.rejects(pair.a.request('waiting'), { name: 'ClosedError' });
    const signal = await begun.promise;
    pair.a.close();
    await Promise.all([running, waiting]);
    await pair.b.ended;
    assert.equal((signal.reason as Error).name, 'ClosedError');
    finish.resolve();
    await serving;
  });

  test('an answer that was sent before the end is delivered, however long it takes to build', async () => {
    using pair = peerPair();
    const long = Array.from({ length: 200_000 }, (_, n) => ({ n }));
    const sent = defer();
    const serving = pair.b.serve((_, { closeAfter }) => {
      closeAfter({ close: sent.resolve });
      return long;
    });
    const asked = pair.a.request(1);
    await sent.promise;
    pair.b.close();
    assert.equal(((await asked) as unknown[]).length, long.length);
    await pair.a.ended;
    await serving;
  });

  test('close() drops an answer that is still being built', async (t) => {
    // A slice ends whenever the clock is read for the second time.
    let now = performance.now();
    t.mock.method(performance, 'now', () => {
      now += 10;
      return now;
    });
    using other = new RawPeer();
    const asked = other.peer.request(1);
    const count = 60_000;
    const body = Buffer.alloc(4 + count, Tag.null);
    body.set([Tag.array, (count & 127) | 128, ((count >> 7) & 127) | 128, count >> 14]);
    other.send(body, { kind: FrameKind.response, request: 1 });
    // Checked by now, and not built.
    await turns(60);
    let isSettled = false;
    const dropped = assert.rejects(asked, { name: 'ClosedError' }).then(() => {
      isSettled = true;
    });
    await turns(1);
    assert.equal(isSettled, false);
    other.peer.close();
    await dropped;
  });

  test('nothing more is read while too much is answered at once', async (t) => {
    let now = performance.now();
    t.mock.method(performance, 'now', () => {
      now += 10;
      return now;
    });
    using pair = peerPair();
    const order: string[] = [];
    const long = new Array<string>(200_000).fill('x'.repeat(40));
    const sent = [defer(), defer()];
    const serving = pair.b.serve(
      (n, { closeAfter }) => {
        closeAfter({ close: () => sent[n as number]?.resolve() });
        return long;
      },
      { concurrency: 2 },
    );
    const note = (what: string) => (): void => {
      order.push(what);
    };
    const answers = [0, 1].map((n) => pair.a.request(n).then(note(`answer ${n}`)));
    const value = pair.a.receive().then(note('value'));
    await Promise.all(sent.map(({ promise }) => promise));
    await pair.b.send('behind both answers');
    await Promise.all([...answers, value]);
    assert.deepEqual(order, ['answer 0', 'answer 1', 'value']);
    pair.a.close();
    await serving;
  });

  test('the signal of serve() ends it when its handlers are done; later requests wait for the next', async () => {
    using pair = peerPair();
    const finish = defer();
    const stop = new AbortController();
    const first = pair.b.serve(
      async (value) => {
        await finish.promise;
        return `first: ${value}`;
      },
      { signal: stop.signal },
    );
    const answers = [pair.a.request(1), pair.a.request(2)];
    await turns(3);
    stop.abort(new Error('over'));
    let isOver = false;
    const stopped = assert.rejects(first, /^Error: over$/).then(() => {
      isOver = true;
    });
    await turns(5);
    assert.equal(isOver, false);
    finish.resolve();
    await stopped;
    const second = new AbortController();
    const idle = pair.b.serve((value) => `second: ${value}`, { signal: second.signal });
    assert.deepEqual(await Promise.all(answers), ['first: 1', 'second: 2']);
    // One that waits for a request takes none any more, either.
    second.abort(new Error('nor here'));
    await assert.rejects(idle, /nor here/);
    const third = pair.a.request(3);
    await turns(3);
    const last = pair.b.serve((value) => `last: ${value}`);
    assert.equal(await third, 'last: 3');
    pair.a.close();
    await last;
  });

  test('closeAfter closes what was made for the answer once that is sent, or the handler has failed', async () => {
    emulate();
    using pair = peerPair();
    using stream = Stream.create();
    const made: DeviceBuffer[] = [];
    const serving = pair.b.serve(
      (value, { closeAfter }) => {
        const buffer = closeAfter(DeviceBuffer.allocate(64));
        made.push(buffer);
        if (value === 'fail') throw new Error('failed');
        return buffer.closed;
      },
      { stream },
    );
    assert.equal(await pair.a.request('make'), false);
    await turns(2);
    assert.equal(made[0]?.closed, true);
    await assert.rejects(pair.a.request('fail'), /^Error: failed$/);
    await turns(2);
    assert.equal(made[1]?.closed, true);
    pair.a.close();
    await serving;
    using other = peerPair();
    const wrong = other.b.serve((_, { closeAfter }) => closeAfter({} as never));
    await assert.rejects(other.a.request(1), {
      name: 'TypeError',
      message: 'closeAfter takes an object with close(), such as a buffer, not an Object',
    });
    other.a.close();
    await wrong;
  });

  test('serve() ends, and closes what was made for an answer, only when that is sent', async () => {
    for (const what of ['answer', 'failure']) {
      using other = new RawPeer();
      const stop = new AbortController();
      const done: string[] = [];
      // More than a socket takes that nobody reads.
      const long = 'x'.repeat(4 << 20);
      const serving = other.peer.serve(
        (_, { closeAfter }) => {
          closeAfter({ close: () => done.push('closed') });
          if (what === 'failure') throw Object.assign(new Error('failed'), { long });
          return long;
        },
        { signal: stop.signal },
      );
      const ended = assert.rejects(serving, /^Error: stopped$/).then(() => done.push('ended'));
      other.send(Uint8Array.of(Tag.null), { kind: FrameKind.request, request: 1 });
      await turns(20);
      stop.abort(new Error('stopped'));
      await turns(20);
      if (what === 'answer') assert.deepEqual(done, []);
      for (let reads = 0; done.length < 2 && reads < 10_000; reads += 1)
        if (other.receive() === undefined) await nextLoopIteration();
      await ended;
      assert.deepEqual(done, ['closed', 'ended']);
    }
  });

  test('an object of a request that cannot be opened fails that request', async () => {
    emulate();
    using pair = peerPair();
    const buffer = DeviceBuffer.allocate(64);
    const serving = pair.b.serve((value) => value);
    const back = pair.a.request({ layers: [buffer] });
    buffer.close();
    // It comes back to its maker, who has closed it.
    await assert.rejects(back, {
      name: 'IpcError',
      message: /value\.layers\[0\] is an object of this process, which came back/,
    });
    assert.equal(await pair.a.request(1), 1);
    pair.a.close();
    await serving;
  });

  test('at most 1024 requests, 64 MiB and 64 file descriptors wait for their answers', async (t) => {
    using pair = peerPair();
    const error = (message: RegExp) => ({ name: 'IpcError', code: 'limit-exceeded', message });
    const warned = t.mock.method(process, 'emitWarning', () => {});
    const abort = new AbortController();
    const { signal } = abort;
    const waiting: Promise<unknown>[] = [];
    for (let n = 0; n < MAX_PENDING_REQUESTS; n++) {
      const asked = pair.a.request(n, { signal });
      asked.catch(() => {});
      waiting.push(asked);
      // The kernel has room for some hundred messages.
      if (n % 100 === 99) await turns(3);
    }
    await assert.rejects(
      pair.a.request('one more'),
      error(/^1024 requests are already pending: await some of them first$/),
    );
    // Many calls may share a signal.
    assert.deepEqual(
      warned.mock.calls.map(({ arguments: args }) => String(args[0])),
      [],
    );
    // Giving them up makes no room: the other end has them still.
    abort.abort();
    await Promise.allSettled(waiting);
    await assert.rejects(pair.a.request('one more'), error(/^1024 requests/));
    const serving = pair.b.serve(() => assert.fail('nobody asks'));
    for (let turn = 0; turn < 200; turn++) await nextLoopIteration();
    const next = pair.a.request('and now');
    await assert.rejects(next, /nobody asks/);
    pair.a.close();
    await serving;

    using large = peerPair();
    const bytes = new Uint8Array((16 << 20) - 64);
    const four = Array.from({ length: 4 }, () => large.a.request(bytes));
    await assert.rejects(
      large.a.request(bytes),
      error(/^4 requests of 671\d+ bytes \(64 MiB\) and 0 file descriptors are already pending/),
    );
    const echo = large.b.serve((value) => (value as Uint8Array).byteLength);
    assert.deepEqual(await Promise.all(four), new Array(4).fill(bytes.byteLength));
    assert.equal(await large.a.request(bytes), bytes.byteLength);
    large.a.close();
    await echo;
  });
});

describe('an end that follows no rule', () => {
  const one = Uint8Array.of(Tag.true);
  const ends = (message: RegExp) => ({ name: 'IpcError', message });

  test('a request number that is in use ends the connection', async () => {
    using other = new RawPeer();
    other.send(one, { kind: FrameKind.request, request: 5 });
    other.send(one, { kind: FrameKind.request, request: 5, sequence: 1 });
    await assert.rejects(other.peer.receive(), ends(/request 5 came twice/));
  });

  test('an answer that nobody asked for, or a second one, ends the connection', async () => {
    for (const kind of [FrameKind.response, FrameKind.failure]) {
      using other = new RawPeer();
      const asked = other.peer.request('question');
      other.send(one, { kind, request: 1 });
      if (kind === FrameKind.response) assert.equal(await asked, true);
      else
        await asked.then(
          () => assert.fail('it resolved'),
          (thrown) => assert.equal(thrown, true),
        );
      other.send(one, { kind, request: 1, sequence: 1 });
      await assert.rejects(
        other.peer.receive(),
        ends(/received an answer to request \d+, which is not pending/),
      );
    }
  });

  test('a cancellation of nothing is ignored; one with a value or objects ends the connection', async () => {
    using other = new RawPeer();
    other.send(Uint8Array.of(Tag.null), { kind: FrameKind.cancellation, request: 9 });
    other.send(one, { sequence: 1 });
    assert.equal(await other.peer.receive(), true);
    const before = openDescriptors();
    const fd = createMemfd('sent', 0);
    const withObject = [Tag.gpuObject, ...tableOf(0, { ...unknownObject, fdCount: 1 })];
    for (const [body, fds] of [
      [Uint8Array.of(Tag.array, 1, Tag.null), []],
      [Uint8Array.from(withObject), [fd]],
    ] as const) {
      using wrong = new RawPeer();
      wrong.send(body, { kind: FrameKind.cancellation, request: 9 }, fds);
      await assert.rejects(wrong.peer.receive(), ends(/a cancellation came with a value/));
    }
    closeFd(fd);
    await turns(3);
    assert.ok(openDescriptors() <= before, `${openDescriptors()} descriptors after ${before}`);
  });

  test('requests beyond what may wait end the connection, and their descriptors are closed', async () => {
    {
      using other = new RawPeer();
      for (let n = 0; n <= MAX_PENDING_REQUESTS; n++) {
        while (!other.send(one, { kind: FrameKind.request, request: n + 1, sequence: n }))
          await nextLoopIteration();
      }
      await assert.rejects(other.peer.receive(), {
        ...ends(/too many requests are pending: 1024 requests of /),
        code: 'limit-exceeded',
      });
    }
    const before = openDescriptors();
    {
      using other = new RawPeer();
      const fd = createMemfd('sent', 0);
      const object = { ...unknownObject, fdCount: MAX_QUEUED_FDS };
      const body = Uint8Array.from([Tag.gpuObject, ...tableOf(0, object)]);
      const fds = new Array<number>(MAX_QUEUED_FDS).fill(fd);
      other.send(body, { kind: FrameKind.request, request: 1 }, fds);
      const another = [Tag.gpuObject, ...tableOf(1, { ...unknownObject, fdCount: 1 })];
      other.send(Uint8Array.from(another), { kind: FrameKind.request, request: 2, sequence: 1 }, [
        fd,
      ]);
      await assert.rejects(
        other.peer.receive(),
        ends(/too many requests are pending: 1 requests of /),
      );
      closeFd(fd);
    }
    await turns(3);
    assert.ok(openDescriptors() <= before, `${openDescriptors()} descriptors after ${before}`);
  });

  test('a frame of a request without a number, or of no kind, ends the connection', async () => {
    for (const [kind, request, message] of [
      [FrameKind.request, 0, /a frame of kind 5 has the request number 0/],
      [FrameKind.cancellation, 0, /a frame of kind 8 has the request number 0/],
      [FrameKind.value, 3, /a frame of kind 1 has the request number 3/],
      [99, 1, /unknown frame kind 99/],
    ] as const) {
      using other = new RawPeer();
      other.send(one, { kind: kind as FrameKind, request });
      await assert.rejects(other.peer.receive(), ends(message));
    }
  });

  test('any order of frames is answered, or ends the connection with an IpcError; no descriptor stays open', async () => {
    leavesLeases();
    emulate();
    using buffer = DeviceBuffer.allocate(64);
    {
      // What the first buffer that is sent leaves for all later ones.
      using first = new RawPeer();
      await first.peer.send(buffer);
    }
    await turns(3);
    const before = openDescriptors();
    const body = fc.constantFrom(
      [Tag.null],
      [Tag.true],
      [Tag.array, 1, Tag.null],
      [Tag.gpuObject, ...tableOf(0, unknownObject)],
      [Tag.error, 1, 0],
      [Tag.map, 1, Tag.null, Tag.null],
      [99],
    );
    const frame = fc.record({
      kind: fc.integer({ min: 1, max: 9 }).filter((kind) => kind !== FrameKind.control),
      request: fc.integer({ min: 0, max: 4 }),
      body,
    });
    const isExpected = (error: unknown): void =>
      assert.ok(
        !(error instanceof Error) || /^(IpcError|ClosedError|TypeError)$/.test(error.name),
        String(error),
      );
    await fc.assert(
      fc.asyncProperty(fc.array(frame, { minLength: 1, maxLength: 12 }), async (frames) => {
        using other = new RawPeer();
        const { peer } = other;
        const calls: Promise<unknown>[] = [
          peer.serve((value) => ({ value, buffer }), { concurrency: 2 }),
          peer.request(1),
          peer.request({ buffer }),
          peer.receive(),
        ];
        const settled = Promise.all(calls.map((call) => call.catch(isExpected)));
        for (const [sequence, { kind, request, body: bytes }] of frames.entries())
          other.send(Uint8Array.from(bytes), { kind: kind as FrameKind, request, sequence });
        await turns(4);
        peer.close();
        closeFd(other.socket);
        await settled;
      }),
      trials(60, 5_000),
    );
    for (let turn = 0; turn < 200 && openDescriptors() > before; turn++) await nextLoopIteration();
    assert.ok(openDescriptors() <= before, `${openDescriptors()} descriptors after ${before}`);
  });

  test('every request has one answer, also if it was given up', async () => {
    using other = new RawPeer();
    const finish = defer();
    const serving = other.peer.serve(async (value) => {
      await finish.promise;
      return value;
    });
    for (let n = 0; n < 3; n++)
      other.send(one, { kind: FrameKind.request, request: n + 1, sequence: n });
    other.send(Uint8Array.of(Tag.null), { kind: FrameKind.cancellation, request: 1, sequence: 3 });
    other.send(Uint8Array.of(Tag.null), { kind: FrameKind.cancellation, request: 2, sequence: 4 });
    await turns(3);
    finish.resolve();
    await turns(10);
    const answers: unknown[] = [];
    for (let next = other.receive(); typeof next === 'object'; next = other.receive()) {
      const { kind, request } = readHeader(next.data);
      if (kind === FrameKind.control) continue;
      const { value } = readMessage(next.data.subarray(HEADER_BYTE_LENGTH));
      const content = value.buildAll([]);
      answers.push([kind, request, content instanceof Error ? content.name : content]);
    }
    assert.deepEqual(answers, [
      [FrameKind.response, 1, true],
      [FrameKind.failure, 2, 'AbortError'],
      [FrameKind.response, 3, true],
    ]);
    other.peer.close();
    await serving;
  });
});
