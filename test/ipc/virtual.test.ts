import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cu, recordCalls } from '../../ffi/driver.ts';
import type { CUstream } from '../../ffi/types.ts';
import { Context, Device, DeviceBuffer, Stream, VirtualMemory } from '../../src/index.ts';
import type { IpcDescriptor } from '../../src/ipc/descriptor.ts';
import { exportIpc, openIpc, spawnPeer } from '../../src/ipc/index.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { emulated } from '../support/driver.ts';
import { iterations } from '../support/iterations.ts';
import { loadKernels } from '../support/kernels.ts';
import { valuesOf } from '../support/layouts.ts';
import { processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import { type Read, WorkerProcess } from './fixtures/index.ts';
import { Mailbox } from './fixtures/mailbox.ts';

if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const MIB = 1 << 20;
const device = Device.get();
const isSupported =
  VirtualMemory.supported(device) && device.attribute('handleTypePosixFileDescriptorSupported');
const options = {
  timeout: 60_000,
  skip: isSupported ? false : 'the device does not share virtual memory by file descriptor',
};

/** Changes a descriptor as a process in between could: its checksum is valid. */
const altered = (descriptor: object): never =>
  withChecksum({ ...descriptor, access: 'read-write' } as never) as never;

describe('virtual memory between processes', () => {
  test(
    'each piece goes by a descriptor of its own, and only those that are needed',
    options,
    async () => {
      using mailbox = new Mailbox();
      await using user = await WorkerProcess.ready();
      using memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
      memory.grow(2 * MIB);
      const buffer = memory.grow(5 * MIB);
      buffer.fill(1);
      await Context.primary().synchronize();
      assert.equal(mailbox.send(memory, user.pid), 2);
      await user.do('receive', { key: 'all' });
      const seam = buffer.subarray(2 * MIB - 8, 2 * MIB + 8);
      assert.equal(mailbox.send(seam, user.pid), 2);
      await user.do('receive', { key: 'seam' });
      assert.equal(mailbox.send(buffer.subarray(4 * MIB, 4 * MIB + 100), user.pid), 1);
      await user.do('receive', { key: 'end' });
      assert.deepEqual(await user.do<Read>('read', { key: 'all' }), {
        values: [1],
        byteLength: 5 * MIB,
      });
      await user.do('fill', { key: 'seam', value: 2 });
      await user.do('fill', { key: 'end', value: 3 });
      assert.deepEqual(await valuesOf(seam), [2]);
      const bytes = await buffer.copyToHost();
      assert.deepEqual([bytes[2 * MIB - 9], bytes[2 * MIB + 8]], [1, 1]);
      assert.deepEqual(
        [4 * MIB - 1, 4 * MIB, 4 * MIB + 99, 4 * MIB + 100].map((at) => bytes[at]),
        [1, 3, 3, 1],
      );
      await user.do('close', { key: 'all' });
      assert.deepEqual((await user.do<Read>('read', { key: 'seam' })).values, [2]);
    },
  );

  test('what is shared for reading is only read, by cuffi and by the driver', options, async () => {
    using mailbox = new Mailbox();
    await using user = await WorkerProcess.ready();
    await user.do('reserve', { key: 'x', byteLength: 3 * MIB, value: 5 });
    await user.do('send', { key: 'x', pid: process.pid, readOnly: true });
    const buffer = mailbox.receiveBuffer();
    using other = DeviceBuffer.allocate(16);
    assert.equal(buffer.access, 'read');
    const recorder = recordCalls();
    const readOnly = { name: 'TypeError', message: /this buffer is read-only/ };
    for (const view of [buffer, buffer.subarray(0, 16)]) {
      assert.throws(() => view.fill(1), readOnly);
      assert.throws(() => other.copyTo(view), readOnly);
      assert.throws(() => view.copyFromSync(new Uint8Array(16)), readOnly);
      await assert.rejects(view.copyFrom(new Uint8Array(16)), readOnly);
    }
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    assert.deepEqual(await valuesOf(buffer), [5]);
    buffer.subarray(0, 16).copyTo(other);
    assert.deepEqual(await valuesOf(other), [5]);
    const context = Context.primary();
    assert.equal(
      context.run(() => cu.cuMemsetD8Async(buffer.address, 1, 16, 0 as CUstream)),
      1,
    );
    const { descriptor } = exportIpc(buffer.subarray(1, 2));
    buffer.close();
    await context.flush();
    assert.throws(() => openIpc(descriptor), { name: 'IpcError', code: 'no-file-descriptor' });
  });

  test('another device is given access to memory of another process', {
    ...options,
    skip:
      options.skip ||
      (Device.count > 1 && Device.get(1).canAccessPeer(0)
        ? false
        : 'needs a second GPU that reaches the first'),
  }, async () => {
    using mailbox = new Mailbox();
    await using user = await WorkerProcess.ready();
    await user.do('reserve', { key: 'x', byteLength: 3 * MIB, value: 5 });
    await user.do('send', { key: 'x', pid: process.pid });
    const buffer = mailbox.receiveBuffer();
    using module = loadKernels({ device: 1 });
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ device: 1, nonBlocking: true });
    const last = buffer.subarray(3 * MIB - 4);
    const launch = (): void => narrow.launch({ grid: 1, block: 9, stream }, last);
    // Peer access is not for virtual memory.
    Context.primary(1).enablePeerAccess(Context.primary(0));
    assert.throws(launch, /^TypeError: argument 0 of kernel narrow .*allow access by allowAccess/);
    assert.throws(() => buffer.allowAccess(0), /^RangeError: the memory is on Device 0 .* itself/);
    buffer.subarray(0, 1).allowAccess(1);
    launch();
    await stream.synchronize();
    assert.deepEqual([...(await last.copyToHost())], [9, 0, 0, 0]);
    assert.deepEqual(await valuesOf(buffer.subarray(0, 3 * MIB - 4)), [5]);
    buffer.close();
    assert.throws(() => buffer.allowAccess(1), { name: 'ClosedError' });
    await Context.primary().flush();
  });

  test(
    'what was shared for reading is mapped for reading, whatever was made of its descriptor since',
    options,
    async () => {
      using mailbox = new Mailbox();
      await using user = await WorkerProcess.ready();
      await using third = await WorkerProcess.ready();
      using memory = VirtualMemory.reserve(5 * MIB, { shareable: true });
      memory.grow(2 * MIB);
      const buffer = memory.grow(4 * MIB);
      buffer.fill(1);
      await Context.primary().synchronize();
      const write = (who: WorkerProcess, key: string): Promise<unknown> =>
        who.do('writePast', { key, value: 2 });
      // The same pieces go both ways, and neither is taken for the other.
      for (const [key, isForReading] of [
        ['first', true],
        ['second', false],
        ['third', true],
      ] as const) {
        const { descriptor, fds } = exportIpc(isForReading ? buffer.readOnly() : buffer);
        mailbox.post({ descriptor: altered(descriptor), fds }, user.pid);
        const { access } = await user.do<{ access: string }>('receive', { key });
        assert.equal(access, isForReading ? 'read' : 'read-write');
        if (!isForReading) continue;
        await assert.rejects(user.do('fill', { key, value: 2 }), /this buffer is read-only/);
        assert.equal(await write(user, key), 1, 'the driver refuses as well');
      }
      assert.deepEqual(await valuesOf(buffer), [1]);
      assert.equal(await write(user, 'second'), 0);
      assert.deepEqual(await valuesOf(buffer.subarray(0, 16)), [2]);
      // What is passed on keeps it, by way of a third process too.
      await user.do('passOnAltered', { key: 'first', pid: third.pid });
      await third.do('receive', { key: 'x' });
      assert.equal(await write(third, 'x'), 1);
      assert.deepEqual((await third.do<Read>('read', { key: 'x' })).byteLength, 4 * MIB);
    },
  );

  test(
    'confirming a descriptor grants only the access that it was shared with',
    options,
    async () => {
      using child = spawnPeer(
        programFile(new URL('./fixtures/connected.ts', import.meta.url)).path,
      );
      const ask = async (request: object): Promise<unknown> => {
        await child.send(request);
        return child.receive({ timeoutMs: 30_000 });
      };
      const describe = (access: string) =>
        ask({ do: 'describe', value: access }) as Promise<IpcDescriptor>;
      try {
        await ask({ do: 'make', kind: 'virtual', byteLength: 100, value: 5 });
        // Also where it was shared for writing with another process.
        const forWriting = await describe('read-write');
        const forReading = await describe('read');
        using one = (await child.open(altered(forReading))) as DeviceBuffer;
        assert.equal(one.access, 'read');
        assert.deepEqual(await valuesOf(one), [5]);
        using other = (await child.open(forWriting)) as DeviceBuffer;
        assert.equal(other.access, 'read-write');
        await assert.rejects(child.open(altered({ ...forWriting, memory: '00'.repeat(16) })), {
          name: 'IpcError',
          code: 'exporter-gone',
        });
      } finally {
        child.process.kill('SIGKILL');
      }
    },
  );

  test(
    'it stays when its maker has ended, is passed on, and leaves nothing behind',
    options,
    async () => {
      using mailbox = new Mailbox();
      const context = Context.primary();
      await using third = await WorkerProcess.ready();
      const states = async () => [processState(), await third.do('state')];
      const round = async (): Promise<void> => {
        await using maker = await WorkerProcess.ready();
        await maker.do('reserve', { key: 'x', byteLength: 3 * MIB, value: 5 });
        await maker.do('send', { key: 'x', pid: process.pid });
        await maker.do('send', { key: 'x', pid: process.pid, begin: 10, end: 20 });
        const first = mailbox.receiveBuffer();
        await maker.kill();
        // Its descriptors came before it ended: they hold the memory.
        const part = mailbox.receiveBuffer();
        assert.equal(mailbox.send(part, third.pid), 1);
        await third.do('receive', { key: 'x' });
        first.close();
        assert.deepEqual(await third.do<Read>('read', { key: 'x' }), {
          values: [5],
          byteLength: 10,
        });
        await third.do('fill', { key: 'x', value: 6 });
        assert.deepEqual(await valuesOf(part), [6]);
        part.close();
        await third.do('close', { key: 'x' });
        await third.do('flush');
        await context.flush();
      };
      await round();
      const before = await states();
      for (let n = 0; n < iterations(1, 100); n += 1) await round();
      assert.deepEqual(await states(), before);
    },
  );
});
