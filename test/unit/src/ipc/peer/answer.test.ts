/** `peer.open` of an end that answers as it likes, and questions of one that asks as it likes. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { closeFd, isShortage, SystemError } from '../../../../../ffi/linux/libc.ts';
import {
  CudaEvent,
  type DeviceArray,
  DeviceBuffer,
  float32,
  MemoryPool,
  toDeviceSync,
} from '../../../../../src/index.ts';
import { ByteWriter } from '../../../../../src/ipc/bytes.ts';
import type { IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { exportIpc, getIpcHandle } from '../../../../../src/ipc/index.ts';
import { ExportTable } from '../../../../../src/ipc/lease/export-table.ts';
import {
  ErrorField,
  FrameKind,
  HEADER_BYTE_LENGTH,
  MAX_VERIFICATION_BYTE_LENGTH,
  Tag,
} from '../../../../../src/ipc/protocol.ts';
import { encodeFields, withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { readControlMessage } from '../../../../../src/ipc/wire/control-block.ts';
import { readHeader } from '../../../../../src/ipc/wire/frames.ts';
import { encodeValue } from '../../../../../src/ipc/wire/value-encoder.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { type Entry, leavesLeases, peerPair, RawPeer, readMessage, tableOf } from './support.ts';

/** Runs `use`, and waits until this process has at most as many descriptors open as before. */
async function leavingNone(use: () => Promise<void>): Promise<void> {
  const before = openDescriptors();
  await use();
  // The ends of sockets are seen in the next turns.
  for (let turn = 0; turn < 50 && openDescriptors() > before; turn++) await nextLoopIteration();
  assert.ok(openDescriptors() <= before, `${openDescriptors()} descriptors after ${before}`);
}

const length = (value: number): readonly number[] =>
  value < 128 ? [value] : [(value & 127) | 128, ...length(value >> 7)];
const int32 = (value: number): Buffer =>
  Buffer.from([Tag.int32, ...new Uint8Array(Int32Array.of(value).buffer)]);
const text = (value: string): Buffer =>
  Buffer.concat([Buffer.from([Tag.latin1, ...length(value.length)]), Buffer.from(value, 'latin1')]);
/** An object of an answer. */
const entry = (descriptor: IpcDescriptor, fdCount = 0): Entry => ({
  bytes: [...encodeFields(descriptor)],
  fdCount,
});
/** An error as an answer, with a message and whatever else is given. */
const failure = (message: string, code = 'exporter-gone'): Buffer =>
  Buffer.concat([
    Buffer.of(Tag.error, 0, ErrorField.message | ErrorField.code),
    text(message),
    text(code),
  ]);
/** The place of an object. */
const place = Buffer.of(Tag.gpuObject);
const list = (...parts: readonly Uint8Array[]): Buffer =>
  Buffer.concat([Buffer.of(Tag.array, parts.length), ...parts]);

/** The kind and the request number of each packet that has come. */
function packets(other: RawPeer): (readonly [kind: number, request: number])[] {
  const found: (readonly [number, number])[] = [];
  for (let next = other.receive(); typeof next === 'object'; next = other.receive()) {
    const { kind, request } = readHeader(next.data);
    found.push([kind, request]);
  }
  return found;
}

/** One whose answers are made here. */
class Answerer extends RawPeer {
  #sequence = 0;
  #number = 0;
  #leases = 0;
  readonly #returned: number[] = [];

