import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, readSize } from '../../../../ffi/arena.ts';
import type { CUcontext, IpcHandleBytes } from '../../../../ffi/types.ts';
import { leaves } from '../../../support/left-open.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { withPeer } from './peer.ts';
import { at, device, Emulated, hostWords } from './support.ts';

const deadline = { timeout: 20_000 };

/** How often a memfd of that name is mapped into this process. */
const mappings = (name: string): number =>
  readFileSync('/proc/self/maps', 'latin1').split(name).length - 1;

const withByte = ({ reserved }: IpcHandleBytes, index: number, value: number): IpcHandleBytes => {
  const changed = reserved.slice();
  changed[index] = value;
  return { reserved: changed };
};

describe('emulated legacy IPC', () => {
  test('a handle is the base address’s, and each allocation has its own', () => {
    const emulated = Emulated.inContext();
    const first = emulated.allocate(1024);
    const handle = emulated.memHandle(first);
    assert.deepEqual(emulated.memHandle(at(first, 1000)), handle);
    assert.notDeepEqual(emulated.memHandle(emulated.allocate(1024)), handle);
    emulated.free(first);
    assert.equal(emulated.cu.cuIpcGetMemHandle(BLOCK, first), 1);
    assert.notDeepEqual(emulated.memHandle(emulated.allocate(1024)), handle);
    assert.equal(emulated.cu.cuIpcGetMemHandle(BLOCK, at(12_345)), 1);
  });

  test('a handle is refused in its own process, as are wrong flags and short bytes', () => {
    const emulated = Emulated.inContext();
    const handle = emulated.memHandle(emulated.allocate(1024));
    assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, handle, 1), 201);
    for (const flags of [0, 2, 3])
      assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, handle, flags), 1);
    assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, { reserved: new Uint8Array(8) }, 1), 1);
  });

  test('memory of another process is the same memory', deadline, () =>
    withPeer(async (peer) => {
      const emulated = Emulated.inContext();
      for (const byteLength of [1024, 3 * 2 ** 20]) {
        await peer.ask('allocate', 1024);
        const theirs = await peer.ask('allocate', byteLength);
        await peer.ask('write', theirs, 17);
        const handle = await peer.ask('memHandle', theirs);
        const ours = emulated.openMem(handle);
        assert.deepEqual(emulated.range(ours), { base: ours, byteLength });
        assert.equal(emulated.attribute(10, ours), 0);
        assert.equal(emulated.read(ours), 17);
        emulated.write(at(ours, byteLength - 4), 18);
        assert.equal(await peer.ask('read', at(theirs, byteLength - 4)), 18);
        const host = hostWords(1).address;
        assert.equal(emulated.cu.cuMemcpyDtoH_v2(host, at(ours, byteLength), 4), 1);
        assert.equal(emulated.cu.cuMemFree_v2(ours), 1);
        assert.equal(emulated.cu.cuIpcGetMemHandle(BLOCK, ours), 1);
        emulated.ok(emulated.cu.cuIpcCloseMemHandle(ours));
        assert.equal(emulated.cu.cuIpcCloseMemHandle(ours), 1);
      }
    }),
  );

  test('opened twice it has one address, until it is closed twice', deadline, () =>
    withPeer(async (peer) => {
      const emulated = Emulated.inContext();
      const { cu } = emulated;
      const theirs = await peer.ask('allocate', 1024);
      const neighbour = await peer.ask('allocate', 1024);
      const handle = await peer.ask('memHandle', theirs);
      const descriptors = openDescriptors();
      const mapped = mappings('cuffi.memory');
      const ours = emulated.openMem(handle);
      assert.equal(emulated.openMem(handle), ours);
      const other = emulated.openMem(await peer.ask('memHandle', neighbour));
      assert.equal(openDescriptors(), descriptors);
      emulated.ok(cu.cuIpcCloseMemHandle(ours));
      emulated.read(ours);
      emulated.ok(cu.cuIpcCloseMemHandle(ours));
      assert.equal(cu.cuMemcpyDtoH_v2(OUT0, ours, 4), 1);
      emulated.read(other);
      emulated.ok(cu.cuIpcCloseMemHandle(other));
      assert.equal(mappings('cuffi.memory'), mapped);
    }),
  );

  test('opened on two devices it has two addresses', deadline, () =>
    withPeer(async (peer) => {
      const emulated = Emulated.inContext({ CUFFI_EMULATED_DEVICES: '2' });
      const handle = await peer.ask('memHandle', await peer.ask('allocate', 2 ** 22));
      const first = emulated.openMem(handle);
      emulated.ok(emulated.cu.cuCtxCreate_v2(OUT0, 0, device(1)));
      const own = readSize(OUT0) as CUcontext;
      const second = emulated.openMem(handle);
      assert.notEqual(second, first);
      emulated.write(second, 5);
      assert.equal(emulated.read(first), 5);
      assert.equal(emulated.cu.cuIpcCloseMemHandle(first), 1);
      emulated.ok(emulated.cu.cuCtxDestroy_v2(own));
      assert.equal(emulated.cu.cuMemcpyDtoH_v2(OUT0, second, 4), 1);
      assert.equal(emulated.read(first), 5);
      emulated.ok(emulated.cu.cuIpcCloseMemHandle(first));
    }),
  );

  test('a second context of the same device may not open it too', deadline, () =>
    withPeer(async (peer) => {
      const emulated = Emulated.inContext();
      const handle = await peer.ask('memHandle', await peer.ask('allocate', 2 ** 22));
      const first = emulated.openMem(handle);
      emulated.ok(emulated.cu.cuCtxCreate_v2(OUT0, 0, device(0)));
      const own = readSize(OUT0) as CUcontext;
      assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, handle, 1), 400);
      emulated.ok(emulated.cu.cuCtxDestroy_v2(own));
      emulated.ok(emulated.cu.cuIpcCloseMemHandle(first));
    }),
  );

  test(
    'a handle of freed memory, or with any byte altered, is answered with a status',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const theirs = await peer.ask('allocate', 1024);
        const handle = await peer.ask('memHandle', theirs);
        for (let index = 0; index < 64; index += 1) {
          for (const flip of [0x01, 0x80, 0xff]) {
            const altered = withByte(handle, index, (handle.reserved[index] as number) ^ flip);
            const status = emulated.cu.cuIpcOpenMemHandle_v2(OUT0, altered, 1);
            // Only the size (40 to 47) and the spare bytes (60 on) can change and still fit.
            const mayFit = (index >= 40 && index < 48) || index >= 60;
            // Another pid (8 to 11) may be that of this process, whose own handles give 201.
            const refused = index >= 8 && index < 12 ? [1, 201, 400] : [1, 400];
            assert.ok((mayFit ? [0, 1] : refused).includes(status), `byte ${index}: ${status}`);
          }
        }
        await peer.ask('free', theirs);
        assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, handle, 1), 1);
        const again = await peer.ask('allocate', 1024);
        assert.equal(again, theirs);
        assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, handle, 1), 1);
      }),
  );

  test(
    'memory outlives its killed exporter where it is open, and cannot be opened anew',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const theirs = await peer.ask('allocate', 2 ** 22);
        const other = await peer.ask('memHandle', await peer.ask('allocate', 1024));
        await peer.ask('write', theirs, 23);
        const ours = emulated.openMem(await peer.ask('memHandle', theirs));
        await peer.kill();
        assert.equal(emulated.read(ours), 23);
        emulated.write(ours, 24);
        assert.equal(emulated.read(ours), 24);
        emulated.ok(emulated.cu.cuIpcCloseMemHandle(ours));
        assert.equal(emulated.cu.cuIpcOpenMemHandle_v2(OUT0, other, 1), 400);
      }),
  );

  test(
    'memory freed while another process has it open comes back when that one closes',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        for (const byteLength of [1024, 2 ** 22]) {
          const before = emulated.freeBytes();
          const theirs = await peer.ask('freeBytes');
          const memory = emulated.allocate(byteLength);
          emulated.write(memory, 31);
          const used = emulated.freeBytes();
          const opened = await peer.ask('openMem', emulated.memHandle(memory));
          assert.equal(await peer.ask('freeBytes'), theirs);
          emulated.free(memory);
          assert.equal(emulated.freeBytes(), used);
          assert.equal(await peer.ask('read', opened), 31);
          assert.equal(await peer.ask('cuIpcCloseMemHandle', opened), 0);
          assert.equal(emulated.freeBytes(), before);
        }
      }),
  );

  test(
    'memory freed while another process has it open comes back when that one dies',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const descriptors = openDescriptors();
        const before = emulated.freeBytes();
        const memory = emulated.allocate(2 ** 22);
        await peer.ask('openMem', emulated.memHandle(memory));
        emulated.free(memory);
        assert.equal(emulated.freeBytes(), before - 2 ** 22);
        await peer.kill();
        assert.equal(emulated.freeBytes(), before);
        assert.ok(openDescriptors() <= descriptors);
      }),
  );

  test('a value written by one process’s stream releases the other’s wait', deadline, () =>
    withPeer(async (peer) => {
      const emulated = Emulated.inContext();
      const memory = emulated.allocate(4);
      emulated.write(memory, 0);
      const stream = emulated.stream();
      emulated.ok(emulated.cu.cuStreamWaitValue32_v2(stream, memory, 3, 0));
      assert.equal(emulated.cu.cuStreamQuery(stream), 600);
      const theirs = await peer.ask('openMem', emulated.memHandle(memory));
      const theirStream = await peer.ask('stream');
      assert.equal(await peer.ask('cuStreamWriteValue32_v2', theirStream, theirs, 3, 0), 0);
      emulated.ok(emulated.cu.cuStreamSynchronize(stream));
    }),
  );

  test('an event recorded in one process is seen in the other, both ways', deadline, () =>
    withPeer(async (peer) => {
      const emulated = Emulated.inContext();
      const { cu } = emulated;
      const event = emulated.event(6);
      const theirs = await peer.ask('openEvent', emulated.eventHandle(event));
      const word = emulated.allocate(4);
      emulated.write(word, 0);
      const stream = emulated.stream(1);

      // Ours behind held work, theirs waits for it.
      emulated.ok(cu.cuStreamWaitValue32_v2(stream, word, 1, 0));
      emulated.ok(cu.cuEventRecord(event, stream));
      assert.equal(await peer.ask('cuEventQuery', theirs), 600);
      const theirStream = await peer.ask('stream');
      assert.equal(await peer.ask('cuStreamWaitEvent', theirStream, theirs, 0), 0);
      assert.equal(await peer.ask('cuStreamQuery', theirStream), 600);
      emulated.write(word, 1);
      emulated.ok(cu.cuStreamSynchronize(stream));
      assert.equal(await peer.ask('cuEventSynchronize', theirs), 0);
      assert.equal(await peer.ask('cuStreamQuery', theirStream), 0);

      // Theirs, and ours waits for it.
      assert.equal(await peer.ask('cuEventRecord', theirs, theirStream), 0);
      emulated.ok(cu.cuEventSynchronize(event));
      assert.equal(cu.cuEventElapsedTime(OUT0, event, event), 400);
      assert.equal(await peer.ask('cuEventDestroy_v2', theirs), 0);
      emulated.ok(cu.cuEventQuery(event));
    }),
  );

  test(
    'an opened event is unmapped when destroyed, and one of a dead process is done',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const { cu } = emulated;
        const [kept, gone] = [await peer.ask('event', 6), await peer.ask('event', 6)];
        const handle = await peer.ask('eventHandle', kept);
        const goneHandle = await peer.ask('eventHandle', gone);
        assert.equal(await peer.ask('cuEventDestroy_v2', gone), 0);
        assert.equal(cu.cuIpcOpenEventHandle(OUT0, goneHandle), 400);
        const mapped = mappings('cuffi.events');
        const event = emulated.openEvent(handle);
        assert.equal(cu.cuIpcGetEventHandle(BLOCK, event), 400);
        emulated.ok(cu.cuEventDestroy_v2(event));
        assert.equal(mappings('cuffi.events'), mapped);
        await peer.kill();
        const orphan = emulated.openEvent(handle);
        assert.equal(cu.cuEventQuery(orphan), 0);
        assert.equal(cu.cuEventElapsedTime(OUT0, orphan, orphan), 400);
      }),
  );

  test(
    'who waits for an event that its owner destroys, with no record of its own under way, goes on',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const { cu } = emulated;
        const theirs = await peer.ask('event', 6);
        const event = emulated.openEvent(await peer.ask('eventHandle', theirs));
        const word = emulated.allocate(4);
        emulated.write(word, 0);
        const [recording, waiting] = [emulated.stream(1), emulated.stream(1)];
        emulated.ok(cu.cuStreamWaitValue32_v2(recording, word, 1, 0));
        emulated.ok(cu.cuEventRecord(event, recording));
        emulated.ok(cu.cuStreamWaitEvent(waiting, event, 0));
        assert.equal(cu.cuStreamQuery(waiting), 600);
        assert.equal(await peer.ask('cuEventDestroy_v2', theirs), 0);
        assert.equal(cu.cuStreamQuery(waiting), 0);
        assert.equal(cu.cuStreamQuery(recording), 600);
        emulated.write(word, 1);
        emulated.ok(cu.cuStreamSynchronize(recording));
        emulated.ok(cu.cuEventDestroy_v2(event));
      }),
  );

  test('a recorder killed before its record leaves the others waiting, and usable', deadline, () =>
    withPeer(async (peer) => {
      leaves(/#tick/, 'a stream of the emulated driver waits for an event that never comes');
      const emulated = Emulated.inContext();
      const { cu } = emulated;
      const event = emulated.event(6);
      const theirs = await peer.ask('openEvent', emulated.eventHandle(event));
      const stream = await peer.ask('stream');
      const word = await peer.ask('allocate', 4);
      await peer.ask('write', word, 0);
      assert.equal(await peer.ask('cuStreamWaitValue32_v2', stream, word, 1, 0), 0);
      assert.equal(await peer.ask('cuEventRecord', theirs, stream), 0);
      const waiting = emulated.stream(1);
      emulated.ok(cu.cuStreamWaitEvent(waiting, event, 0));
      await peer.kill();
      assert.equal(cu.cuStreamQuery(waiting), 600);
      assert.equal(cu.cuEventQuery(event), 600);
      emulated.write(emulated.allocate(4), 1);
    }),
  );
});
