import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { inspect } from 'node:util';
import { recordCalls } from '../../ffi/driver.ts';
import {
  bfloat16,
  bool,
  complex64,
  complex128,
  Device,
  type DeviceArray,
  DeviceMemory,
  float16,
  toDevice,
  VirtualMemory,
} from '../../src/index.ts';
import { loadTensors, saveTensors, TensorMap } from '../../src/tensors/index.ts';
import { formatBytes } from '../../src/validate.ts';
import { isSoak } from '../support/iterations.ts';
import {
  fileBytes,
  someBytes,
  TestFolder,
  type TestTensor,
  tensorFile,
} from '../support/safetensors.ts';

let folder: TestFolder;
before(() => {
  folder = new TestFolder();
});
after(() => folder[Symbol.dispose]());

/** The dtypes of the format, with the bits of an item, and the name in cuffi. */
const DTYPES: readonly (readonly [name: string, bits: number, dtype: string])[] = [
  ['BOOL', 8, 'bool'],
  ['U8', 8, 'uint8'],
  ['I8', 8, 'int8'],
  ['F8_E4M3', 8, 'float8_e4m3fn'],
  ['F8_E5M2', 8, 'float8_e5m2'],
  ['F8_E8M0', 8, 'uint8'],
  ['F8_E4M3FNUZ', 8, 'uint8'],
  ['F8_E5M2FNUZ', 8, 'uint8'],
  ['F4', 4, 'uint8'],
  ['F6_E2M3', 6, 'uint8'],
  ['F6_E3M2', 6, 'uint8'],
  ['U16', 16, 'uint16'],
  ['I16', 16, 'int16'],
  ['F16', 16, 'float16'],
  ['BF16', 16, 'bfloat16'],
  ['U32', 32, 'uint32'],
  ['I32', 32, 'int32'],
  ['F32', 32, 'float32'],
  ['U64', 64, 'uint64'],
  ['I64', 64, 'int64'],
  ['F64', 64, 'float64'],
  ['C64', 64, 'complex64'],
];

/** A tensor of each dtype. */
const ofEachDtype: Readonly<Record<string, TestTensor>> = Object.fromEntries(
  DTYPES.map(([dtype, bits], n) => {
    const bytes = someBytes((4 * 6 * bits) / 8, n);
    return [`of.${dtype}`, { dtype, shape: [4, 6], bytes }];
  }),
);

async function bytesOf(array: DeviceArray): Promise<Uint8Array> {
  const items = await array.copyToHost();
  return new Uint8Array(items.buffer, items.byteOffset, items.byteLength).slice();
}

