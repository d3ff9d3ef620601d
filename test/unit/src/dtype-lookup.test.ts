import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  bfloat16,
  bool,
  Dtype,
  float16,
  float32,
  int8,
  uint8,
  uint16,
} from '../../../src/dtype.ts';
import { dtype, dtypeFromDlpack, dtypeOf, dtypes } from '../../../src/dtype-lookup.ts';
import type { NativeFloat16Array } from '../../../src/typed-array.ts';

test('every dtype is found by its name, its typestr, its DLPack type and as itself', () => {
  assert.equal(dtypes.length, 15);
  for (const each of [...dtypes, Dtype.bytes(12), Dtype.bytes(65_535)]) {
    assert.equal(dtype(each), each);
    assert.equal(dtype(each.name).name, each.name);
    assert.equal(dtype(each.typestr).name, each.name);
    assert.equal(dtypeFromDlpack(each.dlpack).name, each.name);
  }
});

test('a typestr may say the native byte order, or none', () => {
  for (const typestr of ['<f4', '=f4', '|f4', 'f4']) assert.equal(dtype(typestr), float32);
  for (const typestr of ['|u1', '<u1', '=u1', '>u1', 'u1']) assert.equal(dtype(typestr), uint8);
  for (const typestr of ['|b1', 'b1', '>b1']) assert.equal(dtype(typestr), bool);
  assert.equal(dtype('|i1'), int8);
  for (const typestr of ['|V12', '<V12', '>V12', 'V12']) assert.equal(dtype(typestr).name, 'V12');
});

test('<V2 is bfloat16, and any other V2 is two raw bytes', () => {
  assert.equal(dtype('<V2'), bfloat16);
  for (const typestr of ['|V2', '=V2', '>V2', 'V2']) assert.equal(dtype(typestr).name, 'V2');
});

test('big-endian items are refused with what to do', () => {
  assert.throws(() => dtype('>f4'), {
    name: 'TypeError',
    message: "'>f4' is big-endian, and GPUs are little-endian: swap the bytes, and say '<f4'",
  });
  for (const typestr of ['>i2', '>u8', '>c16', '>f2'])
    assert.throws(() => dtype(typestr), TypeError);
});

test('fields are refused with what to do', () => {
  const message =
    "a dtype with fields is not supported: take its items as raw bytes, e.g. 'V12' for 12 each";
  for (const fields of ['i4,f4', [['x', '<i4']], []])
    assert.throws(() => dtype(fields as never), { name: 'TypeError', message });
});

test('what is no dtype is refused, and the known ones are named', () => {
  assert.throws(() => dtype('float8'), {
    name: 'TypeError',
    message: /^there is no dtype "float8"; known: bool, int8, .*complex128, V<itemsize>, and/,
  });
  const unknown = ['', 'f3', '<f16', '<U4', 'S3', 'O', '<M8[ns]', 'V012', '<f04', 'v4', 'V'];
  for (const name of [...unknown, 'toString', '__proto__', '<<f4', 'f4 ', `V${'9'.repeat(30)}`])
    assert.throws(() => dtype(name), { name: 'TypeError', message: /^there is no dtype/ }, name);
  for (const name of ['V0', 'V2147483648', '|V0'])
    assert.throws(() => dtype(name), { name: 'RangeError', message: /^itemsize/ }, name);
  for (const wrong of [4, null, undefined, {}, Float32Array])
    assert.throws(() => dtype(wrong as never), { name: 'TypeError', message: /must be a name/ });
});

test('a typed array has a dtype, and nothing else has', () => {
  for (const each of dtypes) {
    const found = dtypeOf(new each.TypedArray(1));
    assert.equal(found.TypedArray, each.TypedArray);
    assert.equal(found.elementsPerItem, 1);
  }
  assert.equal(dtypeOf(Buffer.alloc(1)), uint8);
  assert.equal(dtypeOf(new Uint8ClampedArray(1)), uint8);
  for (const wrong of [
    [1],
    null,
    undefined,
    new DataView(new ArrayBuffer(1)),
    new ArrayBuffer(1),
    5,
  ])
    assert.throws(() => dtypeOf(wrong as never), {
      name: 'TypeError',
      message: /^only typed arrays/,
    });
});

const { Float16Array: Native } = globalThis as unknown as {
  readonly Float16Array?: new (length: number) => NativeFloat16Array;
};

test('a native Float16Array is of float16', { skip: !Native && 'Node has none yet' }, () => {
  const array = new (Native as NonNullable<typeof Native>)(1);
  assert.equal(dtypeOf(array), float16);
  assert.ok(float16.accepts(array));
  assert.ok(!bfloat16.accepts(array));
});

test('an array that calls itself another kind is of what it is', () => {
  class Named extends Uint16Array {
    override get [Symbol.toStringTag](): 'Uint16Array' {
      return 'Float32Array' as 'Uint16Array';
    }
  }
  assert.equal(dtypeOf(new Named(1)), uint16);
  assert.ok(!float32.accepts(new Named(1)));
});

test('vectors of DLPack are raw bytes, and types that cuffi lacks are refused', () => {
  assert.equal(dtypeFromDlpack({ code: 2, bits: 32, lanes: 4 }).name, 'V16');
  for (const [code, bits] of [
    [3, 64],
    [10, 8],
    [17, 4],
    [2, 8],
    [6, 1],
  ] as const)
    assert.throws(() => dtypeFromDlpack({ code, bits, lanes: 1 }), {
      name: 'TypeError',
      message: new RegExp(
        `^there is no dtype for DLPack's code ${code} with ${bits} bits; known: b`,
      ),
    });
  for (const wrong of [{ lanes: 0 }, { lanes: 65_536 }, { bits: 256 }, { code: -1 }, { bits: 0.5 }])
    assert.throws(
      () => dtypeFromDlpack({ code: 2, bits: 32, lanes: 1, ...wrong }),
      RangeError,
      JSON.stringify(wrong),
    );
  assert.throws(() => dtypeFromDlpack({ code: 2, bits: 32 } as never), TypeError);
});
