/** What ends and descriptors of other versions get, and what users are told. */
import assert from 'node:assert/strict';
import { dirname } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { closeFd } from '../../../../ffi/linux/libc.ts';
import { sendMessage } from '../../../../ffi/linux/message.ts';
import { packageVersion } from '../../../../ffi/package.ts';
import { DeviceBuffer, IpcError } from '../../../../src/index.ts';
import { parseDescriptor } from '../../../../src/ipc/descriptor-codec.ts';
import { getIpcHandle, openIpc } from '../../../../src/ipc/index.ts';
import { PROTOCOL_VERSION } from '../../../../src/ipc/version.ts';
import { nextLoopIteration } from '../../../../src/poller.ts';
import { until } from '../../../support/iterations.ts';
import { emulate } from '../emulate.ts';
import { RawPeer } from './peer/support.ts';

const root = dirname(dirname(dirname(dirname(dirname(fileURLToPath(import.meta.url))))));
const here = `Here: cuffi ${packageVersion()} in ${root}. Install the same version of cuffi`;
const VALUE = 1;
const REFUSAL = 0;

/** Sends a frame of another version; by default what a value of null is in version 3. */
function sendOther(
  other: RawPeer,
  version = 3,
  kind = VALUE,
  text: string | Buffer = '\x01',
): void {
  const header = Uint8Array.of(0x63, 0x75, version, kind, ...new Array<number>(16).fill(0));
  sendMessage(other.socket, Buffer.concat([header, Buffer.from(text)]));
}

/** What the other end has received. */
function received(other: RawPeer): Buffer[] {
  const found: Buffer[] = [];
  for (let next = other.receive(); typeof next === 'object'; next = other.receive())
    found.push(Buffer.from(next.data));
  return found;
}

const mismatch =
  (version: number, ...parts: readonly string[]) =>
  (error: unknown) => {
    assert.ok(error instanceof IpcError, String(error));
    assert.equal(error.code, 'version-mismatch');
    for (const part of [
      `version ${version} of the protocol, this one version ${PROTOCOL_VERSION}.`,
      here,
      ...parts,
    ])
      assert.ok(error.message.includes(part), `${error.message}\nhas no\n${part}`);
    return true;
  };

describe('A connection to an end of another version', () => {
  for (const version of [1, 3, 5, 255]) {
    test(`of ${version} ends with an error that says so for all that waits, and refuses it by one frame`, async () => {
      using other = new RawPeer();
      const { peer } = other;
      const waiting = [
        peer.receive(),
        peer.request('pending'),
        peer.serve(() => 1),
        (async () => {
          for await (const value of peer) assert.fail(String(value));
        })(),
      ].map((each) => assert.rejects(each, mismatch(version)));
      await nextLoopIteration();
      received(other);
      sendOther(other, version);
      sendOther(other, version);
      const frames: Buffer[] = [];
      await until(() => frames.push(...received(other)) > 0);
      await nextLoopIteration();
      frames.push(...received(other));
      assert.equal(frames.length, 1);
      const [frame] = frames as [Buffer];
      assert.deepEqual([...frame.subarray(0, 4)], [0x63, 0x75, PROTOCOL_VERSION, REFUSAL]);
      assert.equal(frame.subarray(20).toString(), `cuffi ${packageVersion()} in ${root}`);
      await Promise.all(waiting);
      assert.ok(mismatch(version)(await peer.ended));
      await assert.rejects(peer.send(1), mismatch(version));
      assert.equal(other.receive(), 'end');
    });
  }

  test('says what the other end is, whichever end refuses first', async () => {
    for (const isFirst of [true, false]) {
      using other = new RawPeer();
      const waiting = assert.rejects(
        other.peer.receive(),
        mismatch(5, 'There: cuffi 1.2.3 in /opt/größe/cuffi. '),
      );
      if (!isFirst) sendOther(other, 5);
      sendOther(other, 5, REFUSAL, 'cuffi 1.2.3 in /opt/größe/cuffi');
      await waiting;
      assert.equal(received(other).filter(([, , , kind]) => kind === REFUSAL).length, 1);
    }
  });

  test('is over at once if the other end closes its socket, and takes no further frame', async () => {
    using other = new RawPeer();
    const waiting = assert.rejects(other.peer.receive(), mismatch(3));
    sendOther(other);
    other.send(Uint8Array.of(1));
    closeFd(other.socket);
    await waiting;
  });

  test('may be closed meanwhile', async () => {
    using other = new RawPeer();
    sendOther(other);
    await until(() => received(other).length > 0);
    other.peer.close();
    assert.equal((await other.peer.ended).name, 'ClosedError');
  });

  test('prints what the other end says of itself in one short line without control characters', async () => {
    for (const text of [
      'a\x1b[31m\nb\u2028c\u202ed\0',
      Buffer.alloc(60_000, '\x07'),
      Buffer.alloc(60_000, 'long '),
      Buffer.from([0xff, 0xfe, 0xc3]),
    ]) {
      using other = new RawPeer();
      const waiting = assert.rejects(other.peer.receive(), (error: Error) => {
        assert.ok(error.message.length < 1600, String(error.message.length));
        assert.doesNotMatch(error.message, /[\p{C}\p{Zl}\p{Zp}]/u);
        return mismatch(9)(error);
      });
      sendOther(other, 9, REFUSAL, text);
      await waiting;
    }
  });
});

describe('A descriptor of another version', () => {
  test('is refused with both versions, and with what to do, in either form', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    const descriptor = getIpcHandle(buffer);
    for (const version of [0, 3, 5, 2 ** 40])
      for (const open of [openIpc, parseDescriptor])
        assert.throws(
          // A later version may have other kinds and fields.
          () => open({ ...descriptor, version, kind: version > 4 ? 'new' : 'legacy', more: 1 }),
          (error: unknown) => {
            assert.ok(error instanceof IpcError);
            assert.equal(error.code, 'version-mismatch');
            assert.match(
              error.message,
              new RegExp(
                `is of version ${version} of the protocol, this process speaks version ${PROTOCOL_VERSION}\\.`,
              ),
            );
            assert.ok(error.message.includes(here));
            return true;
          },
        );
  });

  test('is not taken for something else that has a version', () => {
    for (const message of [
      { shape: [1], typestr: '|u1', data: [0, false], version: 3 },
      { kind: 'legacy', version: '3' },
      { kind: 'legacy', version: -1 },
    ])
      assert.throws(() => parseDescriptor(message), { code: 'invalid-descriptor' });
  });
});