describe('loadTensors', () => {
  test('gives every dtype its bytes, in one allocation, each at a multiple of 256 bytes', async () => {
    const path = folder.write('all.safetensors', tensorFile(ofEachDtype, { format: 'pt' }));
    using tensors = await loadTensors(pathToFileURL(path));
    assert.equal(tensors.size, DTYPES.length);
    assert.deepEqual(tensors.names(), Object.keys(ofEachDtype));
    assert.deepEqual([...tensors.metadata], [['format', 'pt']]);
    let byteLength = 0;
    for (const [name, array] of tensors) {
      const { dtype, shape, bytes } = ofEachDtype[name] as TestTensor;
      const [, bits, ours] = DTYPES.find(([each]) => each === dtype) ?? [];
      assert.deepEqual([tensors.dtypeOf(name), tensors.shapeOf(name)], [dtype, shape]);
      assert.equal(array.dtype.name, ours);
      assert.deepEqual(array.shape, (bits as number) % 8 === 0 ? shape : [bytes.byteLength]);
      assert.deepEqual(await bytesOf(array), bytes, name);
      assert.equal(array.address % 256, 0);
      assert.equal(array.buffer, tensors.buffer);
      byteLength += bytes.byteLength;
    }
    assert.equal(tensors.byteLength, byteLength);
    assert.equal(inspect(tensors), `TensorMap(22 tensors, ${formatBytes(byteLength)}, on cuda:0)`);
  });

  test('has scalars, empty tensors, and hostile names', async () => {
    const path = folder.write(
      'odd.safetensors',
      tensorFile({
        scalar: { dtype: 'F32', shape: [], bytes: new Uint8Array(Float32Array.of(1.5).buffer) },
        empty: { dtype: 'F64', shape: [0, 7], bytes: someBytes(0) },
        ['__proto__']: { dtype: 'U8', shape: [2], bytes: Uint8Array.of(3, 4) },
        last: { dtype: 'U8', shape: [0], bytes: someBytes(0) },
      }),
    );
    using tensors = await loadTensors(path);
    assert.deepEqual(tensors.get('scalar').shape, []);
    assert.deepEqual(await tensors.get('scalar').copyToHost(), Float32Array.of(1.5));
    assert.deepEqual(tensors.get('empty').shape, [0, 7]);
    assert.deepEqual(await tensors.get('empty').copyToHost(), new Float64Array(0));
    assert.deepEqual(await tensors.get('__proto__').copyToHost(), Uint8Array.of(3, 4));
    assert.ok(!tensors.has('constructor'));
    using nothing = await loadTensors(folder.write('none.safetensors', fileBytes('{}')));
    assert.deepEqual([nothing.size, nothing.byteLength, [...nothing]], [0, 0, []]);
  });

  test('loads only the chosen names; an unknown one is refused with the nearest', async () => {
    const path = folder.write('all.safetensors', tensorFile(ofEachDtype));
    using some = await loadTensors(path, { names: ['of.I64', 'of.U8'] });
    assert.deepEqual(some.names(), ['of.U8', 'of.I64']);
    assert.equal(some.byteLength, 24 + 192);
    assert.ok(!some.has('of.F32'));
    assert.deepEqual(await bytesOf(some.get('of.I64')), ofEachDtype['of.I64']?.bytes);
    assert.throws(
      () => some.get('of.I63'),
      /^RangeError: there is no tensor "of.I63" \(did you mean 'of.I64'\?\)/,
    );
    await assert.rejects(loadTensors(path, { names: ['of.F33'] }), {
      name: 'RangeError',
      message: /there is no tensor "of\.F33" \(did you mean 'of\.F32'\?\)/,
    });
  });

  test('two names may have the same bytes, also with other dtypes', async () => {
    const bytes = someBytes(8);
    const entry = (dtype: string, shape: number[]): string =>
      JSON.stringify({ dtype, shape, data_offsets: [0, 8] });
    const header = `{"embed":${entry('F32', [2])},"head":${entry('F32', [2])},"raw":${entry('U8', [8])}}`;
    using tensors = await loadTensors(folder.write('tied.safetensors', fileBytes(header, bytes)));
    assert.equal(tensors.byteLength, 8);
    const [embed, head, raw] = ['embed', 'head', 'raw'].map((name) => tensors.get(name));
    assert.equal(embed?.address, head?.address);
    (raw as DeviceArray).fill(0);
    assert.deepEqual(await head?.copyToHost(), Float32Array.of(0, 0));
  });

  test('reads the shards that an index names; its fingerprint is that of names and headers', async () => {
    const one = {
      a: { dtype: 'U8', shape: [3], bytes: someBytes(3, 1) },
      extra: { dtype: 'U8', shape: [1], bytes: someBytes(1) },
    };
    const two = {
      b: { dtype: 'I16', shape: [2], bytes: someBytes(4, 9) },
      a: { dtype: 'U8', shape: [1], bytes: someBytes(1, 5) },
    };
    const write = (first: typeof one): string => {
      folder.write('m-1.safetensors', tensorFile(first, { format: 'pt', from: '1' }));
      folder.write('m-2.safetensors', tensorFile(two, { from: '2' }));
      const weight_map = { b: 'm-2.safetensors', a: 'm-1.safetensors' };
      return folder.write(
        'm.safetensors.index.json',
        JSON.stringify({ metadata: { total_size: 7 }, weight_map }),
      );
    };
    const path = write(one);
    using tensors = await loadTensors(path);
    assert.deepEqual(tensors.names().sort(), ['a', 'b']);
    assert.deepEqual(await bytesOf(tensors.get('a')), someBytes(3, 1));
    assert.deepEqual(await bytesOf(tensors.get('b')), someBytes(4, 9));
    assert.deepEqual(Object.fromEntries(tensors.metadata), { format: 'pt', from: '2' });
    assert.match(tensors.fingerprint, /^[\da-f]{64}$/);
    {
      using chosen = await loadTensors(path, { names: ['b'] });
      assert.equal(chosen.fingerprint, tensors.fingerprint);
      using weights = await loadTensors(write({ ...one, a: { ...one.a, bytes: someBytes(3, 2) } }));
      assert.equal(weights.fingerprint, tensors.fingerprint);
    }
    using shapes = await loadTensors(write({ ...one, a: { ...one.a, shape: [3, 1] } }));
    assert.notEqual(shapes.fingerprint, tensors.fingerprint);
    using alone = await loadTensors(join(folder.path, 'm-2.safetensors'));
    assert.notEqual(alone.fingerprint, tensors.fingerprint);
  });

  test('saving page-locks memory once, however many tensors there are', async () => {
    const arrays = await Promise.all(
      Array.from({ length: 20 }, (_, n) => toDevice(new Float32Array(n + 1).fill(n))),
    );
    const target = join(folder.path, 'locked-once.safetensors');
    {
      using recorder = recordCalls();
      await saveTensors(target, new Map(arrays.map((array, n) => [`${n}`, array])));
      const locked = recorder.calls.filter(({ name }) => /^cuMemHost(Alloc|Register)/.test(name));
      assert.equal(locked.length, 1);
    }
    using tensors = await loadTensors(target);
    for (const [n, array] of arrays.entries()) {
      assert.deepEqual(await tensors.get(`${n}`).copyToHost(), await array.copyToHost());
      array.close();
    }
  });

  test('many small tensors, and one larger than the staging memory, arrive whole', async () => {
    const count = isSoak ? 20_000 : 2000;
    const many: Record<string, TestTensor> = {};
    for (let n = 0; n < count; n += 1)
      many[`t${n}`] = { dtype: 'U8', shape: [n % 9], bytes: someBytes(n % 9, n) };
    many['large'] = { dtype: 'U8', shape: [50_001], bytes: someBytes(50_001, 3) };
    const path = folder.write('many.safetensors', tensorFile(many));
    using tensors = await loadTensors(path, { stagingBytes: 8192 });
    const all = await tensors.buffer.copyToHost();
    for (const [name, { bytes }] of Object.entries(many)) {
      const { byteOffset } = tensors.get(name);
      assert.deepEqual(all.subarray(byteOffset, byteOffset + bytes.byteLength), bytes, name);
    }
  });

  test('its memory is virtual memory, which others can open, or that of a resource', async () => {
    const path = folder.write('all.safetensors', tensorFile(ofEachDtype));
    using memory = await loadTensors(path, { memory: DeviceMemory.create() });
    assert.ok(memory.buffer.resource instanceof DeviceMemory);
    assert.deepEqual(await bytesOf(memory.get('of.F16')), ofEachDtype['of.F16']?.bytes);
    using usual = await loadTensors(path);
    assert.equal(usual.buffer.resource, undefined);
    assert.ok(VirtualMemory.supported(Device.get()));
  });
});

