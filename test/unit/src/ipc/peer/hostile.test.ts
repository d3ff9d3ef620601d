/** Other ends that do as they like. */

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { recordCalls } from '../../../../../ffi/driver.ts';
import { countPendingCloses } from '../../../../../ffi/linux/close-fd.ts';
import { closeFd, createMemfd, mapShared } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { sendMessage } from '../../../../../ffi/linux/message.ts';
import { Device } from '../../../../../src/device.ts';
import { CuffiError, IpcError } from '../../../../../src/errors.ts';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { ByteReader, ByteWriter } from '../../../../../src/ipc/bytes.ts';
import { getIpcHandle, leases } from '../../../../../src/ipc/index.ts';
import {
  END_OF_WAITS,
  HEADER_BYTE_LENGTH,
  MAX_QUEUED_VALUES,
  Tag,
} from '../../../../../src/ipc/protocol.ts';
import { encodeFields, withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { readControlBlock, writeControlBlock } from '../../../../../src/ipc/wire/control-block.ts';
import { FRAGMENT_BYTE_LENGTH, MAX_UNSENT_VALUES } from '../../../../../src/ipc/wire/limits.ts';
import { encodeValue } from '../../../../../src/ipc/wire/value-encoder.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { trials } from '../../../../support/iterations.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/process-state.ts';
import { limitRoom, rawSend } from '../../../ffi/fixtures/descriptors.ts';
import { openLingering } from '../../../ffi/fixtures/lingering.ts';
import { type Entry, leavesLeases, peerPair, RawPeer, tableOf, unknownObject } from './support.ts';

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => descriptorsReturnTo(before));

const one = Uint8Array.of(Tag.int32, 1, 0, 0, 0);
const ipcError = (message: RegExp) => ({ name: 'IpcError', message });
const closedError = (message: RegExp) => ({ name: 'ClosedError', message });

const half = Uint8Array.of(...new Array<number>(FRAGMENT_BYTE_LENGTH).fill(0));
const size = FRAGMENT_BYTE_LENGTH + 10;
const news = { kind: 2 } as const;
const noObjects = {
  includes: (_object: object): _object is never => false,
  alternativeTo: () => '',
};
const nothing = readControlBlock(new ByteReader(new Uint8Array(0)));
const float64 = (value: number): Buffer => Buffer.from(new Float64Array([value]).buffer);
/** Nothing but an object that no process has. */
const unknown = (first: number): number[] => [Tag.gpuObject, ...tableOf(first, unknownObject)];
function sendPage(other: RawPeer, fd: number, sequence: number): void {
  other.send(Uint8Array.of(1), { ...news, sequence }, [fd]);
  closeFd(fd);
}

/** What no cuffi sends, of each kind: the table of refusals has the others. */
const broken: Readonly<Record<string, readonly [RegExp, (other: RawPeer) => void]>> = {
  'bytes of something else': [
    /not a cuffi frame/,
    (o) => sendMessage(o.socket, Buffer.alloc(64, 'G')),
  ],
  'a packet without content': [/has no content/, (o) => o.send(new Uint8Array(0))],
  'a message that is too long': [/were truncated/, (o) => rawSend(o.socket, 65_537)],
  'no value at all': [/unknown value tag/, (o) => o.send(Uint8Array.of(200))],
  'news of nothing known': [/unknown control field/, (o) => o.send(Uint8Array.of(99), news)],
  'something to keep with a page': [
    /timeline page together with other fields/,
    (o) => {
      const fd = createMemfd('link', 0);
      const keep = [1, 6, 1, ...float64(0), ...float64(1), ...float64(1)];
      o.send(Uint8Array.from(keep), news, [fd]);
      closeFd(fd);
    },
  ],
};

