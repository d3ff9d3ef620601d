/** Checked by tsc alone: an array knows its items by its dtype, and dtypes do not mix. */
import { expectTypeOf } from 'expect-type';
import {
  type bool,
  type Complex,
  type complex64,
  type DeviceArray,
  Dtype,
  deviceArray,
  deviceArrayLike,
  dlpack,
  float16,
  float32,
  type float64,
  fromCudaArrayInterface,
  fromDLPack,
  fromPointer,
  type Item,
  int64,
  managedArray,
  mappedArray,
  type NativeFloat16Array,
  type Nested,
  type PinnedArray,
  pinnedArray,
  type TypedArray,
  toDevice,
  toDeviceSync,
  toNested,
  uint8,
} from '../../src/index.ts';
import { openIpcArray } from '../../src/ipc/index.ts';

type Floats = DeviceArray<typeof float32>;
declare const floats: Floats;
declare const doubles: DeviceArray<typeof float64>;
declare const any: DeviceArray;

// What is made of a source has its dtype.
expectTypeOf(toDeviceSync(new Float32Array(4))).toEqualTypeOf<Floats>();
expectTypeOf(toDevice(new Float32Array(4))).toEqualTypeOf<Promise<Floats>>();
expectTypeOf(toDevice(Buffer.alloc(4))).resolves.toEqualTypeOf<DeviceArray<typeof uint8>>();
expectTypeOf(toDevice([[1, 2]])).resolves.toEqualTypeOf<DeviceArray<typeof float64>>();
expectTypeOf(toDevice([[true]])).resolves.toEqualTypeOf<DeviceArray<typeof bool>>();
expectTypeOf(toDevice([1n])).resolves.toEqualTypeOf<DeviceArray<typeof int64>>();
expectTypeOf(toDevice(7)).resolves.toEqualTypeOf<DeviceArray<typeof float64>>();
expectTypeOf(toDevice(floats, { device: 1 })).resolves.toEqualTypeOf<Floats>();
expectTypeOf(toDevice(pinnedArray(4, uint8))).resolves.toEqualTypeOf<DeviceArray<typeof uint8>>();
expectTypeOf(toDevice([[1, 2]], { dtype: float32, shape: 2 })).resolves.toEqualTypeOf<Floats>();
expectTypeOf(toDeviceSync([1, 2], { to: floats })).toEqualTypeOf<Floats>();
expectTypeOf(deviceArray([2, 3])).toEqualTypeOf<DeviceArray<typeof float64>>();
expectTypeOf(deviceArray([2, 3], float32, { order: 'F' })).toEqualTypeOf<Floats>();
expectTypeOf(deviceArrayLike(floats)).toEqualTypeOf<Floats>();
expectTypeOf(deviceArrayLike(doubles, { dtype: float32 })).toEqualTypeOf<Floats>();
expectTypeOf(fromPointer(1, { shape: 4, dtype: float32 })).toEqualTypeOf<Floats>();
expectTypeOf(fromPointer(1, { shape: [4] })).toEqualTypeOf<DeviceArray<typeof float64>>();
expectTypeOf(pinnedArray(3, float32)).toEqualTypeOf<PinnedArray<typeof float32>>();

const raw = { handle: '', shape: [4] };
expectTypeOf(openIpcArray({ ...raw, dtype: float32 })).toEqualTypeOf<Floats>();
expectTypeOf(openIpcArray({ ...raw, dtype: 'float32' })).toEqualTypeOf<Floats>();
expectTypeOf(openIpcArray({ ...raw, dtype: 'float32' as string })).toEqualTypeOf<DeviceArray>();
// A message is unknown, as for openIpcBuffer and the like.
expectTypeOf(openIpcArray).parameter(0).toEqualTypeOf<unknown>();
process.once('message', (message) => {
  expectTypeOf(openIpcArray(message)).toEqualTypeOf<DeviceArray>();
  expectTypeOf(openIpcArray(message, { fds: [3], access: 'read' })).toEqualTypeOf<DeviceArray>();
});

// What comes from elsewhere has a dtype that only running finds out.
expectTypeOf(fromCudaArrayInterface({})).toEqualTypeOf<DeviceArray>();
expectTypeOf(fromDLPack(dlpack(floats))).toEqualTypeOf<DeviceArray>();
// @ts-expect-error: null is no stream to work in
fromDLPack(dlpack(floats), { stream: null });

// Views keep it, or take another one.
expectTypeOf(floats.slice(0, { step: 2 }, '...').T.ravel()).toEqualTypeOf<Floats>();
expectTypeOf(floats.split(2)).toEqualTypeOf<Floats[]>();
expectTypeOf(floats.view(uint8)).toEqualTypeOf<DeviceArray<typeof uint8>>();

