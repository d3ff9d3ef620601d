import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { getIpcHandle } from '../../../../../src/ipc/index.ts';
import type { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Session } from '../../../../../src/ipc/peer/session.ts';
import { encodeFields } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { MAX_CACHED_DESCRIPTORS } from '../../../../../src/ipc/wire/limits.ts';
import { emulate } from '../../emulate.ts';

describe('Session', () => {
  test('decodes a descriptor once, and caches as many as the limit says', () => {
    emulate();
    const process = { pid: 1, isExitObservable: true, onGone: () => () => {} };
    const session = new Session(process as unknown as PeerProcess, 'the peer', 0);
    using buffer = DeviceBuffer.allocate(64);
    const { checksum: _, version: __, ...fields } = getIpcHandle(buffer);
    const bytesOf = (bufferId: number): Buffer =>
      Buffer.from(encodeFields({ ...fields, bufferId } as never));
    const first = session.decodeDescriptor(bytesOf(1));
    for (let bufferId = 2; bufferId <= MAX_CACHED_DESCRIPTORS; bufferId++)
      session.decodeDescriptor(bytesOf(bufferId));
    assert.equal(session.decodeDescriptor(bytesOf(1)), first);
    session.decodeDescriptor(bytesOf(MAX_CACHED_DESCRIPTORS + 1));
    const again = session.decodeDescriptor(bytesOf(1));
    assert.notEqual(again, first);
    assert.deepEqual(again, first);
    assert.throws(() => session.decodeDescriptor(Uint8Array.of(1)), { name: 'IpcError' });
    session.end();
  });
});