  /** Replies to the next question with an object. */
  answer(descriptor: IpcDescriptor, fds: readonly number[] = []): void {
    this.#number += 1;
    this.answerWith(this.#number, place, [entry(descriptor, fds.length)], fds);
  }

  /** Replies to the next question with an error. */
  refuse(value: Uint8Array): void {
    this.#number += 1;
    this.answerWith(this.#number, value, [], [], FrameKind.failure);
  }

  /** Answers any question with anything. */
  answerWith(
    request: number,
    value: Uint8Array,
    objects: readonly Entry[] = [],
    fds: readonly number[] = [],
    kind: FrameKind = FrameKind.response,
  ): void {
    const table = objects.length > 0 ? tableOf(this.#leases, ...objects) : [];
    this.#leases += objects.length;
    const body = Buffer.concat([value, Buffer.from(table)]);
    this.send(body, { kind, sequence: this.#sequence, request }, fds);
    this.#sequence += 1;
  }

  /** Waits until so many leases were returned. */
  async returns(count: number): Promise<readonly number[]> {
    for (let turn = 0; turn < 100 && (await this.returned()).length < count; turn++);
    return this.#returned;
  }

  /** The leases that were returned so far. */
  async returned(): Promise<readonly number[]> {
    await nextLoopIteration();
    for (let message = this.receive(); typeof message === 'object'; message = this.receive()) {
      message.fds.forEach(closeFd);
      const bytes = message.data.subarray(HEADER_BYTE_LENGTH);
      const isNews = message.data[3] === FrameKind.control;
      // Questions say as well what was returned before.
      const { released } = isNews
        ? readControlMessage(bytes, message.fds.length)
        : readMessage(bytes, message.fds.length).control;
      this.#returned.push(...released.filter(({ isFinal }) => isFinal).map(({ lease }) => lease));
    }
    return this.#returned;
  }
}

describe('Peer.open', () => {
  test('a response with another object rejects only that open: nothing is opened, and the lease is released', async () => {
    emulate();
    const pool = MemoryPool.create({ maxSize: 4 << 20, shareable: true });
    const ofPool = exportIpc(pool);
    const pooled = exportIpc(pool.allocate(4096));
    using buffer = DeviceBuffer.allocate(4096);
    using other = DeviceBuffer.allocate(4096);
    using event = CudaEvent.create({ interprocess: true });
    using array = toDeviceSync(new Float32Array(1024));
    const asked = getIpcHandle(buffer);
    using handle = getIpcHandle(array);
    const ofArray = { ...handle.toJSON() };
    const seal = (fields: object): IpcDescriptor => withChecksum(fields as never);
    const { layout: _, ...bytesOfArray } = ofArray;
    const cases: readonly (readonly [
      what: string,
      asked: IpcDescriptor,
      answer: IpcDescriptor,
      message: RegExp,
      fds?: readonly number[],
    ])[] = [
      ['fewer bytes', asked, getIpcHandle(buffer.subarray(0, 64)), /byteLength is 64, not 4096/],
      ['other bytes', asked, getIpcHandle(other), /its handle differs/],
      [
        'a part of an array',
        ofArray,
        seal({ ...bytesOfArray, byteLength: 64 }),
        /byteLength is 64, not 4096/,
      ],
      ['an array', asked, seal({ ...asked, layout: ofArray.layout }), /an array, not bytes/],
      ['an event', asked, getIpcHandle(event), /kind is event, not legacy/],
      ['memory for an event', getIpcHandle(event), asked, /kind is legacy, not event/],
      ['memory of a pool', asked, pooled.descriptor, /kind is pool, not legacy/, pooled.fds],
      [
        'a pool for memory of it',
        pooled.descriptor,
        ofPool.descriptor,
        /its handle differs/,
        ofPool.fds,
      ],
      ['what another process made', asked, seal({ ...asked, startTime: 7 }), /startTime is 7/],
      ['a later allocation', asked, seal({ ...asked, bufferId: 2 ** 40 }), /bufferId is/],
      [
        'memory that may be written to',
        seal({ ...asked, access: 'read' }),
        asked,
        /access is read-write, not read/,
      ],
    ];
    await leavingNone(async () => {
      using answerer = new Answerer();
      for (const [what, question, answer, message, fds = []] of cases) {
        const opening = answerer.peer.open(question);
        answerer.answer(answer, fds);
        await assert.rejects(
          opening,
          (error: Error) =>
            error.name === 'IpcError' &&
            /answered with another object than the one/.test(error.message) &&
            message.test(error.message),
          what,
        );
      }
      assert.deepEqual(await answerer.returned(), [...cases.keys()]);
      // The connection goes on, and so does what is as it was asked about.
      const opening = answerer.peer.open(ofArray);
      answerer.answer(seal(bytesOfArray));
      const opened = (await opening) as DeviceArray;
      assert.deepEqual(
        [opened.dtype, opened.shape, opened.extents],
        [float32, [1024], array.extents],
      );
      opened.close();
    });
    pool.close({ buffers: true });
  });

  test('an answer that is neither an object nor an error ends the connection, and the caller gets that IpcError', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    const object = entry(asked);
    const record = (...keys: readonly string[]): Buffer =>
      Buffer.concat([
        Buffer.of(Tag.object, keys.length),
        ...keys.flatMap((key) => [text(key), Buffer.of(Tag.null)]),
      ]);
    const withCause = Buffer.concat([
      Buffer.of(Tag.error, 0, ErrorField.message | ErrorField.cause),
      text('gone'),
      place,
    ]);
    const long = 'x'.repeat(MAX_VERIFICATION_BYTE_LENGTH);
    const { response, failure: failed, unserved } = FrameKind;
    type Answer = readonly [
      kind: FrameKind,
      value: Buffer,
      objects?: readonly Entry[],
      request?: number,
    ];
    const answers: Readonly<Record<string, Answer>> = {
      'what cannot be text': [response, record('toString', 'valueOf')],
      nothing: [response, Buffer.of(Tag.undefined)],
      'a number': [response, int32(1)],
      'a string': [response, text('gone')],
      'a list': [response, list(text('gone'))],
      'an error that is not a failure': [response, failure('gone')],
      'an object in a list': [response, list(place), [object]],
      'two objects': [response, list(place, place), [object, object]],
      'an object and a reason': [response, list(place, text('gone')), [object]],
      'a number that nobody has': [response, place, [object], 7],
      'a failure with a string': [failed, text('gone')],
      'a failure with what looks like an error': [failed, record('message', 'code')],
      'a failure with an object': [failed, place, [object]],
      'a failure with an object in its error': [failed, withCause, [object]],
      'a failure with a number that nobody has': [failed, failure('gone'), [], 7],
      'a failure that is too long': [failed, failure(long)],
      'a refusal for lack of a handler': [unserved, Buffer.of(Tag.null)],
    };
    for (const [what, [kind, value, objects, request = 1]] of Object.entries(answers))
      await leavingNone(async () => {
        using answerer = new Answerer();
        const opening = answerer.peer.open(asked, { timeoutMs: 10_000 });
        answerer.answerWith(request, value, objects, [], kind);
        await assert.rejects(opening, { name: 'IpcError', message: /answer|question/ }, what);
        const reason = await answerer.peer.ended;
        assert.deepEqual([reason.name, answerer.peer.closed], ['IpcError', true], what);
      });
  });

  test('an object that comes for an aborted open is closed, and its lease released', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using answerer = new Answerer();
    const stop = new AbortController();
    const opening = answerer.peer.open(asked, { signal: stop.signal });
    stop.abort(new Error('enough'));
    await assert.rejects(opening, /enough/);
    answerer.answer(asked);
    assert.deepEqual(await answerer.returns(1), [0]);
    assert.equal(buffer.closed, false);
    // The next one is answered.
    const next = answerer.peer.open(asked);
    answerer.answer(asked);
    const opened = (await next) as DeviceBuffer;
    assert.equal(opened.address, buffer.address);
    opened.close();
    assert.deepEqual(await answerer.returns(2), [0, 1]);
  });

  test('an open that is aborted, or takes too long, is given up with the number of its request', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using answerer = new Answerer();
    const stop = new AbortController();
    const aborted = answerer.peer.open(asked, { signal: stop.signal });
    const late = answerer.peer.open(asked, { timeoutMs: 0 });
    stop.abort(new Error('enough'));
    await assert.rejects(aborted, /enough/);
    await assert.rejects(late, {
      name: 'TimeoutError',
      message: /^asking process \d+ whether the object still exists took longer/,
    });
    assert.deepEqual(packets(answerer), [
      [FrameKind.verification, 1],
      [FrameKind.verification, 2],
      [FrameKind.cancellation, 1],
      [FrameKind.cancellation, 2],
    ]);
    // Their answers still come, and each only once.
    answerer.answer(asked);
    answerer.refuse(failure('gone'));
    await answerer.returns(1);
    answerer.answerWith(1, place, [entry(asked)]);
    await assert.rejects(
      answerer.peer.receive({ timeoutMs: 10_000 }),
      /received an answer to request \d+, which is not pending/,
    );
  });

  test('has a number of its own among requests, and each answer is for its number', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using answerer = new Answerer();
    const { peer } = answerer;
    const calls = [peer.request(1), peer.open(asked), peer.request(2), peer.open(asked)];
    const { request, verification, response, failure: failed } = FrameKind;
    assert.deepEqual(packets(answerer), [
      [request, 1],
      [verification, 2],
      [request, 3],
      [verification, 4],
    ]);
    const thrown = assert.rejects(calls[2] as Promise<unknown>, { message: 'thrown there' });
    const refused = assert.rejects(calls[3] as Promise<unknown>, { code: 'exporter-gone' });
    answerer.answerWith(4, failure('gone'), [], [], failed);
    answerer.answerWith(3, failure('thrown there', 'x'), [], [], failed);
    answerer.answerWith(2, place, [entry(asked)]);
    answerer.answerWith(1, text('answer'), [], [], response);
    await Promise.all([thrown, refused]);
    const opened = (await calls[1]) as DeviceBuffer;
    assert.deepEqual([opened.address, await calls[0]], [buffer.address, 'answer']);
    opened.close();
    // What is right for the one kind of request is not for the other.
    const opening = peer.open(asked);
    answerer.answerWith(5, text('answer'));
    await assert.rejects(opening, /the other end sent an invalid answer/);
  });

  test('a descriptor of a process other than the peer is refused at once', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using answerer = new Answerer();
    const other = withChecksum({ ...getIpcHandle(buffer), pid: process.pid + 1 });
    await assert.rejects(answerer.peer.open(other, { timeoutMs: 10_000 }), {
      name: 'IpcError',
      message: `the descriptor comes from process ${process.pid + 1}, not from process ${process.pid}`,
    });
    // Nothing was asked.
    assert.equal(answerer.receive(), undefined);
  });

  test('the error of a refusal is shown as text of limited length, with a code that cuffi has for it', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using answerer = new Answerer();
    const message = `gone\u001b[2J${'x'.repeat(20_000)}`;
    const all = Buffer.concat([
      Buffer.of(Tag.error, 1, 2 * ErrorField.cause - 1),
      ...['PeerGoneError', message, 'at evil', 'peer-gone', 'cause'].map(text),
    ]);
    for (const [value, code] of [
      [failure(message), 'exporter-gone'],
      [failure(message, 'not-supported'), 'not-supported'],
      [failure(message, 'limit-exceeded'), 'limit-exceeded'],
      [failure(message, 'version-mismatch'), 'exporter-gone'],
      [failure(message, '__proto__'), 'exporter-gone'],
      [all, 'exporter-gone'],
      [Buffer.of(Tag.error, 0, 0), 'exporter-gone'],
    ] as const) {
      const opening = answerer.peer.open(getIpcHandle(buffer));
      answerer.refuse(value);
      await assert.rejects(opening, (error: Error & { code?: string }) => {
        assert.deepEqual([error.name, error.code], ['IpcError', code]);
        assert.match(error.message, /^process \d+ does not confirm this descriptor: (gone|$)/);
        assert.ok(error.message.length < 1000, `${error.message.length}`);
        assert.ok(!`${error.message}${error.stack}`.includes('\u001b'));
        assert.ok(!`${error.stack}`.includes('at evil'));
        return true;
      });
    }
  });

