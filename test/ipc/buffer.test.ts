import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { cu, recordCalls } from '../../ffi/driver.ts';
import type { CUcontext } from '../../ffi/types.ts';
import { Context, Device, DeviceBuffer, Stream } from '../../src/index.ts';
import { getIpcHandle, type IpcBufferDescriptor, openIpcBuffer } from '../../src/ipc/index.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { emulated } from '../support/driver.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { valuesOf } from '../support/layouts.ts';
import { processState } from '../support/process-state.ts';
import { SharedProcesses } from '../support/shared-processes.ts';
import { type Read, WorkerProcess } from './fixtures/index.ts';

if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const deadline = { timeout: 60_000 };

const shared = new SharedProcesses(2, {
  start: () => new WorkerProcess(),
  clear: (user) => user.do('clear'),
  end: (user) => user.kill(),
});

describe('buffers between processes', () => {
  test('what one process writes the other reads, both ways', deadline, async () => {
    const [user] = shared.lend();
    using buffer = DeviceBuffer.allocate(1 << 20);
    buffer.fill(17);
    await Context.primary().synchronize();
    const opened = await user.do<{ byteLength: number; origin: string }>('open', {
      key: 'a',
      message: getIpcHandle(buffer),
    });
    assert.equal(opened.byteLength, 1 << 20);
    assert.equal(opened.origin, 'imported');
    assert.deepEqual(await user.do<Read>('read', { key: 'a' }), {
      values: [17],
      byteLength: 1 << 20,
    });
    await user.do('fill', { key: 'a', value: 18 });
    assert.deepEqual(await valuesOf(buffer), [18]);
    await user.do('close', { key: 'a' });
  });

  test(
    'process.send of the buffer itself sends a description, and opening that says what to send',
    deadline,
    async () => {
      const [user] = shared.lend();
      using buffer = DeviceBuffer.allocate(16);
      await assert.rejects(user.do('open', { key: 'a', message: buffer }), {
        message: /the description of an object, not the object: send what getIpcHandle\(\) returns/,
      });
      await user.do('open', { key: 'a', message: getIpcHandle(buffer) });
      await user.do('close', { key: 'a' });
    },
  );

  test(
    'a sub-range arrives as that range, also of a small allocation beside others',
    deadline,
    async () => {
      const [user] = shared.lend();
      using neighbour = DeviceBuffer.allocate(1000);
      using buffer = DeviceBuffer.allocate(1000);
      neighbour.fill(1);
      buffer.fill(2);
      buffer.subarray(300, 400).fill(3);
      await Context.primary().synchronize();
      const descriptor = getIpcHandle(buffer.subarray(300, 400));
      assert.equal(descriptor.byteOffset, 300);
      assert.equal(descriptor.byteLength, 100);
      await user.do('open', { key: 'part', message: descriptor });
      assert.deepEqual(await user.do<Read>('read', { key: 'part' }), {
        values: [3],
        byteLength: 100,
      });
      await user.do('fill', { key: 'part', value: 4 });
      const bytes = await buffer.copyToHost();
      assert.deepEqual([bytes[299], bytes[300], bytes[399], bytes[400]], [2, 4, 4, 2]);
      assert.deepEqual(await valuesOf(neighbour), [1]);
    },
  );

  test('opened twice it is mapped once, and closing one leaves the other', deadline, async () => {
    const [user] = shared.lend();
    const message = await user.do('allocate', { key: 'x', byteLength: 4096, value: 5 });
    const recorder = recordCalls();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name).length;
    const first = openIpcBuffer(message);
    const second = openIpcBuffer(JSON.parse(JSON.stringify(message)));
    assert.equal(first.address, second.address);
    assert.equal(count('cuIpcOpenMemHandle_v2'), 1);
    first.close();
    first.close();
    assert.throws(() => first.copyToHostSync(), { name: 'ClosedError' });
    assert.deepEqual(await valuesOf(second), [5]);
    assert.equal(count('cuIpcCloseMemHandle'), 0);
    second.close();
    await Context.primary().flush();
    assert.equal(count('cuIpcCloseMemHandle'), 1);
    using third = openIpcBuffer(message);
    assert.deepEqual(await valuesOf(third), [5]);
    recorder.stop();
  });

  test('in its own process a descriptor is refused in words, and the driver is not asked', () => {
    using buffer = DeviceBuffer.allocate(64);
    const descriptor = getIpcHandle(buffer);
    assert.equal(descriptor.pid, process.pid);
    const recorder = recordCalls();
    assert.throws(() => openIpcBuffer(descriptor), {
      name: 'IpcError',
      message: /made by this very process/,
    });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('a range beyond the allocation is refused, and nothing stays mapped', deadline, async () => {
    const [user] = shared.lend();
    const message = await user.do<IpcBufferDescriptor>('allocate', {
      key: 'x',
      byteLength: 1 << 20,
      value: 5,
    });
    const recorder = recordCalls();
    for (const change of [
      { byteLength: (1 << 20) + 1 },
      { byteOffset: 1 },
      { byteOffset: 2 ** 52 },
    ])
      assert.throws(() => openIpcBuffer(withChecksum({ ...message, ...change })), {
        name: 'IpcError',
        message: /names bytes \d+ to \d+ of an allocation of process \d+ that has 1048576/,
      });
    recorder.stop();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name && call.status === 0).length;
    assert.equal(count('cuIpcOpenMemHandle_v2'), count('cuIpcCloseMemHandle'));
  });

  test(
    'a descriptor that was corrupted on its way is refused without a driver call',
    deadline,
    async () => {
      const [user] = shared.lend();
      const message = await user.do<IpcBufferDescriptor>('allocate', {
        key: 'x',
        byteLength: 4 << 20,
        value: 5,
      });
      const recorder = recordCalls();
      for (let index = 0; index < 64; index += 1) {
        const bytes = Buffer.from(message.handle, 'base64');
        bytes[index] = (bytes[index] as number) ^ (1 << (index & 7));
        assert.throws(() => openIpcBuffer({ ...message, handle: bytes.toString('base64') }), {
          name: 'IpcError',
          message: /is corrupted/,
        });
      }
      for (const change of [
        { byteOffset: 1 },
        { byteLength: 1 },
        { bufferId: message.bufferId + 1 },
        { pid: 1 },
      ])
        assert.throws(() => openIpcBuffer({ ...message, ...change }), { name: 'IpcError' });
      recorder.stop();
      assert.deepEqual(recorder.calls, []);
    },
  );

  test('what the exporter has freed is refused', deadline, async () => {
    const [user] = shared.lend();
    const message = await user.do('allocate', { key: 'x', byteLength: 4 << 20, value: 5 });
    await user.do('close', { key: 'x' });
    await user.do('flush');
    assert.throws(() => openIpcBuffer(message), {
      name: 'IpcError',
      message: /freed the memory before it was opened/,
    });
  });

  test('an exporter that is killed leaves what is mapped usable, and new opens are refused', {
    timeout: iterations(60_000, 300_000),
  }, async () => {
    for (let kill = 0; kill < iterations(1, 100); kill += 1) {
      await using user = new WorkerProcess();
      const mapped = await user.do('allocate', { key: 'x', byteLength: 4 << 20, value: 5 });
      const late = await user.do('allocate', { key: 'y', byteLength: 4 << 20, value: 6 });
      using buffer = openIpcBuffer(mapped);
      await user.kill();
      assert.deepEqual(await valuesOf(buffer), [5]);
      buffer.fill(7);
      assert.deepEqual(await valuesOf(buffer), [7]);
      assert.throws(() => openIpcBuffer(late), { name: 'IpcError', message: /has exited/ });
    }
  });

  test('imported memory is passed on by the descriptor that it came with', deadline, async () => {
    const [owner, third] = shared.lend(2);
    const message = await owner.do('allocate', { key: 'x', byteLength: 4096, value: 5 });
    using buffer = openIpcBuffer(message);
    assert.deepEqual(getIpcHandle(buffer), message);
    await third.do('open', { key: 'x', message: getIpcHandle(buffer.subarray(8, 16)) });
    await third.do('fill', { key: 'x', value: 6 });
    const bytes = await buffer.copyToHost();
    assert.deepEqual([bytes[7], bytes[8], bytes[15], bytes[16]], [5, 6, 6, 5]);
  });

  test(
    'a second context of the same device cannot open it too, and says why',
    deadline,
    async () => {
      const [user] = shared.lend();
      const message = await user.do('allocate', { key: 'x', byteLength: 4 << 20, value: 5 });
      assert.equal(cu.cuCtxCreate_v2(OUT0, 0, Device.get().handle), 0);
      const handle = readHandle<CUcontext>(OUT0);
      assert.equal(cu.cuCtxPopCurrent_v2(OUT0), 0);
      const other = Context.fromHandle(handle);
      const here = openIpcBuffer(message);
      assert.throws(() => openIpcBuffer(message, { context: other }), {
        name: 'IpcError',
        message: /another context of this process has it open/,
      });
      here.close();
      await Context.primary().flush();
      const there = openIpcBuffer(message, { context: other });
      assert.deepEqual(await valuesOf(there), [5]);
      there.close();
      await other.flush();
      assert.equal(cu.cuCtxDestroy_v2(handle), 0);
    },
  );

  test('on two devices the same memory is mapped twice', deadline, async (t) => {
    const [owner, user] = shared.lend(2);
    if ((await user.do<number>('deviceCount')) < 2) {
      t.skip('needs a second GPU');
      return;
    }
    const message = await owner.do('allocate', { key: 'x', byteLength: 4 << 20, value: 5 });
    const here = await user.do<{ address: number }>('open', { key: 'here', message, device: 0 });
    const there = await user.do<{ address: number }>('open', { key: 'there', message, device: 1 });
    assert.notEqual(here.address, there.address);
    await user.do('close', { key: 'here' });
    assert.deepEqual((await user.do<Read>('read', { key: 'there' })).values, [5]);
  });

  test('closing imported memory while the GPU is held up returns at once', deadline, async () => {
    const [user] = shared.lend();
    const message = await user.do('allocate', { key: 'x', byteLength: 4 << 20, value: 5 });
    const stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    const buffer = openIpcBuffer(message);
    latch.hold(stream);
    buffer.fill(6, { stream });
    buffer.close();
    assert.equal(stream.done, false);
    const again = openIpcBuffer(message);
    latch.open();
    await stream.synchronize();
    assert.deepEqual(await valuesOf(again), [6]);
    again.close();
    stream.close();
    await Context.primary().flush();
    latch[Symbol.dispose]();
  });

  test(
    'opening and closing many times leaves nothing behind on either side',
    deadline,
    async () => {
      const [user] = shared.lend();
      const rounds = iterations(25, 1000);
      const context = Context.primary();
      const cycle = async (): Promise<void> => {
        using mine = DeviceBuffer.allocate(3 << 20);
        const message = await user.do('allocate', { key: 'x', byteLength: 3 << 20, value: 5 });
        const buffer = openIpcBuffer(message);
        await user.do('open', { key: 'y', message: getIpcHandle(mine) });
        buffer.fill(1);
        await user.do('fill', { key: 'y', value: 2 });
        await user.do('close', { key: 'y' });
        await user.do('flush');
        buffer.close();
        await context.flush();
        await user.do('close', { key: 'x' });
        await user.do('flush');
      };
      await cycle();
      await cycle();
      const before = { here: processState(), there: await user.do('state') };
      for (let round = 0; round < rounds; round += 1) await cycle();
      assert.deepEqual({ here: processState(), there: await user.do('state') }, before);
    },
  );
});
