/** Arrays of other processes: by handle and over a connection, and with Python on a GPU. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import {
  Context,
  cudaArrayInterface,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  float32,
  fromBuffer,
  int16,
  MemoryPool,
  uint8,
  VirtualMemory,
} from '../../src/index.ts';
import {
  getIpcHandle,
  IpcArrayHandle,
  type IpcBufferDescriptor,
  openIpcArray,
  type RawIpcArray,
  ready,
  spawnPeer,
} from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import type { Request } from './fixtures/connected.ts';
import { WorkerProcess } from './fixtures/index.ts';
import { Mailbox } from './fixtures/mailbox.ts';
import { type Python, startPython } from './fixtures/python.ts';

const deadline = { timeout: 60_000 };

const programs = programFile(new URL('./fixtures/connected.ts', import.meta.url)).path;
const counting = (length: number): Float32Array => Float32Array.from({ length }, (_, i) => i);

/** Arrays that Python opens: whole, a part with gaps, columns first, and one item of many. */
const shapes: readonly (readonly [what: string, view: (all: Floats) => Floats])[] = [
  ['a whole array', (all) => all],
  ['a part with an offset and strides', (all) => all.slice({ start: 1, step: 2 }, { start: 3 })],
  ['a transposed part', (all) => all.slice({ start: 2 }, { step: 3 }).T],
  ['a column', (all) => all.slice('...', 5)],
];

type Floats = DeviceArray<typeof float32>;

/** One way in which a package opened an array: what it found, or why it could not. */
interface Way {
  readonly way: string;
  readonly values?: number[];
  readonly error?: string;
}

/** An array that numba shares. */
interface Shared extends RawIpcArray {
  readonly values: number[];
}