  test('a second answer to the same request ends the connection', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using answerer = new Answerer();
    const opening = answerer.peer.open(getIpcHandle(buffer), { timeoutMs: 10_000 });
    answerer.refuse(failure('gone'));
    await assert.rejects(opening, { name: 'IpcError', message: /does not confirm .*: gone$/ });
    answerer.answerWith(1, failure('gone'), [], [], FrameKind.failure);
    const reason = await answerer.peer.receive({ timeoutMs: 10_000 }).catch(String);
    assert.match(
      String(reason),
      /^IpcError: .*received an answer to request \d+, which is not pending$/,
    );
  });

  test('a different object with the same handle is not sent', async () => {
    using pair = peerPair();
    using buffer = DeviceBuffer.allocate(4096);
    const asked = getIpcHandle(buffer);
    const { bufferId } = asked as { readonly bufferId?: number };
    assert.ok(bufferId !== undefined);
    // As of memory that was freed, whose handle the driver gave to this.
    const earlier = withChecksum({ ...asked, bufferId: bufferId + 2 ** 20 } as never);
    await assert.rejects(pair.a.open(earlier, { timeoutMs: 10_000 }), {
      name: 'IpcError',
      code: 'exporter-gone',
      message: /does not confirm this descriptor: it now names another object$/,
    });
    (await pair.a.open(asked)).close();
  });

  test('at most 1024 requests wait for their answers, those for a handler included', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using other = new RawPeer();
    const { peer } = other;
    const calls = Array.from({ length: 1024 }, (_, n) =>
      (n % 2 ? peer.open(asked) : peer.request(n)).catch((error: Error) => error.name),
    );
    for (const call of [() => peer.open(asked), () => peer.request(1)])
      await assert.rejects(call, {
        name: 'IpcError',
        code: 'limit-exceeded',
        message: '1024 requests are already pending: await some of them first',
      });
    peer.close();
    assert.deepEqual(new Set(await Promise.all(calls)), new Set(['ClosedError']));
  });

  test('requests that could not be sent are dropped, however many there are', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using other = new RawPeer();
    const sends = Array.from({ length: 3000 }, () => other.peer.send('x'.repeat(2000)));
    for (const send of sends) send.catch(() => {});
    // More than may be open at a time.
    for (let n = 0; n < 1025; n++)
      await assert.rejects(other.peer.open(asked), {
        name: 'IpcError',
        message: /are already waiting to be sent: await send\(\) before the next one$/,
      });
  });
});