describe('Peer with a hostile other end', () => {
  for (const [what, [message, send]] of Object.entries(broken)) {
    test(`${what}: the connection ends with an IpcError, after the values before it`, async () => {
      using other = new RawPeer();
      // The packets that a case sends are of the first value.
      send(other);
      await assert.rejects(other.peer.receive({ timeoutMs: 10_000 }), ipcError(message));
      assert.equal(other.peer.closed, true);
      await assert.rejects(other.peer.receive(), ipcError(message));
      await assert.rejects(other.peer.send(1), ipcError(message));
      await assert.rejects(async () => {
        for await (const value of other.peer) assert.fail(String(value));
      }, ipcError(message));
      assert.equal(other.receive(), 'end');
    });
  }

  test('each control field comes once and in order, with a value or alone', () => {
    const point = { index: 0, count: 1 };
    const all = {
      hasTimelinePage: true,
      points: [point],
      released: [{ lease: 0, isFinal: true, points: [point] }],
      revoked: [1],
      isClosing: true,
      forwardRequests: [{ lease: 2, pid: 3, startTime: 4 }],
      closedPools: ['ab'.repeat(16)],
      isDone: true,
      begun: 3,
    };
    const bytesOf = (fields: object): Buffer =>
      ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
        writeControlBlock(writer, { ...nothing, ...fields });
        return Buffer.from(writer.written.subarray(HEADER_BYTE_LENGTH));
      });
    const read = (...parts: Buffer[]) => readControlBlock(new ByteReader(Buffer.concat(parts)));
    const parts = Object.entries(all).map(([name, value]) => bytesOf({ [name]: value }));
    assert.deepEqual(read(...parts), { ...nothing, ...all });
    assert.deepEqual(read(bytesOf(all)), { ...nothing, ...all });
    for (const [at, part] of parts.entries())
      for (const earlier of parts.slice(0, at + 1))
        assert.throws(
          () => read(part, earlier),
          ipcError(/^unexpected control field \d+: fields come once and in order$/),
        );
  });

  test('values before a broken one are received before the error', async () => {
    using other = new RawPeer();
    other.send(one);
    other.send(Uint8Array.of(200), { sequence: 1 });
    await nextLoopIteration();
    assert.equal(await other.peer.receive(), 1);
    await assert.rejects(other.peer.receive(), ipcError(/unknown value tag/));
  });

  test('a lease number that comes a second time, or late, ends the connection', async () => {
    for (const late of [4, 3]) {
      using other = new RawPeer();
      // Values that were dropped there leave a gap.
      other.send(Uint8Array.from(unknown(4)));
      other.send(Uint8Array.from(unknown(late)), { sequence: 1 });
      await assert.rejects(other.peer.receive(), ipcError(/not a cuffi descriptor/));
      await assert.rejects(
        other.peer.receive(),
        ipcError(new RegExp(`lease ${late} was sent after lease 4, or a second time`)),
      );
    }
  });

  test('an end in the middle of a value is an orderly end, and its descriptors are closed', async () => {
    using other = new RawPeer();
    const fd = createMemfd('half', 0);
    other.send(one);
    other.send(half, { sequence: 1, byteLength: size }, [fd, fd]);
    closeFd(fd);
    closeFd(other.socket);
    assert.equal(await other.peer.receive(), 1);
    await assert.rejects(other.peer.receive(), closedError(/has closed the connection/));
  });

  test('an object that cannot be opened fails only its value, and the next is received', async () => {
    using other = new RawPeer();
    const fd = createMemfd('lost', 0);
    const first = { ...unknownObject, fdCount: 2, hasLink: true };
    const second = { ...unknownObject, fdCount: 1 };
    const places = [Tag.array, 2, Tag.gpuObject, Tag.gpuObject];
    const lost = Uint8Array.of(...places, ...tableOf(0, first, second));
    // The third is the link of the first, and the last is the second's.
    other.send(lost, {}, [fd, fd, fd, fd]);
    other.send(one, { sequence: 1 });
    closeFd(fd);
    await assert.rejects(other.peer.receive(), { name: 'IpcError' });
    assert.equal(await other.peer.receive(), 1);
  });

  test('objects of a value that nobody gets are closed, and their leases released', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const bytes = Buffer.from(encodeFields(getIpcHandle(buffer)));
    before = openDescriptors();
    const name = [Tag.latin1, 1, 'x'.charCodeAt(0)] as const;
    const values: readonly (readonly [number[], Entry[], RegExp])[] = [
      // The second object cannot be opened.
      [
        [Tag.array, 2, Tag.gpuObject, Tag.gpuObject],
        [{ bytes }, unknownObject],
        /not a cuffi descriptor/,
      ],
      // The value cannot be built.
      [[Tag.object, 2, ...name, Tag.gpuObject, ...name, Tag.null], [{ bytes }], /name/],
    ];
    for (const [value, entries, message] of values) {
      using other = new RawPeer();
      other.send(Uint8Array.from([...value, ...tableOf(0, ...entries)]));
      await assert.rejects(other.peer.receive(), ipcError(message));
      const told: number[] = [];
      for (let turn = 0; turn < 20; turn++) {
        await nextLoopIteration();
        const message = other.receive();
        if (typeof message !== 'object') continue;
        message.fds.forEach(closeFd);
        const tail = readControlBlock(new ByteReader(message.data.subarray(HEADER_BYTE_LENGTH)));
        told.push(...tail.released.flatMap(({ lease, isFinal }) => (isFinal ? [lease] : [])));
      }
      assert.deepEqual(told.sort(), [...entries.keys()]);
      assert.equal(buffer.closed, false);
    }
  });

  test('a peer that never reads its releases is disconnected, with the reason', async () => {
    using other = new RawPeer();
    // 4096 objects that cannot be opened: each is given back.
    const places = new Array<number>(4096).fill(Tag.gpuObject);
    const entries = new Array<Entry>(4096).fill(unknownObject);
    let last: unknown;
    for (let sequence = 0; sequence < 100 && !/there reads/.test(String(last)); sequence++) {
      const value = Uint8Array.of(
        Tag.array,
        0x80,
        0x20,
        ...places,
        ...tableOf(4096 * sequence, ...entries),
      );
      if (!other.peer.closed) other.send(value, { sequence });
      last = await other.peer.receive().catch((error: unknown) => error);
    }
    assert.match(String(last), /^IpcError: .* has not read 131072 control entries/);
    assert.equal(other.peer.closed, true);
  });

  test('a peer that sends requests without end and never reads the responses is disconnected, with the reason', async () => {
    using other = new RawPeer();
    let end: unknown;
    void other.peer.ended.then((reason) => {
      end = reason;
    });
    for (let sequence = 0; end === undefined && sequence < 10 * MAX_UNSENT_VALUES; sequence++) {
      other.send(one, { kind: 3, sequence, request: 1 });
      await nextLoopIteration();
    }
    assert.match(String(end), /^IpcError: .* are already waiting to be sent/);
  });

  test('a peer that floods is stopped when nobody takes its values, and the kernel keeps the rest', async () => {
    using other = new RawPeer();
    let count = 0;
    for (let idle = 0; idle < 20; idle++) {
      while (other.send(one, { sequence: count })) {
        count += 1;
        idle = 0;
      }
      await nextLoopIteration();
    }
    assert.ok(count > MAX_QUEUED_VALUES, `${count}`);
    assert.equal(other.peer.closed, false);
    for (let n = 0; n < count; n++) assert.equal(await other.peer.receive(), 1);
  });

  test('arbitrary bytes never crash the process, and the error is an IpcError', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.uint8Array({ minLength: 1, maxLength: 60 }), { minLength: 1 }),
        async (packets) => {
          using other = new RawPeer();
          for (const packet of packets) sendMessage(other.socket, packet);
          await assert.rejects(other.peer.receive(), ipcError(/./));
        },
      ),
      trials(50, 10_000),
    );
  });

  test('a changed message is refused or is a plain value, and its descriptors are closed', async () => {
    const { kind, ...fields } = withChecksum({
      kind: 'event',
      handle: Buffer.alloc(64, 7).toString('base64'),
      device: Device.get().uuid,
      machine: '01234567-89ab-cdef-0123-456789abcdef',
      pid: 2 ** 30,
      startTime: 1,
      pidNamespace: 1,
    });
    const plain = (value: unknown): Buffer =>
      ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
        encodeValue(writer, value, noObjects);
        return Buffer.from(writer.written.subarray(HEADER_BYTE_LENGTH));
      });
    const entry = { bytes: encodeFields({ kind, ...fields }), fdCount: 1 };
    // [object, 'text', 1.5]
    const sample = Buffer.concat([
      Buffer.of(Tag.array, 3, Tag.gpuObject),
      plain('text'),
      plain(1.5),
      Buffer.from(tableOf(0, entry)),
    ]);
    const fd = createMemfd('sent', 0);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(sample.byteLength - 1), fc.nat(255)), { maxLength: 3 }),
        fc.nat(2),
        async (changes, fdCount) => {
          const bytes = Buffer.from(sample);
          for (const [at, byte] of changes) bytes[at] = byte;
          using other = new RawPeer();
          other.send(bytes, {}, new Array<number>(fdCount).fill(fd));
          await other.peer.receive().catch((error: unknown) => {
            assert.ok(error instanceof IpcError, String(error));
          });
        },
      ),
      trials(100, 10_000),
    );
    closeFd(fd);
  });

  test('an unrequested object is closed without waiting, however long its close takes', async () => {
    using other = new RawPeer();
    const { fd, release } = await openLingering(20);
    other.send(Uint8Array.of(Tag.null), {}, [fd]);
    closeFd(fd);
    await assert.rejects(other.peer.receive(), ipcError(/1 file descriptors with a value/));
    for (let turn = 0; turn < 100 && countPendingCloses() === 0; turn++) await nextLoopIteration();
    assert.equal(countPendingCloses(), 1);
    await release();
  });

  test('a lease released behind too many waits lasts until the host has seen the last', async () => {
    using buffer = DeviceBuffer.allocate(64);
    before = openDescriptors();
    const others = leases.stats().leases.length;
    {
      using other = new RawPeer();
      await other.peer.send(buffer);
      const fd = createSealedMemfd('points', 4096);
      const page = mapShared(fd, 4096);
      sendPage(other, fd, 0);
      using recorder = recordCalls();
      const isLent = (): boolean => leases.stats().leases.length > others;
      // Of 512 counters eight times each, and with the last it is given back.
      for (let count = 1; count <= 8; count++) {
        const points = Array.from({ length: 512 }, (_, index) => ({ index, count }));
        const released = [{ lease: 0, isFinal: count === 8, points }];
        ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
          writeControlBlock(writer, { ...nothing, released });
          const body = writer.written.subarray(HEADER_BYTE_LENGTH);
          other.send(body, { ...news, sequence: count });
        });
      }
      await assert.rejects(other.peer.receive({ timeoutMs: 50 }), { name: 'TimeoutError' });
      const waits = recorder.calls.filter(({ name }) => name.startsWith('cuStreamWaitValue'));
      assert.ok(waits.length <= 320, `${waits.length} waits`);
      assert.equal(isLent(), true);
      new BigUint64Array(page.view()).fill(8n);
      for (let turn = 0; turn < 1000 && isLent(); turn++) await nextLoopIteration();
      assert.equal(isLent(), false);
      page.unmap();
    }
  });

  test('arbitrary control messages never crash the process, and leases last until they are released', async () => {
    leavesLeases();
    const sample = Uint8Array.of(
      3,
      1,
      ...float64(0),
      1,
      1,
      0,
      ...float64(1),
      4,
      1,
      ...float64(0),
      5,
    );
    using buffer = DeviceBuffer.allocate(64);
    before = openDescriptors();
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(sample.byteLength - 1), fc.nat(255)), { maxLength: 3 }),
        async (changes) => {
          using other = new RawPeer();
          await other.peer.send(buffer);
          const fd = createSealedMemfd('points', 4096);
          const page = mapShared(fd, 4096);
          sendPage(other, fd, 0);
          const bytes = Buffer.from(sample);
          for (const [at, byte] of changes) bytes[at] = byte;
          other.send(bytes, { ...news, sequence: 1 });
          await assert.rejects(
            other.peer.receive({ timeoutMs: 5 }),
            (error) => error instanceof CuffiError || (error as Error).name === 'TimeoutError',
          );
          // Ends the waits: a stream has room for about a thousand.
          new BigUint64Array(page.view()).fill(END_OF_WAITS);
          page.unmap();
        },
      ),
      trials(50, 10_000),
    );
    // The ends of the last sockets are told in the next turns.
    for (let turn = 0; turn < 20; turn++) await nextLoopIteration();
    // What nobody gave back is kept for as long as the process lives, which is this one.
    assert.ok(openDescriptors() - before <= 1, `${openDescriptors()} after ${before}`);
    before = openDescriptors();
  });

  test('a peer that breaks the protocol keeps its leases as long as it lives', async () => {
    leavesLeases();
    using other = new RawPeer();
    using buffer = DeviceBuffer.allocate(64);
    const lent = leases.stats().leases.length;
    await other.peer.send(buffer);
    other.send(one);
    other.send(Uint8Array.of(0xff), { sequence: 1 });
    assert.equal(await other.peer.receive(), 1);
    await assert.rejects(other.peer.receive(), { name: 'IpcError' });
    assert.ok((await other.peer.ended) instanceof IpcError);
    for (let turn = 0; turn < 20; turn++) await nextLoopIteration();
    assert.equal(leases.stats().leases.length, lent + 1);
    // The process that lives is this one, of which a descriptor is kept for that.
    assert.ok(openDescriptors() - before <= 3, `${openDescriptors()} after ${before}`);
  });

  test('a connection that was full reads again, though no descriptor was left when it had room', async () => {
    using other = new RawPeer();
    const count = MAX_QUEUED_VALUES + 6;
    for (let sequence = 0; sequence < count; sequence++) other.send(one, { sequence });
    for (let turn = 0; turn < 20; turn++) await nextLoopIteration();
    {
      using _ = limitRoom(0);
      for (let n = 0; n < MAX_QUEUED_VALUES; n++) assert.equal(await other.peer.receive(), 1);
    }
    for (let n = MAX_QUEUED_VALUES; n < count; n++) assert.equal(await other.peer.receive(), 1);
    const receiving = other.peer.receive();
    other.send(one, { sequence: count });
    assert.equal(await receiving, 1);
  });

  test('queued messages are sent when the peer reads, though no descriptor is left', async () => {
    using other = new RawPeer();
    const sends = Array.from({ length: 60 }, () =>
      other.peer.send('x'.repeat(FRAGMENT_BYTE_LENGTH)),
    );
    let isSent = false;
    const all = Promise.all(sends).then(() => {
      isSent = true;
    });
    await nextLoopIteration();
    assert.equal(isSent, false);
    {
      using _ = limitRoom(0);
      while (!isSent) {
        while (other.receive() !== undefined);
        await nextLoopIteration();
      }
    }
    await all;
    other.send(one);
    assert.equal(await other.peer.receive(), 1);
  });

  test('a value whose descriptors find no room is refused with the reason, and the connection goes on', async () => {
    using other = new RawPeer();
    const memory = createMemfd('memory', 0);
    const noRoom = {
      name: 'IpcError',
      code: 'limit-exceeded',
      message: /the objects of a value were refused: .*EMFILE.*too few file descriptors are left/,
    };
    {
      using _ = limitRoom(1);
      const forwarded = { ...unknownObject, fdCount: 1, hasLink: true };
      const body = Uint8Array.of(Tag.gpuObject, ...tableOf(0, forwarded));
      other.send(body, {}, [memory, memory]);
      await assert.rejects(other.peer.receive(), noRoom);
      other.send(one, { sequence: 1 });
      assert.equal(await other.peer.receive(), 1);
      // The same of a request, whose handler is not called, and of an answer.
      const request = Uint8Array.of(Tag.gpuObject, ...tableOf(1, { ...unknownObject, fdCount: 2 }));
      void other.peer.serve(() => 'not called').catch(() => {});
      other.send(request, { sequence: 2, kind: 5, request: 1 }, [memory, memory]);
      const asked = other.peer.request(null);
      const answer = Uint8Array.of(Tag.gpuObject, ...tableOf(2, { ...unknownObject, fdCount: 2 }));
      other.send(answer, { sequence: 3, kind: 6, request: 1 }, [memory, memory]);
      await assert.rejects(asked, noRoom);
    }
    closeFd(memory);
    for (let turn = 0; turn < 5; turn++) await nextLoopIteration();
    const texts: string[] = [];
    for (let message = other.receive(); typeof message === 'object'; message = other.receive())
      texts.push(Buffer.from(message.data).toString('latin1'));
    assert.match(texts.join(), /the objects of a value were refused/);
    assert.equal(other.peer.closed, false);
  });

  test('control messages whose descriptors find no room end that connection, and no other', async () => {
    using other = new RawPeer();
    using innocent = new RawPeer();
    const page = createSealedMemfd('page', 4096);
    {
      using _ = limitRoom(0);
      sendPage(other, page, 0);
      await assert.rejects(
        other.peer.receive(),
        ipcError(/EMFILE.*too few file descriptors are left, so those of a message/),
      );
      innocent.send(one);
      assert.equal(await innocent.peer.receive(), 1);
    }
  });

  test('a value that finds no descriptor left here is not sent, and the connection goes on', async () => {
    using pair = peerPair();
    using buffer = DeviceBuffer.allocate(64);
    buffer.fill(1);
    {
      using _ = limitRoom(0);
      await assert.rejects(async () => pair.a.send(buffer), {
        name: 'IpcError',
        code: 'limit-exceeded',
        message: /^(the )?value cannot be sent: .*EMFILE/,
      });
    }
    await pair.a.send('next');
    assert.equal(await pair.b.receive(), 'next');
  });
});
