/** What the answer to `peer.open` may be, from an end that answers as it likes. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { closeFd } from '../../../../../ffi/linux/libc.ts';
import {
  CudaEvent,
  type DeviceArray,
  DeviceBuffer,
  float32,
  MemoryPool,
  toDeviceSync,
} from '../../../../../src/index.ts';
import type { IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { encodeFields, withChecksum } from '../../../../../src/ipc/descriptor-codec.ts';
import { exportIpc, getIpcHandle } from '../../../../../src/ipc/index.ts';
import { FrameKind, HEADER_BYTE_LENGTH, Tag } from '../../../../../src/ipc/protocol.ts';
import { readControlMessage } from '../../../../../src/ipc/wire/control-block.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { type Entry, peerPair, RawPeer, readMessage, tableOf } from './support.ts';

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
/** The place of an object. */
const place = Buffer.of(Tag.gpuObject);
const list = (...parts: readonly Uint8Array[]): Buffer =>
  Buffer.concat([Buffer.of(Tag.array, parts.length), ...parts]);

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

  /** Replies to the next question with a value without objects. */
  refuse(value: Uint8Array): void {
    this.#number += 1;
    this.answerWith(this.#number, value);
  }

  /** Answers any question with anything. */
  answerWith(
    request: number,
    value: Uint8Array,
    objects: readonly Entry[] = [],
    fds: readonly number[] = [],
  ): void {
    const table = objects.length > 0 ? tableOf(this.#leases, ...objects) : [];
    this.#leases += objects.length;
    const body = Buffer.concat([value, Buffer.from(table)]);
    this.send(body, { kind: FrameKind.confirmation, sequence: this.#sequence, request }, fds);
    this.#sequence += 1;
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

  test('a response that is neither an object nor a reason ends the connection, and the caller gets that IpcError', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    const object = entry(asked);
    const record = (...keys: readonly string[]): Buffer =>
      Buffer.concat([
        Buffer.of(Tag.object, keys.length),
        ...keys.flatMap((key) => [text(key), Buffer.of(Tag.null)]),
      ]);
    type Answer = readonly [value: Buffer, objects?: readonly Entry[], request?: number];
    const answers: Readonly<Record<string, Answer>> = {
      'what cannot be text': [record('toString', 'valueOf')],
      nothing: [Buffer.of(Tag.undefined)],
      'a number': [int32(1)],
      'a list': [list(text('gone'))],
      'an object in a list': [list(place), [object]],
      'two objects': [list(place, place), [object, object]],
      'an object and a reason': [list(place, text('gone')), [object]],
      'a number that nobody has': [text('gone'), [], 7],
      'an object with a number that nobody has': [place, [object], 7],
    };
    for (const [what, [value, objects, request = 1]] of Object.entries(answers))
      await leavingNone(async () => {
        using answerer = new Answerer();
        const opening = answerer.peer.open(asked, { timeoutMs: 10_000 });
        answerer.answerWith(request, value, objects);
        await assert.rejects(opening, { name: 'IpcError', message: /answer/ }, what);
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
    const returned = async (count: number): Promise<readonly number[]> => {
      for (let turn = 0; turn < 100 && (await answerer.returned()).length < count; turn++);
      return answerer.returned();
    };
    assert.deepEqual(await returned(1), [0]);
    assert.equal(buffer.closed, false);
    // The next one is answered.
    const next = answerer.peer.open(asked);
    answerer.answer(asked);
    const opened = (await next) as DeviceBuffer;
    assert.equal(opened.address, buffer.address);
    opened.close();
    assert.deepEqual(await returned(2), [0, 1]);
  });

  test('a descriptor of a process other than the peer is refused at once', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using answerer = new Answerer();
    const other = withChecksum({ ...getIpcHandle(buffer), pid: process.pid + 1 });
    await assert.rejects(answerer.peer.open(other, { timeoutMs: 10_000 }), {
      name: 'IpcError',
      message: `the descriptor is of process ${process.pid + 1}, which process ${process.pid} is not`,
    });
    // Nothing was asked.
    assert.equal(answerer.receive(), undefined);
  });

  test('the reason of a refusal is shown as text of limited length', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using answerer = new Answerer();
    const opening = answerer.peer.open(getIpcHandle(buffer));
    answerer.refuse(text(`gone\u001b[2J${'x'.repeat(20_000)}`));
    await assert.rejects(opening, (error: Error & { code?: string }) => {
      assert.deepEqual([error.name, error.code], ['IpcError', 'exporter-gone']);
      assert.match(error.message, /^process \d+ does not confirm this descriptor: gone/);
      assert.ok(error.message.length < 1000, `${error.message.length}`);
      assert.ok(!error.message.includes('\u001b'));
      return true;
    });
  });

  test('a second response to the same request ends the connection', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using answerer = new Answerer();
    const opening = answerer.peer.open(getIpcHandle(buffer), { timeoutMs: 10_000 });
    answerer.answerWith(1, text('gone'));
    await assert.rejects(opening, { name: 'IpcError', message: /does not confirm .*: gone$/ });
    answerer.answerWith(1, text('gone'));
    const reason = await answerer.peer.receive({ timeoutMs: 10_000 }).catch(String);
    assert.match(String(reason), /^IpcError: .*an answer came that nobody asked for$/);
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
      message: /does not confirm this descriptor: what it names is another one now$/,
    });
    (await pair.a.open(asked)).close();
  });

  test('at most 1024 requests wait for their responses', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const asked = getIpcHandle(buffer);
    using other = new RawPeer();
    const opens = Array.from({ length: 1024 }, () =>
      other.peer.open(asked).catch((error: Error) => error.name),
    );
    await assert.rejects(other.peer.open(asked), {
      name: 'IpcError',
      message: '1024 descriptors wait to be confirmed already: await some of them first',
    });
    other.peer.close();
    assert.deepEqual(new Set(await Promise.all(opens)), new Set(['ClosedError']));
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
        message: /wait to be sent already: await send\(\) before the next one$/,
      });
  });
});