describe('a question about a descriptor', () => {
  /** Sends questions, requests and cancellations. */
  class Asker extends RawPeer {
    #sequence = 0;

    ask(kind: FrameKind, request: number, value: Uint8Array): void {
      assert.ok(this.send(value, { kind, request, sequence: this.#sequence }));
      this.#sequence += 1;
    }

    /** The next answer: its kind, number and value, in which an object is `an object`. */
    async answer(): Promise<readonly [kind: number, request: number, value: unknown]> {
      for (;;) {
        const next = this.receive();
        if (typeof next !== 'object') {
          await nextLoopIteration();
          continue;
        }
        next.fds.forEach(closeFd);
        const { kind, request } = readHeader(next.data);
        if (kind === FrameKind.control) continue;
        const message = readMessage(next.data.subarray(HEADER_BYTE_LENGTH), next.fds.length);
        const places = message.objects.entries.map(() => 'an object' as never);
        return [kind, request, message.value.buildAll(places)];
      }
    }
  }
  const encoded = (value: unknown): Uint8Array =>
    ByteWriter.use(0, (writer) => {
      encodeValue(writer, value, { includes: (_): _ is never => false, alternativeTo: () => '' });
      return Uint8Array.from(writer.written);
    });
  const { verification, request, response, failure: failed, cancellation } = FrameKind;

  test('is answered by cuffi and reaches no handler; its descriptor as a request reaches only the handler', async () => {
    leavesLeases();
    using buffer = DeviceBuffer.allocate(64);
    const question = encoded({ ...getIpcHandle(buffer) });
    using asker = new Asker();
    const seen: unknown[] = [];
    const serving = asker.peer.serve((value) => {
      seen.push((value as IpcDescriptor).kind);
      return 'handled';
    });
    asker.ask(verification, 1, question);
    assert.deepEqual(await asker.answer(), [response, 1, 'an object']);
    asker.ask(verification, 2, encoded('anything'));
    const [kind, number, error] = await asker.answer();
    assert.deepEqual(
      [kind, number, (error as { code?: string }).code, (error as Error).stack],
      [failed, 2, 'exporter-gone', undefined],
    );
    assert.deepEqual(seen, []);
    asker.ask(request, 3, question);
    assert.deepEqual([await asker.answer(), seen], [[response, 3, 'handled'], ['legacy']]);
    asker.peer.close();
    await serving;
  });

  test('is answered where nobody serves, where requests are refused, and beside handlers that run', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using pair = peerPair();
    const asked = getIpcHandle(buffer);
    const open = async (): Promise<void> => ((await pair.a.open(asked)) as DeviceBuffer).close();
    await open();
    const receiving = pair.b.receive();
    await assert.rejects(pair.a.request(1), { code: 'not-served' });
    await open();
    await pair.a.send(1);
    await receiving;
    let finish = (): void => {};
    const serving = pair.b.serve(() => new Promise<void>((resolve) => (finish = resolve)));
    const requests = [pair.a.request(1), pair.a.request(2)];
    await open();
    for (const each of requests) {
      finish();
      await nextLoopIteration();
      finish();
      await each;
    }
    pair.a.close();
    await serving;
  });

  test('takes a number and a place among the pending requests, and is answered once though it is given up', async () => {
    leavesLeases();
    using buffer = DeviceBuffer.allocate(64);
    const question = encoded({ ...getIpcHandle(buffer) });
    using asker = new Asker();
    asker.ask(verification, 1, question);
    asker.ask(cancellation, 1, Uint8Array.of(Tag.null));
    assert.deepEqual(await asker.answer(), [response, 1, 'an object']);
    // The number is free again.
    asker.ask(request, 1, question);
    asker.ask(verification, 2, question);
    assert.deepEqual(await asker.answer(), [response, 2, 'an object']);
    asker.ask(verification, 1, question);
    await assert.rejects(asker.peer.receive({ timeoutMs: 10_000 }), /request 1 came twice/);

    using full = new Asker();
    for (let n = 1; n <= 1024; n++) {
      full.ask(request, n, Uint8Array.of(Tag.null));
      if (n % 64 === 0) for (let turn = 0; turn < 4; turn++) await nextLoopIteration();
    }
    full.ask(verification, 1025, question);
    await assert.rejects(
      full.peer.receive({ timeoutMs: 10_000 }),
      /too many requests are pending: 1024 requests of/,
    );
  });

  test('whose object cannot be sent now is answered with that error, and the connection goes on', async (t) => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using pair = peerPair();
    const shortage = new SystemError('dup', 24);
    assert.ok(isShortage(shortage));
    const lease = t.mock.method(ExportTable.prototype, 'add', () => {
      throw shortage;
    });
    await assert.rejects(pair.a.open(asked), {
      name: 'IpcError',
      code: 'limit-exceeded',
      message: /^process \d+ does not confirm this descriptor: the value cannot be sent: /,
    });
    lease.mock.restore();
    ((await pair.a.open(asked)) as DeviceBuffer).close();
  });
});
