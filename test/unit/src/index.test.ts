/** What objects of cuffi are printed as, in text and by `console.log`: what they are, open and closed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import {
  bfloat16,
  CompiledCode,
  Context,
  CudaEvent,
  Device,
  DeviceBuffer,
  float32,
  Graph,
  int64,
  pinnedArray,
  Stream,
} from '../../../src/index.ts';
import { loadKernels } from '../../support/kernels.ts';
import { emulate, ForeignContext } from './emulate.ts';

describe('the objects of the public API', () => {
  test('objects that are never closed print what they are', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using foreign = new ForeignContext();
    const device = Device.get(1);
    const code = { log: '', names: new Map<string, string>() };
    const ptx = new CompiledCode({ ...code, kind: 'ptx', code: Buffer.from('.version 7.4') });
    const cubin = new CompiledCode({ ...code, kind: 'cubin', code: new Uint8Array(7) });
    const { name } = device;
    for (const [object, inText, shown] of [
      [device, `Device 1 (${name})`],
      [Context.primary(1), `Context of Device 1 (${name})`],
      [Context.fromHandle(foreign.handle), `Context of Device 0 (${Device.get(0).name}), borrowed`],
      [bfloat16, 'bfloat16', 'Dtype bfloat16'],
      [ptx, undefined, 'CompiledCode(ptx, 12 bytes)'],
      [cubin, undefined, 'CompiledCode(cubin, 7 bytes)'],
    ] as const) {
      if (inText !== undefined) assert.equal(String(object), inText);
      assert.equal(inspect([object]), `[ ${shown ?? inText} ]`);
    }
  });

  test('objects that can be closed print what they are, and whether they are closed', () => {
    emulate();
    const module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const stream = Stream.create({ nonBlocking: true });
    const buffer = DeviceBuffer.allocate(64);
    const graph = Graph.capture(stream, () =>
      narrow.launch({ grid: [2, 3], block: [8, 4, 2], stream }, buffer),
    );
    const node = graph.kernelNode(narrow);
    assert.equal(`${node}`, 'KernelNode(narrow, grid 2 x 3 x 1, block 8 x 4 x 2)');
    const rows = pinnedArray([2, 3], float32);
    const columns = pinnedArray([2, 3], int64, { order: 'F' });
    const objects: readonly (readonly [object: object, open: string, closed: string])[] = [
      // A kernel is closed with its module: it comes before.
      [narrow, 'Kernel(narrow)', 'Kernel(narrow, closed)'],
      [graph, 'Graph(1 kernel launch, on cuda:0)', 'Graph(1 kernel launch, on cuda:0, closed)'],
      [module, 'Module(on cuda:0)', 'Module(on cuda:0, closed)'],
      [stream, 'Stream(on cuda:0)', 'Stream(on cuda:0, closed)'],
      [CudaEvent.create(), 'CudaEvent(on cuda:0)', 'CudaEvent(on cuda:0, closed)'],
      [buffer, 'DeviceBuffer(64 bytes, allocated)', 'DeviceBuffer(64 bytes, allocated, closed)'],
      [rows, 'PinnedArray(float32 [2, 3], C)', 'PinnedArray(float32 [2, 3], C, closed)'],
      [columns, 'PinnedArray(int64 [2, 3], F)', 'PinnedArray(int64 [2, 3], F, closed)'],
    ];
    for (const [object, open] of objects) {
      assert.equal(String(object), open);
      assert.equal(inspect({ object }), `{ object: ${open} }`);
    }
    for (const [object] of objects)
      if (Symbol.dispose in object) (object as Disposable)[Symbol.dispose]();
    for (const [object, , closed] of objects) {
      assert.equal(String(object), closed);
      assert.equal(inspect({ object }), `{ object: ${closed} }`);
    }
  });
});