// Copies to the host are its typed array; single items are JavaScript's.
expectTypeOf(floats.copyToHost()).toEqualTypeOf<Promise<Float32Array<ArrayBuffer>>>();
expectTypeOf(floats.copyToHostSync()).toEqualTypeOf<Float32Array<ArrayBuffer>>();
expectTypeOf(any.copyToHostSync()).toEqualTypeOf<TypedArray<ArrayBuffer>>();
expectTypeOf(floats.host).toEqualTypeOf<Float32Array<ArrayBuffer>>();
expectTypeOf(floats.get(1, 2)).toEqualTypeOf<Promise<number>>();
declare const complex: DeviceArray<typeof complex64>;
expectTypeOf(complex.getSync()).toEqualTypeOf<Complex>();
expectTypeOf(deviceArray(4, int64).getSync(0)).toEqualTypeOf<bigint>();
expectTypeOf(deviceArray(4, Dtype.bytes(12)).getSync(0)).toEqualTypeOf<Uint8Array>();
expectTypeOf(any.getSync()).toEqualTypeOf<Item>();

// Nested arrays have the items of the dtype and, if the shape is a tuple, its rank.
declare const anyShape: readonly number[];
expectTypeOf(toNested(new BigInt64Array(2), [2], { dtype: int64 })).toEqualTypeOf<bigint[]>();
expectTypeOf(toNested(new BigInt64Array(2), anyShape)).toEqualTypeOf<Nested<bigint>>();
expectTypeOf(toNested(new Float32Array(4), [2, 2])).toEqualTypeOf<number[][]>();
expectTypeOf(toNested(new Float32Array(4), [2], { dtype: 'complex64' })).toEqualTypeOf<Complex[]>();
expectTypeOf(toNested(new Float32Array(1), [])).toEqualTypeOf<number>();
expectTypeOf(toNested(new Uint8Array(2), floats.shape, { dtype: 'bool' })).toEqualTypeOf<
  Nested<boolean>
>();

// A name stands for its dtype.
expectTypeOf(deviceArray(4, 'float32')).toEqualTypeOf<Floats>();
expectTypeOf(deviceArray(4, 'V12')).toEqualTypeOf<
  DeviceArray<Dtype<'V12', Uint8Array<ArrayBuffer>>>
>();
expectTypeOf(mappedArray(4, 'float32')).toEqualTypeOf<Floats>();
expectTypeOf(managedArray(4, 'float32')).toEqualTypeOf<Floats>();
expectTypeOf(pinnedArray(3, 'float32')).toEqualTypeOf<PinnedArray<typeof float32>>();
expectTypeOf(toDevice([1, 2], { dtype: 'float32' })).resolves.toEqualTypeOf<Floats>();
expectTypeOf(toDeviceSync([1, 2], { dtype: 'float32' })).toEqualTypeOf<Floats>();
expectTypeOf(deviceArrayLike(doubles, { dtype: 'float32' })).toEqualTypeOf<Floats>();
expectTypeOf(deviceArrayLike({ shape: [2], dtype: 'float32' })).toEqualTypeOf<Floats>();
expectTypeOf(fromPointer(1, { shape: 4, dtype: 'float32' })).toEqualTypeOf<Floats>();
expectTypeOf(doubles.view('float32')).toEqualTypeOf<Floats>();
const likeGiven = <D extends Dtype>(dtype: D): DeviceArray<D> => deviceArray(2, dtype);
expectTypeOf(likeGiven(float32)).toEqualTypeOf<Floats>();
// @ts-expect-error there is no such dtype
deviceArray(4, 'float23');
// @ts-expect-error there is no such dtype
toDevice([1, 2], { dtype: 'double' });

// An array of one dtype is an array, but not one of another.
expectTypeOf<Floats>().toExtend<DeviceArray>();
expectTypeOf<Floats>().not.toExtend<DeviceArray<typeof float64>>();
expectTypeOf<DeviceArray>().not.toExtend<Floats>();

// What cannot work does not compile.
declare const halves: NativeFloat16Array;
void deviceArray(4, float16).copyFrom(halves);
void deviceArray(4, uint8).copyFrom(new Uint8ClampedArray(4));
void floats.copyFrom([[1, 2]]);
// @ts-expect-error other items
void floats.copyFrom(new Float64Array(4));
// @ts-expect-error other items
void floats.copyFrom(doubles);
// @ts-expect-error other items
floats.copyTo(doubles);
// @ts-expect-error other items
void floats.copyToHost(new Float64Array(4));
// @ts-expect-error other items
void toDevice(new Float64Array(4), { dtype: float32 });
// @ts-expect-error other items
void toDevice(doubles, { to: floats });
// @ts-expect-error no number
floats.fill('1');
// @ts-expect-error a real number
floats.fill({ re: 1, im: 0 });
// @ts-expect-error no such order
deviceArray(4, float32, { order: 'K' });
// @ts-expect-error read only
floats.shape[0] = 2;
// @ts-expect-error no strings
void toDevice(['1']);
