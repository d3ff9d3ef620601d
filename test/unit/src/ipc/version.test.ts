/** What ends and descriptors of other versions get, and what users are told. */
import assert from 'node:assert/strict';
import { dirname } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { closeFd } from '../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../ffi/linux/message.ts';
import { packageVersion } from '../../../../ffi/package.ts';
import { DeviceBuffer, IpcError } from '../../../../src/index.ts';
import { getIpcHandle, openIpc } from '../../../../src/ipc/index.ts';
import { parseDescriptor } from '../../../../src/ipc/sharing/descriptor-codec.ts';
import { PROTOCOL_VERSION } from '../../../../src/ipc/version.ts';
import { chooseVersion, helloFrame, readHello } from '../../../../src/ipc/wire/frames.ts';
import { nextLoopIteration } from '../../../../src/poller.ts';
import { emulate } from '../emulate.ts';
import { RawPeer } from './peer/support.ts';

const root = dirname(dirname(dirname(dirname(dirname(fileURLToPath(import.meta.url))))));
const here = `Here: cuffi ${packageVersion()} in ${root}. Install the same version of cuffi`;
const VALUE = 1;
const HELLO = 0;

/** Sends a frame of another version; by default what a value of null is in version 3. */
function sendOther(
  other: RawPeer,
  version = 3,
  kind = VALUE,
  text: string | Buffer = '\x01',
): void {
  const body = Buffer.from(text);
  const header = Buffer.from([0x63, 0x75, version, kind, ...new Array<number>(16).fill(0)]);
  header.writeUInt32LE(body.byteLength, 8);
  sendMessage(other.socket, Buffer.concat([header, body]));
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

/** Sends the first frame of an end that speaks these versions. */
const sendHello = (other: RawPeer, min: number, max: number, text: string | Buffer = ''): void =>
  sendOther(other, max, HELLO, Buffer.concat([Uint8Array.of(min, max), Buffer.from(text)]));

describe('chooseVersion', () => {
  test('returns the highest version that both ranges have, and undefined if they share no version', () => {
    const range = (min: number, max: number) => ({ min, max });
    for (const [a, b, chosen] of [
      [range(4, 4), range(4, 4), 4],
      [range(1, 6), range(4, 9), 6],
      [range(1, 9), range(4, 5), 5],
      [range(1, 3), range(4, 9), undefined],
    ] as const) {
      assert.equal(chooseVersion(a, b), chosen);
      assert.equal(chooseVersion(b, a), chosen);
    }
    const { data } = { data: helloFrame(range(3, 6)) };
    assert.equal(readHello(data, range(5, 9)), 6);
    assert.throws(() => readHello(data, range(7, 9)), {
      message: /speaks versions 3 to 6 of the protocol, this one versions 7 to 9\. /,
    });
  });
});

describe('A connection', () => {
  test('begins with the versions of this end, and what it is', async () => {
    using other = new RawPeer(undefined, undefined, 'no hello');
    const first = receiveMessage(other.socket);
    assert.ok(typeof first === 'object');
    assert.deepEqual(
      [...first.data.subarray(0, 22)],
      [
        0x63,
        0x75,
        4,
        HELLO,
        ...[0, 0, 0, 0],
        first.data.length - 20,
        ...new Array(11).fill(0),
        4,
        4,
      ],
    );
    assert.equal(
      Buffer.from(first.data.subarray(22)).toString(),
      `cuffi ${packageVersion()} in ${root}`,
    );
    await nextLoopIteration();
    assert.equal(other.receive(), undefined);
  });

  test('goes on with an end that speaks this version among others', async () => {
    for (const [min, max] of [
      [4, 4],
      [0, 4],
      [4, 9],
      [1, 255],
    ] as const) {
      using other = new RawPeer(undefined, undefined, 'no hello');
      sendHello(other, min, max, 'other');
      other.send(Uint8Array.of(1));
      assert.equal(await other.peer.receive(), null);
    }
  });

  test('ends with an error if the other end does not begin so, or says so twice', async () => {
    for (const [kind, content] of [
      [VALUE, [1]],
      [HELLO, [4]],
      [HELLO, [4, 3]],
      [HELLO, [4, 4, ...new Array<number>(1025).fill(65)]],
      [9, [1]],
    ] as const) {
      using other = new RawPeer(undefined, undefined, 'no hello');
      sendOther(other, 4, kind, Buffer.from(content));
      await assert.rejects(
        other.peer.receive(),
        /did not state first which versions of the protocol/,
      );
    }
    for (const at of [4, 8, 12, 16]) {
      using other = new RawPeer(undefined, undefined, 'no hello');
      const hello = helloFrame();
      hello[at] = (hello[at] as number) ^ 1;
      sendMessage(other.socket, hello);
      await assert.rejects(
        other.peer.receive(),
        /did not state first which versions of the protocol/,
      );
    }
    using twice = new RawPeer();
    sendHello(twice, 4, 4);
    await assert.rejects(twice.peer.receive(), /unknown frame kind 0/);
    for (const version of [3, 5]) {
      using changing = new RawPeer();
      sendOther(changing, version);
      await assert.rejects(changing.peer.receive(), {
        message: new RegExp(`a frame is of version ${version}, although both ends speak 4`),
      });
    }
  });

  test('that the other end closes without a word ends with an error', async () => {
    using other = new RawPeer(undefined, undefined, 'no hello');
    const waiting = assert.rejects(other.peer.receive(), {
      name: 'IpcError',
      message: /without a word: it has refused this process, or needs an earlier version of cuffi/,
    });
    closeFd(other.socket);
    await waiting;
  });
});

describe('A connection to an end of another version', () => {
  for (const version of [1, 3, 5, 255]) {
    test(`of ${version} ends with an error that says so for all that waits`, async () => {
      using other = new RawPeer(undefined, undefined, 'no hello');
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
      if (version < 4) sendOther(other, version);
      else sendHello(other, version, version);
      await Promise.all(waiting);
      assert.ok(mismatch(version)(await peer.ended));
      await assert.rejects(peer.send(1), mismatch(version));
      received(other);
      assert.equal(other.receive(), 'end');
    });
  }

  test('says what the other end is', async () => {
    using other = new RawPeer(undefined, undefined, 'no hello');
    const waiting = assert.rejects(
      other.peer.receive(),
      mismatch(5, 'There: cuffi 1.2.3 in /opt/größe/cuffi. '),
    );
    sendHello(other, 5, 5, 'cuffi 1.2.3 in /opt/größe/cuffi');
    await waiting;
  });

  test('names the command that helps, of which nothing is what the other end made up', () => {
    const own = packageVersion();
    const install = `there: pip install "$(npx cuffi@${own} python)"`;
    for (const [text, min, command] of [
      ['cuffi 9.0.0 in /app/node_modules/cuffi', 5, 'here: npm install cuffi@9.0.0'],
      ['cuffi 0.1.0 in /app/node_modules/cuffi', 3, `there: npm install cuffi@${own}`],
      ['cuffi 9;reboot in /app/node_modules/cuffi', 5, 'here: npm install cuffi@latest'],
      ['', 5, 'here: npm install cuffi@latest'],
      // Python takes the version of Node.
      ['cuffi 9.0.0 for Python in /v/lib/python3.9/site-packages/cuffi', 5, install],
      ['cuffi 0.1.0 for Python in /usr/lib/python3/dist-packages/cuffi', 3, install],
      [
        'cuffi 0.1.0 for Python in /app/node_modules/cuffi/src/python/cuffi',
        3,
        `there: npm install cuffi@${own}`,
      ],
      ['cuffi 9.0.0 for Python in /w/cuffi', 5, `there: npx cuffi@${own} python --copy /w`],
      [
        'cuffi 9.0.0 for Python in /w;reboot/cuffi',
        5,
        `there: npx cuffi@${own} python --copy FOLDER`,
      ],
      [
        'cuffi 9.0.0 for Python in /w $(reboot)/cuffi',
        5,
        `there: npx cuffi@${own} python --copy FOLDER`,
      ],
    ] as const) {
      const hello = helloFrame({ min, max: min });
      const frame = Buffer.concat([hello.subarray(0, 22), Buffer.from(text)]);
      frame.writeUInt32LE(frame.byteLength - 20, 8);
      assert.throws(
        () => readHello(frame),
        (error: Error) => {
          assert.ok(error.message.endsWith(` on both sides. Run ${command}`), error.message);
          return true;
        },
      );
    }
  });

  test('is over at once if the other end closes its socket, and takes no further frame', async () => {
    using other = new RawPeer(undefined, undefined, 'no hello');
    const waiting = assert.rejects(other.peer.receive(), mismatch(3));
    sendOther(other);
    other.send(Uint8Array.of(1));
    closeFd(other.socket);
    await waiting;
  });

  test('prints what the other end says of itself in one short line without control characters', async () => {
    for (const text of [
      'a\x1b[31m\nb\u2028c\u202ed\0',
      Buffer.alloc(1024, '\x07'),
      Buffer.alloc(1024, 'long '),
      Buffer.from([0xff, 0xfe, 0xc3]),
    ]) {
      using other = new RawPeer(undefined, undefined, 'no hello');
      const waiting = assert.rejects(other.peer.receive(), (error: Error) => {
        assert.ok(error.message.length < 1600, String(error.message.length));
        assert.doesNotMatch(error.message, /[\p{C}\p{Zl}\p{Zp}]/u);
        return mismatch(9)(error);
      });
      sendHello(other, 9, 9, text);
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
                `uses version ${version} of the protocol, but this process speaks version ${PROTOCOL_VERSION}\\.`,
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