describe('arrays between processes', () => {
  test(
    'a handle goes by process.send: opened there, closed here, it is the same array',
    deadline,
    async () => {
      await using first = await WorkerProcess.ready();
      await using second = await WorkerProcess.ready();
      const message = await first.do<IpcBufferDescriptor>('shareArray', { key: 'x', columns: 6 });
      using handle = IpcArrayHandle.from(message);
      const array = handle.open() as DeviceArray<typeof float32>;
      assert.deepEqual([array.dtype, array.shape, array.buffer.isMapped], [float32, [4, 6], true]);
      assert.throws(() => handle.open(), { name: 'IpcError', message: /already open/ });
      assert.deepEqual(await array.copyToHost(), counting(24));
      // Passed on as it came: the first process's memory, cut down to what is sent.
      const part = array.slice({ start: 2 }, { step: -2 }).T;
      using passed = getIpcHandle(part);
      assert.deepEqual([passed.pid, passed.handle], [first.pid, message.handle]);
      const found = await second.do<number[]>('addTo', { message: passed, value: 100 });
      assert.deepEqual(found, [17, 23, 15, 21, 13, 19]);
      const own = array.slice({ step: -1 });
      assert.deepEqual(
        (await own.copyToHost()).map((value) => value % 100),
        Float32Array.from([3, 2, 1, 0].flatMap((row) => [...counting(6)].map((i) => row * 6 + i))),
      );
      assert.deepEqual(
        [...(await part.copyToHost())],
        found.map((value) => value + 100),
      );
      // The exporter's array is closed, and stays until its handle is.
      await first.do('closeArray', { key: 'x' });
      await first.do('flush');
      const again = openIpcArray(message);
      assert.equal(await again.get(3, 5), 123);
      again.close();
      handle.close();
      assert.throws(() => array.address, { name: 'ClosedError' });
      await Context.primary().flush();
      await first.do('closeHandle', { key: 'x' });
    },
  );

  test(
    'what a stream makes is awaited without blocking, and not for ever where its process is killed',
    deadline,
    async () => {
      await using user = await WorkerProcess.ready();
      await user.do('shareArray', { key: 'x', columns: 100 });
      await user.do('hold');
      const message = await user.do<IpcBufferDescriptor>('shareFilled', { key: 'x' });
      using handle = IpcArrayHandle.from(message);
      const array = handle.open();
      assert.equal(await array.get(0, 50), 50);
      await assert.rejects(handle.ready({ timeoutMs: 5 }), { name: 'TimeoutError' });
      const others = [handle.ready(), ready(message, { timeoutMs: 20_000 })];
      await user.do('release');
      await Promise.all([handle.ready(), ...others]);
      assert.equal(await array.get(0, 50), 7);
      await user.do('hold');
      const late = await user.do<IpcBufferDescriptor>('shareFilled', { key: 'x' });
      const lost = assert.rejects(ready(late), { name: 'IpcError', code: 'exporter-gone' });
      await assert.rejects(ready(late, { timeoutMs: 5 }), { name: 'TimeoutError' });
      await user.kill();
      await lost;
      await assert.rejects(ready(late), { name: 'IpcError', code: 'exporter-gone' });
      await handle.ready();
    },
  );

  test(
    'arrays go over a connection anywhere in a value: views share a mapping, and keep their shape',
    deadline,
    async () => {
      using child = spawnPeer(programs);
      const ask = async <T>(request: Request): Promise<T> => {
        await child.send(request);
        return (await child.receive({ timeoutMs: 30_000 })) as T;
      };
      const recorder = recordCalls();
      const opened = (): number =>
        recorder.calls.filter((call) => call.name === 'cuIpcOpenMemHandle_v2').length;
      using all = deviceArray([3, 4], float32);
      const round = async (): Promise<void> => {
        await all.copyFrom(counting(12));
        const arrays = [all, all.slice(1), all.slice(1), all.slice('...', { step: -3 }).T];
        const found = await ask<Float32Array[]>({
          do: 'double',
          arrays: [...arrays, all.at(0).broadcastTo([2, 4])],
        });
        assert.deepEqual(
          found.map((values) => [...values]),
          [
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
            [8, 10, 12, 14],
            [16, 20, 24, 28],
            [6, 56, 22, 0, 32, 16],
            [0, 2, 4, 12, 0, 2, 4, 12],
          ],
        );
        assert.equal(await all.get(2, 3), 44);
        type Made = Record<'all' | 'backwards', DeviceArray> & { list: { column: DeviceArray }[] };
        const made = await ask<Made>({ do: 'makeArrays' });
        const columns = made.list.map(({ column }) => column);
        assert.deepEqual(
          columns.map((column) => column.address),
          [made.all.address + 8, made.all.address + 8],
        );
        columns[0]?.close();
        assert.deepEqual(await columns[1]?.copyToHost(), Float32Array.of(2, 5));
        assert.deepEqual(await made.backwards.copyToHost(), counting(6).reverse());
        for (const array of [made.all, made.backwards, columns[1]]) array?.close();
        await Context.primary().flush();
        await ask({ do: 'drop' });
      };
      await round();
      assert.equal(opened(), 1);
      recorder.stop();
      await round();
      const before = [processState(), await ask({ do: 'state' })];
      for (let i = 0; i < iterations(20, 1000); i += 1) await round();
      assert.deepEqual([processState(), await ask({ do: 'state' })], before);
      using empty = deviceArray([0, 4], float32);
      await assert.rejects(child.send({ list: [empty] }), { message: /without items/ });
    },
  );

  test('arrays in pools and virtual memory go from process to process to process', {
    ...deadline,
    skip: !MemoryPool.supported(0, { shareable: true }) && 'no shareable pools',
  }, async () => {
    using mailbox = new Mailbox();
    await using first = await WorkerProcess.ready();
    await using second = await WorkerProcess.ready();
    const pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
    const memory = VirtualMemory.reserve(8 << 20, { shareable: true });
    memory.grow(2 << 20);
    for (const buffer of [pool.allocate(1 << 20), memory.grow(4 << 20)]) {
      const readOnly = fromBuffer(buffer, 1, float32, { readOnly: true });
      const all = fromBuffer(buffer, 24, float32, {
        byteOffset: buffer.byteLength / 2 - 48,
      });
      await all.copyFrom(counting(24));
      const view = all.reshape([4, 6]).slice({ step: -1 }, { step: 3 });
      const expected = [18, 21, 12, 15, 6, 9, 0, 3];
      for (const [sent, change] of [
        [view, 0],
        [view.slice('...').T.T, 100],
        [readOnly, 0],
      ] as const) {
        if (sent.readOnly && buffer.resource === pool) {
          assert.throws(() => mailbox.send(sent, first.pid), {
            name: 'IpcError',
            message: /memory of a pool cannot be shared read-only/,
          });
          continue;
        }
        mailbox.send(sent, first.pid);
        await first.do('receive', { key: 'a' });
        await first.do('send', { key: 'a', pid: second.pid });
        await second.do('receive', { key: 'a' });
        const found = await second.do('addToReceived', { key: 'a', value: change });
        if (!sent.readOnly) assert.deepEqual(found, expected);
        await first.do('closeArray', { key: 'a' });
        await second.do('closeArray', { key: 'a' });
      }
      assert.deepEqual(
        [...(await view.copyToHost())],
        expected.map((value) => value + 100),
      );
      buffer.close();
    }
    for (const user of [first, second]) {
      await user.do('endSessions');
      await user.do('flush');
    }
    memory.close();
    await Context.primary().flush();
    pool.close();
  });

  test(
    'an array of another process opens by its bytes, with offset and strides',
    deadline,
    async () => {
      await using user = new WorkerProcess();
      const { handle, byteOffset } = await user.do<IpcBufferDescriptor>('allocate', {
        key: 'x',
        byteLength: 4096,
        value: 1,
      });
      const recorder = recordCalls();
      const count = (name: string): number =>
        recorder.calls.filter((call) => call.name === name && call.status === 0).length;
      const bytes = openIpcArray({ handle, shape: [4096], dtype: uint8, byteOffset });
      const part = openIpcArray({
        handle: new Uint8Array(Buffer.from(handle, 'base64')),
        shape: [3, 2],
        dtype: '<i2',
        strides: [-100, 2],
        byteOffset: byteOffset + 200,
      });
      part.fill(0x0202);
      assert.deepEqual([part.dtype, part.buffer.origin], [int16, 'imported']);
      const seen = [...(await bytes.copyToHost()).entries()].filter(([, value]) => value === 2);
      assert.deepEqual(
        seen.map(([place]) => place),
        [0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203],
      );
      assert.deepEqual((await user.do<{ values: number[] }>('read', { key: 'x' })).values, [2, 1]);
      assert.equal(count('cuIpcOpenMemHandle_v2'), 1);
      part.close();
      assert.throws(() => part.address, { name: 'ClosedError' });
      bytes.slice(0).close();
      await Context.primary().flush();
      assert.equal(count('cuIpcCloseMemHandle'), 0);
      bytes.close();
      await Context.primary().flush();
      assert.equal(count('cuIpcCloseMemHandle'), 1);
      recorder.stop();
    },
  );

  test(
    'what is no array of another process is refused, and nothing stays mapped',
    deadline,
    async () => {
      await using user = new WorkerProcess();
      const allocation = { key: 'x', byteLength: 1 << 20, value: 1 };
      const { handle } = await user.do<IpcBufferDescriptor>('allocate', allocation);
      const good = { handle, shape: [1 << 18], dtype: float32 };
      const recorder = recordCalls();
      const wrong: readonly (readonly [change: object, message: RegExp])[] = [
        [{ handle: handle.slice(4) }, /handle has 61 bytes, not 64/],
        [{ handle: 7 }, /handle must be a Uint8Array/],
        [{ dtype: 'float' }, /there is no dtype "float"/],
        [{ shape: 4 }, /shape must be an array/],
        [{ strides: [4, 4] }, /2 strides do not fit/],
        [{ byteOffset: -4 }, /byteOffset must be an integer/],
        [{ offset: 4 }, /unknown option 'offset'/],
      ];
      for (const [change, message] of wrong)
        assert.throws(() => openIpcArray({ ...good, ...change }), { message });
      assert.deepEqual(recorder.calls, [], 'the driver was not asked');
      for (const change of [{ byteOffset: 4 }, { strides: [-4] }, { shape: [(1 << 18) + 1] }])
        assert.throws(() => openIpcArray({ ...good, ...change }), {
          name: 'IpcError',
          message:
            /reach from byte -?\d+ to \d+ of an allocation of another process that has 1048576/,
        });
      await Context.primary().flush();
      const count = (name: string): number =>
        recorder.calls.filter((call) => call.name === name && call.status === 0).length;
      recorder.stop();
      assert.deepEqual([count('cuIpcOpenMemHandle_v2'), count('cuIpcCloseMemHandle')], [3, 3]);
    },
  );

  for (const python of ['numba', 'cupy', 'torch'] as const) {
    test(
      `${python} opens arrays of cuffi, and each sees what the other wrote`,
      deadline,
      async (t) => {
        await using program: Python | undefined = await startPython(python, t);
        if (!program) return;
        // In front of it another buffer, so that it does not begin where the driver's block does.
        using _neighbour = DeviceBuffer.allocate(512);
        using all = deviceArray([6, 8], float32);
        const numbers = Float32Array.from({ length: 48 }, (_, i) => i);
        const failed: Way[] = [];
        for (const [what, view] of shapes) {
          all.copyFromSync(numbers);
          const part = view(all);
          using shared = getIpcHandle(part);
          const { handle, byteOffset, layout } = shared.toJSON();
          const described = cudaArrayInterface(part, { stream: null });
          assert.equal(layout?.dtype, 'float32');
          const ways: Way[] = await program.ask('open', {
            handle,
            byteOffset,
            described: { ...described, shape: layout.shape, strides: layout.strides },
          });
          // Each way adds 100 to what it found.
          let found = [...part.copyToHostSync()].map((value) => value % 100);
          for (const each of ways) {
            if (each.error !== undefined) {
              failed.push(each);
              continue;
            }
            assert.deepEqual(each.values, found, `${what}, ${each.way}`);
            found = found.map((value) => value + 100);
          }
          assert.deepEqual([...part.copyToHostSync()], found, `${what}: what it wrote is seen`);
          part.copyFromSync(Float32Array.from(found, (value) => value % 100));
          assert.deepEqual(all.copyToHostSync(), numbers, `${what}: nothing beside it changed`);
        }
        assert.deepEqual(failed, []);
      },
    );
  }

  test('cuffi opens arrays of numba, and each sees what the other wrote', deadline, async (t) => {
    await using program: Python | undefined = await startPython('numba', t);
    if (!program) return;
    for (const what of ['whole', 'part', 'fortran']) {
      const shared: Shared = await program.ask('share', { what });
      const { values, ...source } = shared;
      using array = openIpcArray({ ...source, dtype: float32 });
      assert.equal(source.dtype, float32.typestr);
      assert.deepEqual([...array.copyToHostSync()], values, what);
      const doubled = values.map((value) => value * 2);
      array.copyFromSync(Float32Array.from(doubled));
      assert.deepEqual(await program.ask<number[]>('read', { what }), doubled, what);
    }
    await Context.primary().flush();
  });
});
