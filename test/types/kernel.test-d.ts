/** Checked by tsc alone: a kernel's launch takes what its parameters say. */
import { expectTypeOf } from 'expect-type';
import { registerKernel } from '../../ffi/index.ts';
import type {
  Arguments,
  DeviceArray,
  DeviceBuffer,
  float32,
  float64,
  Graph,
  HostMemory,
  Kernel,
  Module,
} from '../../src/index.ts';

declare const module: Module;
declare const floats: DeviceArray<typeof float32>;
declare const doubles: DeviceArray<typeof float64>;
declare const buffer: DeviceBuffer;
declare const graph: Graph;

const kernel = module.kernel('k', [
  'float32',
  'float32*',
  'pointer',
  'int64',
  'bool',
  { bytes: 12 },
]);
const shape = { grid: [1, 2], block: 256 } as const;

// Literal types are kept without `as const`.
expectTypeOf(module.kernel('none', [])).toEqualTypeOf<Kernel<readonly []>>();
expectTypeOf<Arguments<readonly ['float32', 'uint64', 'bool']>>().toEqualTypeOf<
  [number, number | bigint, boolean]
>();
expectTypeOf<Arguments<readonly [{ readonly bytes: 12 }]>>().toEqualTypeOf<[HostMemory]>();

kernel.launch(shape, 1.5, floats, doubles, 7n, true, new Uint8Array(12));
kernel.launch(shape, 1.5, buffer, 4096, 7, false, new ArrayBuffer(12));
kernel.launch(shape, 1.5, null, { address: 1 }, 7, false, new DataView(new ArrayBuffer(12)));

// @ts-expect-error: its items are float64
kernel.launch(shape, 1.5, doubles, doubles, 7n, true, new Uint8Array(12));
// @ts-expect-error: one argument too few
kernel.launch(shape, 1.5, floats, doubles, 7n, true);
// @ts-expect-error: host memory is no pointer
kernel.launch(shape, 1.5, new Float32Array(4), doubles, 7n, true, new Uint8Array(12));
// @ts-expect-error: a float is no bigint
kernel.launch(shape, 1n, floats, doubles, 7n, true, new Uint8Array(12));
// @ts-expect-error: there is no such option
kernel.launch({ ...shape, shared: 4 }, 1.5, floats, doubles, 7n, true, new Uint8Array(12));
// @ts-expect-error: there is no such type
module.kernel('k', ['float']);
// @ts-expect-error: a grid is needed
kernel.launch({ block: 1 }, 1.5, floats, doubles, 7n, true, new Uint8Array(12));

const node = graph.kernelNode(kernel, 1);
graph.setArguments(node, 1.5, floats, doubles, 7n, true, new Uint8Array(12));
// @ts-expect-error: its items are float64
graph.setArguments(node, 1.5, doubles, doubles, 7n, true, new Uint8Array(12));
// @ts-expect-error: one argument too few
graph.setArguments(node, 1.5, floats, doubles, 7n, true);

registerKernel('k', {
  params: ['float32', 'pointer', 'int64', 'bool', { bytes: 12 }],
  run(launch, args) {
    expectTypeOf(args).toEqualTypeOf<readonly [number, number, bigint, boolean, Uint8Array]>();
    expectTypeOf(launch.view(args[1], Float64Array, 4)).toExtend<Float64Array>();
  },
});
