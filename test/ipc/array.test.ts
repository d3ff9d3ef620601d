/** Arrays of other processes: by the driver's handle alone, and with Python on a GPU. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import {
  Context,
  cudaArrayInterface,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  float32,
  int16,
  uint8,
} from '../../src/index.ts';
import {
  getIpcHandle,
  type IpcBufferDescriptor,
  openIpcArray,
  type RawIpcArray,
} from '../../src/ipc/index.ts';
import { User } from './fixtures/index.ts';
import { type Python, startPython } from './fixtures/python.ts';

const deadline = { timeout: 60_000 };

test(
  'an array of another process opens by its bytes, with offset and strides',
  deadline,
  async () => {
    await using user = new User();
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
    await using user = new User();
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
        const { handle, byteOffset } = getIpcHandle(all.buffer);
        const described = cudaArrayInterface(part, { stream: null });
        const ways: Way[] = await program.ask('open', {
          handle,
          byteOffset: byteOffset + part.byteOffset,
          described: { ...described, strides: part.strides },
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

/** An array that numba shares. */
interface Shared extends RawIpcArray {
  readonly values: number[];
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
