import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import {
  bfloat16,
  bool,
  complex64,
  complex128,
  Dtype,
  defaultDtype,
  float16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
} from '../../../src/dtype.ts';

/** Each with its name, itemsize, typestr, DLPack type and typed array. */
const table = [
  [bool, 'bool', 1, '|b1', [6, 8], Uint8Array],
  [int8, 'int8', 1, '|i1', [0, 8], Int8Array],
  [int16, 'int16', 2, '<i2', [0, 16], Int16Array],
  [int32, 'int32', 4, '<i4', [0, 32], Int32Array],
  [int64, 'int64', 8, '<i8', [0, 64], BigInt64Array],
  [uint8, 'uint8', 1, '|u1', [1, 8], Uint8Array],
  [uint16, 'uint16', 2, '<u2', [1, 16], Uint16Array],
  [uint32, 'uint32', 4, '<u4', [1, 32], Uint32Array],
  [uint64, 'uint64', 8, '<u8', [1, 64], BigUint64Array],
  [float16, 'float16', 2, '<f2', [2, 16], Uint16Array],
  [bfloat16, 'bfloat16', 2, '<V2', [4, 16], Uint16Array],
  [float32, 'float32', 4, '<f4', [2, 32], Float32Array],
  [float64, 'float64', 8, '<f8', [2, 64], Float64Array],
  [complex64, 'complex64', 8, '<c8', [5, 64], Float32Array],
  [complex128, 'complex128', 16, '<c16', [5, 128], Float64Array],
] as const;

test('each dtype is written as NumPy and DLPack write it, and held by its typed array', () => {
  for (const [dtype, name, itemsize, typestr, [code, bits], array] of table) {
    assert.equal(dtype.name, name);
    assert.equal(dtype.itemsize, itemsize, name);
    assert.equal(dtype.typestr, typestr);
    assert.deepEqual(dtype.dlpack, { code, bits, lanes: 1 }, name);
    assert.equal(dtype.TypedArray, array, name);
    assert.equal(dtype.elementsPerItem * array.BYTES_PER_ELEMENT, itemsize, name);
    assert.equal(new dtype.TypedArray(dtype.elementsPerItem).byteLength, itemsize, name);
    assert.equal(dtype.isRaw, false);
    assert.equal(String(dtype), name);
  }
  assert.equal(inspect(float32), 'Dtype float32');
  assert.equal(defaultDtype, float64);
});

test('raw bytes have their itemsize, and are a vector for DLPack as long as that has room', () => {
  const record = Dtype.bytes(12);
  const { name, itemsize, typestr, TypedArray, elementsPerItem, isRaw } = record;
  assert.deepEqual(
    { name, itemsize, typestr, TypedArray, elementsPerItem, isRaw },
    {
      name: 'V12',
      itemsize: 12,
      typestr: '|V12',
      TypedArray: Uint8Array,
      elementsPerItem: 12,
      isRaw: true,
    },
  );
  assert.deepEqual(record.dlpack, { code: 1, bits: 8, lanes: 12 });
  assert.equal(Dtype.bytes(65_535).dlpack.lanes, 65_535);
  assert.throws(() => Dtype.bytes(65_536).dlpack, {
    name: 'RangeError',
    message: 'DLPack has no type for V65536: at most 65535 bytes, not 65536',
  });
  for (const wrong of [0, -1, 1.5, 2 ** 31]) assert.throws(() => Dtype.bytes(wrong), RangeError);
  assert.throws(() => Dtype.bytes('12' as never), TypeError);
});

test('a dtype accepts the typed arrays that may hold its items, and no others', () => {
  const arrays = [
    new Int8Array(1),
    new Uint8Array(1),
    new Int16Array(1),
    new Uint16Array(1),
    new Int32Array(1),
    new Uint32Array(1),
    new BigInt64Array(1),
    new BigUint64Array(1),
    new Float32Array(1),
    new Float64Array(1),
  ];
  for (const [dtype, name, , , , type] of table)
    for (const array of arrays)
      assert.equal(
        dtype.accepts(array),
        array.constructor === type,
        `${name}, ${array.constructor.name}`,
      );
  assert.ok(uint8.accepts(Buffer.alloc(1)));
  assert.ok(uint8.accepts(new Uint8ClampedArray(1)));
  assert.ok(!bool.accepts(new Uint8ClampedArray(1)));
  for (const wrong of [new DataView(new ArrayBuffer(4)), new ArrayBuffer(4), [1], null, undefined])
    assert.ok(!float32.accepts(wrong));
});
