/** Checked by tsc alone: a dtype knows the typed array of its items, and dtypes do not mix. */
import { expectTypeOf } from 'expect-type';
import {
  type bfloat16,
  type bool,
  type complex64,
  type complex128,
  Dtype,
  type DtypeName,
  type DtypeOf,
  defaultDtype,
  dtype,
  dtypeOf,
  float16,
  float32,
  type float64,
  fromFloat16,
  type int8,
  int64,
  type TypedArray,
  toFloat16,
  uint8,
  type uint64,
} from '../../src/index.ts';

// A dtype carries the typed array that holds its items.
type HostArray<D extends Dtype> = InstanceType<D['TypedArray']>;
expectTypeOf<HostArray<typeof bool>>().toEqualTypeOf<Uint8Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof int8>>().toEqualTypeOf<Int8Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof int64>>().toEqualTypeOf<BigInt64Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof uint64>>().toEqualTypeOf<BigUint64Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof float16>>().toEqualTypeOf<Uint16Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof bfloat16>>().toEqualTypeOf<Uint16Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof float32>>().toEqualTypeOf<Float32Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof complex64>>().toEqualTypeOf<Float32Array<ArrayBuffer>>();
expectTypeOf<HostArray<typeof complex128>>().toEqualTypeOf<Float64Array<ArrayBuffer>>();
expectTypeOf<HostArray<Dtype>>().toEqualTypeOf<TypedArray<ArrayBuffer>>();
expectTypeOf(new float32.TypedArray(4)).toEqualTypeOf<Float32Array<ArrayBuffer>>();

// Each is a type of its own, and a Dtype.
expectTypeOf(float32).toExtend<Dtype>();
expectTypeOf(float32).not.toExtend<typeof float64>();
expectTypeOf(float16).not.toExtend<typeof bfloat16>();
expectTypeOf(float32).not.toExtend<typeof complex64>();
expectTypeOf(uint8).not.toExtend<typeof bool>();
expectTypeOf(defaultDtype).toEqualTypeOf<typeof float64>();
expectTypeOf(float32.name).toEqualTypeOf<'float32'>();
// @ts-expect-error the constructor is private
new Dtype();
// @ts-expect-error read only
float32.itemsize = 8;

// Raw bytes know their itemsize by their type.
expectTypeOf(Dtype.bytes(12)).toEqualTypeOf<Dtype<'V12', Uint8Array<ArrayBuffer>>>();
expectTypeOf(Dtype.bytes(12 as number).name).toEqualTypeOf<`V${number}`>();

// A known name gives the dtype itself; any string gives some dtype.
expectTypeOf(dtype('float32')).toEqualTypeOf<typeof float32>();
expectTypeOf(dtype(int64)).toEqualTypeOf<typeof int64>();
expectTypeOf(dtype('<f4')).toEqualTypeOf<Dtype>();
expectTypeOf<'float32'>().toExtend<DtypeName>();
expectTypeOf<'float'>().not.toExtend<DtypeName>();
// @ts-expect-error a dtype is no constructor of typed arrays
dtype(Float32Array);

// A typed array has one by its type.
expectTypeOf(dtypeOf(new Float32Array(4))).toEqualTypeOf<typeof float32>();
expectTypeOf(dtypeOf(new Uint8ClampedArray(4))).toEqualTypeOf<typeof uint8>();
expectTypeOf(dtypeOf(Buffer.alloc(4))).toEqualTypeOf<typeof uint8>();
expectTypeOf(dtypeOf(new BigInt64Array(4))).toEqualTypeOf<typeof int64>();
expectTypeOf<DtypeOf<Float32Array | Float64Array>>().toEqualTypeOf<
  typeof float32 | typeof float64
>();
declare const native: ArrayBufferView & {
  readonly [Symbol.toStringTag]: 'Float16Array';
  readonly length: number;
};
expectTypeOf(dtypeOf(native)).toEqualTypeOf<typeof float16>();
// @ts-expect-error a DataView has no items
dtypeOf(new DataView(new ArrayBuffer(4)));
// @ts-expect-error nor has an array of numbers one dtype
dtypeOf([1, 2]);

// 16-bit floats: one number or many.
expectTypeOf(toFloat16(1.5)).toEqualTypeOf<number>();
expectTypeOf(toFloat16([1.5])).toEqualTypeOf<Uint16Array<ArrayBuffer>>();
expectTypeOf(fromFloat16(0x3c00)).toEqualTypeOf<number>();
expectTypeOf(fromFloat16(new Uint16Array(1))).toEqualTypeOf<Float32Array<ArrayBuffer>>();
// @ts-expect-error bits are whole numbers of 16 bits
fromFloat16(new Float32Array(1));
