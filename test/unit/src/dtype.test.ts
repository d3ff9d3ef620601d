import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import {
  bfloat16,
  bool,
  complex64,
  complex128,
  Dtype,
  defaultDtype,
  dtype,
  dtypeFromDlpack,
  dtypeOf,
  dtypes,
  float8_e4m3fn,
  float8_e5m2,
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
import type { NativeFloat16Array } from '../../../src/typed-array.ts';

/** Each with its name, itemsize, typestr, DLPack type and typed array. */
describe('Dtype', () => {
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
    [float8_e4m3fn, 'float8_e4m3fn', 1, '|V1', [10, 8], Uint8Array],
    [float8_e5m2, 'float8_e5m2', 1, '|V1', [12, 8], Uint8Array],
    [float32, 'float32', 4, '<f4', [2, 32], Float32Array],
    [float64, 'float64', 8, '<f8', [2, 64], Float64Array],
    [complex64, 'complex64', 8, '<c8', [5, 64], Float32Array],
    [complex128, 'complex128', 16, '<c16', [5, 128], Float64Array],
  ] as const;

  test('each dtype has the notation of NumPy and DLPack, and its typed array', () => {
    for (const [dtype, name, itemsize, typestr, [code, bits], array] of table) {
      assert.equal(dtype.name, name);
      assert.equal(dtype.itemsize, itemsize, name);
      assert.equal(dtype.typestr, typestr);
      assert.deepEqual(dtype.dlpack, { code, bits, lanes: 1 }, name);
      assert.equal(dtype.TypedArray, array, name);
      assert.equal(dtype.elementsPerItem * array.BYTES_PER_ELEMENT, itemsize, name);
      assert.equal(new dtype.TypedArray(dtype.elementsPerItem).byteLength, itemsize, name);
      assert.equal(dtype.isRaw, name.startsWith('float8'));
      assert.equal(String(dtype), name);
    }
    assert.equal(inspect(float32), 'Dtype float32');
    assert.equal(defaultDtype, float64);
  });

  test('raw bytes have their itemsize, and are a vector in DLPack up to its limit', () => {
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
    for (const wrong of [
      new DataView(new ArrayBuffer(4)),
      new ArrayBuffer(4),
      [1],
      null,
      undefined,
    ])
      assert.ok(!float32.accepts(wrong));
  });
});

describe('dtype', () => {
  test('dtype() finds every dtype by its name, its typestr, its DLPack type and as itself', () => {
    assert.equal(dtypes.length, 17);
    for (const each of [...dtypes, Dtype.bytes(12), Dtype.bytes(65_535)]) {
      assert.equal(dtype(each), each);
      assert.equal(dtype(each.name).name, each.name);
      // The interface has no 8-bit floats.
      const isFloat8 = each.name.startsWith('float8');
      assert.equal(dtype(each.typestr).name, isFloat8 ? 'V1' : each.name);
      assert.equal(dtypeFromDlpack(each.dlpack).name, each.name);
    }
  });

  test('a typestr may have the native byte order, or none', () => {
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

  test('one raw byte is no 8-bit float, which only its name tells', () => {
    for (const typestr of ['|V1', '<V1', 'V1']) assert.equal(dtype(typestr).name, 'V1');
    assert.equal(dtype('float8_e4m3fn'), float8_e4m3fn);
    assert.equal(dtypeFromDlpack({ code: 12, bits: 8, lanes: 1 }), float8_e5m2);
    assert.equal(dtypeFromDlpack({ code: 10, bits: 8, lanes: 4 }).name, 'V4');
  });

  test('big-endian items are rejected with a hint', () => {
    assert.throws(() => dtype('>f4'), {
      name: 'TypeError',
      message: "'>f4' is big-endian, and GPUs are little-endian: swap the bytes, and use '<f4'",
    });
    for (const typestr of ['>i2', '>u8', '>c16', '>f2'])
      assert.throws(() => dtype(typestr), TypeError);
  });

  test('fields are rejected with a hint', () => {
    const message =
      "a dtype with fields is not supported: use raw bytes, e.g. 'V12' for items of 12 bytes";
    for (const fields of ['i4,f4', [['x', '<i4']], []])
      assert.throws(() => dtype(fields as never), { name: 'TypeError', message });
  });

  test('the error of a name that other languages and libraries use says which dtype that is', () => {
    const meant = {
      float: 'float32',
      double: 'float64',
      half: 'float16',
      int: 'int32',
      f32: 'float32',
      u8_: undefined,
      bf16: 'bfloat16',
      uint32_t: 'uint32',
      boolean: 'bool',
      complex: 'complex128',
      'torch.float16': 'float16',
      BigInt64Array: 'int64',
      Float32: 'float32',
      flaot32: undefined,
      float3: 'float32',
      tensor: undefined,
    };
    for (const [name, known] of Object.entries(meant))
      assert.throws(() => dtype(name), {
        name: 'TypeError',
        message: new RegExp(
          `^there is no dtype "${name}"${known ? ` \\(did you mean '${known}'\\?\\)` : ''}; known: `,
        ),
      });
  });

  test('an unknown dtype is rejected, and the error lists the known ones', () => {
    assert.throws(() => dtype('quaternion'), {
      name: 'TypeError',
      message: /^there is no dtype "quaternion"; known: bool, int8, .*complex128, V<itemsize>, and/,
    });
    const unknown = ['', 'f3', '<f16', '<U4', 'S3', 'O', '<M8[ns]', 'V012', '<f04', 'v4', 'V'];
    for (const name of [...unknown, 'toString', '__proto__', '<<f4', 'f4 ', `V${'9'.repeat(30)}`])
      assert.throws(() => dtype(name), { name: 'TypeError', message: /^there is no dtype/ }, name);
    for (const name of ['V0', 'V2147483648', '|V0'])
      assert.throws(() => dtype(name), { name: 'RangeError', message: /^itemsize/ }, name);
    for (const wrong of [4, null, undefined, {}, Float32Array])
      assert.throws(() => dtype(wrong as never), {
        name: 'TypeError',
        message: /a Dtype or its name/,
      });
  });

  test('only typed arrays have a dtype', () => {
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

  test('a native Float16Array has the dtype float16', {
    skip: !Native && 'Node has none yet',
  }, () => {
    const array = new (Native as NonNullable<typeof Native>)(1);
    assert.equal(dtypeOf(array), float16);
    assert.ok(float16.accepts(array));
    assert.ok(!bfloat16.accepts(array));
  });

  test('an array that claims another kind has the dtype of its real kind', () => {
    class Named extends Uint16Array {
      override get [Symbol.toStringTag](): 'Uint16Array' {
        return 'Float32Array' as 'Uint16Array';
      }
    }
    assert.equal(dtypeOf(new Named(1)), uint16);
    assert.ok(!float32.accepts(new Named(1)));
  });

  test('vectors of DLPack become raw bytes, and types that cuffi lacks are rejected', () => {
    assert.equal(dtypeFromDlpack({ code: 2, bits: 32, lanes: 4 }).name, 'V16');
    for (const [code, bits] of [
      [3, 64],
      [8, 8],
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
    for (const wrong of [
      { lanes: 0 },
      { lanes: 65_536 },
      { bits: 256 },
      { code: -1 },
      { bits: 0.5 },
    ])
      assert.throws(
        () => dtypeFromDlpack({ code: 2, bits: 32, lanes: 1, ...wrong }),
        RangeError,
        JSON.stringify(wrong),
      );
    assert.throws(() => dtypeFromDlpack({ code: 2, bits: 32 } as never), TypeError);
  });
});