describe('TensorMap', () => {
  test('closing it closes its arrays; closing an array frees nothing', async () => {
    const path = folder.write('all.safetensors', tensorFile(ofEachDtype));
    const tensors = await loadTensors(path);
    assert.ok(tensors instanceof TensorMap);
    const array = tensors.get('of.F32');
    tensors.get('of.F32').close();
    assert.deepEqual(await bytesOf(array), ofEachDtype['of.F32']?.bytes);
    const entries = tensors.entries();
    entries.next();
    tensors.close();
    tensors.close();
    assert.deepEqual([tensors.closed, array.closed], [true, true]);
    assert.throws(() => tensors.get('of.F32'), /^ClosedError: this TensorMap is closed/);
    assert.throws(() => entries.next(), /^ClosedError: this TensorMap is closed/);
    assert.equal(tensors.has('of.F32'), true);
    assert.match(inspect(tensors), /^TensorMap\(22 tensors, .*closed\)$/);
    assert.throws(() => new TensorMap({} as never), TypeError);
  });
});

describe('saveTensors', () => {
  test('what it writes is read back: all dtypes, any layout, empty, scalar, metadata', async () => {
    const path = join(folder.path, 'saved.safetensors');
    using matrix = await toDevice(
      [
        [1, 2, 3],
        [4, 5, 6],
      ],
      { dtype: 'float32' },
    );
    using scalar = await toDevice(Float64Array.of(2.5));
    using halves = await toDevice(Uint16Array.of(1, 2), { dtype: float16 });
    using brains = await toDevice(Uint16Array.of(3, 4), { dtype: bfloat16 });
    using bools = await toDevice(Uint8Array.of(1, 0), { dtype: bool });
    using complex = await toDevice(Float32Array.of(1, 2), { dtype: complex64 });
    await saveTensors(
      path,
      {
        transposed: matrix.T,
        row: matrix.at(1),
        none: matrix.slice({ stop: 0 }),
        scalar: scalar.at(0),
        ['__proto__']: bools,
        halves,
        brains,
        complex,
      },
      { metadata: { format: 'pt', note: 'é' }, stagingBytes: 4096 },
    );
    const bytes = readFileSync(path);
    const headerBytes = Number(bytes.readBigUInt64LE(0));
    assert.equal(headerBytes % 8, 0);
    // The first bytes are of the largest items.
    assert.equal(bytes.readDoubleLE(8 + headerBytes + 8), 2.5);
    using read = await loadTensors(path);
    assert.deepEqual(Object.fromEntries(read.metadata), { format: 'pt', note: 'é' });
    assert.deepEqual(read.get('transposed').shape, [3, 2]);
    assert.deepEqual(await read.get('transposed').copyToHost(), Float32Array.of(1, 4, 2, 5, 3, 6));
    assert.deepEqual(await read.get('row').copyToHost(), Float32Array.of(4, 5, 6));
    assert.deepEqual(read.get('none').shape, [0, 3]);
    assert.deepEqual(read.get('scalar').shape, []);
    assert.deepEqual(await read.get('__proto__').copyToHost(), Uint8Array.of(1, 0));
    assert.deepEqual(
      read
        .names()
        .map((name) => read.dtypeOf(name))
        .sort(),
      ['BF16', 'BOOL', 'C64', 'F16', 'F32', 'F32', 'F32', 'F64'],
    );
    assert.deepEqual(
      readdirSync(folder.path).filter((name) => name.endsWith('.tmp')),
      [],
    );
  });

  test('a map is written with the dtypes of its file, in slices, and replaces a file', async () => {
    const large = { dtype: 'F4', shape: [2, 20_001], bytes: someBytes(20_001) };
    const source = folder.write('all.safetensors', tensorFile({ ...ofEachDtype, large }));
    const target = folder.write('copy.safetensors', 'old');
    using tensors = await loadTensors(source);
    await saveTensors(target, tensors, { stagingBytes: 4096 });
    using copy = await loadTensors(target);
    assert.equal(copy.size, tensors.size);
    for (const name of tensors.names()) {
      assert.deepEqual(
        [copy.dtypeOf(name), copy.shapeOf(name)],
        [tensors.dtypeOf(name), tensors.shapeOf(name)],
      );
      assert.deepEqual(await bytesOf(copy.get(name)), await bytesOf(tensors.get(name)));
    }
  });

  test('a save that fails leaves the old file, and nothing else', async () => {
    const path = folder.write('kept.safetensors', 'old');
    const names = readdirSync(folder.path);
    using array = await toDevice(new Uint8Array(20_000));
    using wide = await toDevice(Float64Array.of(1, 2), { dtype: complex128 });
    await assert.rejects(
      saveTensors(path, { wide }),
      /^TypeError: safetensors files have no complex128: tensor "wide"/,
    );
    await assert.rejects(
      saveTensors(path, { array: 1 as never }),
      /^TypeError: tensor "array" must be a DeviceArray, not 1/,
    );
    await assert.rejects(
      saveTensors(path, 'x' as never),
      /^TypeError: tensors must be a TensorMap/,
    );
    await assert.rejects(
      saveTensors(path, { array }, { metadata: { a: 1 as never } }),
      /^TypeError: metadata: "a" must be a string, not 1/,
    );
    const reason = new Error('enough');
    await assert.rejects(
      saveTensors(path, { array }, { signal: AbortSignal.abort(reason) }),
      reason,
    );
    const controller = new AbortController();
    const saving = saveTensors(path, { array }, { signal: controller.signal, stagingBytes: 4096 });
    controller.abort(reason);
    await assert.rejects(saving, reason);
    const closing = saveTensors(path, { array }, { stagingBytes: 4096 });
    array.close();
    await assert.rejects(closing, { code: 'closed' });
    assert.equal(readFileSync(path, 'utf8'), 'old');
    assert.deepEqual(readdirSync(folder.path), names);
    assert.ok(!existsSync(`${path}.tmp`));
  });

  const noSafetensors =
    spawnSync('python3', ['-c', 'import numpy, safetensors.numpy']).status === 0
      ? false
      : 'python3 has no safetensors with numpy';
  test("Python's safetensors reads what it writes", { skip: noSafetensors }, async () => {
    const path = join(folder.path, 'python.safetensors');
    using matrix = await toDevice(
      [
        [1, 2],
        [3, 4],
      ],
      { dtype: 'float32' },
    );
    using bools = await toDevice(Uint8Array.of(1, 0), { dtype: bool });
    await saveTensors(path, { matrix, 'a.b': matrix.T, bools }, { metadata: { format: 'np' } });
    const program =
      "import sys, safetensors.numpy as s; t = s.load_file(sys.argv[1]); print(t['matrix'].tolist(), t['a.b'].tolist(), t['bools'].tolist())";
    const { stdout, stderr } = spawnSync('python3', ['-c', program, path], { encoding: 'utf8' });
    assert.equal(
      stdout,
      '[[1.0, 2.0], [3.0, 4.0]] [[1.0, 3.0], [2.0, 4.0]] [True, False]\n',
      stderr,
    );
  });
});
