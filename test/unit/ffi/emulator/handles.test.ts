/** Handles of destroyed objects: refused until they are reused. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, readSize, writeBytes } from '../../../../ffi/arena.ts';
import type {
  Address,
  CUcontext,
  CUevent,
  CUfunction,
  CUgraph,
  CUgraphExec,
  CUmemoryPool,
  CUmodule,
  CUstream,
} from '../../../../ffi/types.ts';
import { device, Emulated, LEGACY, NON_BLOCKING } from './support.ts';

/** How a kind of object is made and destroyed, and a call that names one. */
interface Kind {
  readonly make: (emulated: Emulated) => number;
  readonly destroy: (emulated: Emulated, handle: number) => number;
  readonly use: (emulated: Emulated, handle: number) => number;
  readonly refusal: RegExp;
}

const NO_ADDRESS = 0 as Address;
const PTX = Buffer.from('.version 8.0\n.target sm_90\n.visible .entry nothing()\n{\nret;\n}\n\0');

function loaded({ cu, ok }: Emulated): CUmodule {
  ok(cu.cuModuleLoadDataEx(OUT0, writeBytes(PTX), 0, NO_ADDRESS, NO_ADDRESS));
  return readSize(OUT0) as CUmodule;
}

/** A graph of one fill. */
function captured(emulated: Emulated): CUgraph {
  const { cu } = emulated;
  const own = emulated.stream(NON_BLOCKING);
  emulated.ok(cu.cuStreamBeginCapture_v2(own, 2));
  emulated.ok(cu.cuMemsetD8Async(emulated.allocate(4), 1, 4, own));
  emulated.ok(cu.cuStreamEndCapture(own, OUT0));
  return readSize(OUT0) as CUgraph;
}

const kinds: Readonly<Record<string, Kind>> = {
  context: {
    make: ({ cu, ok }) => {
      ok(cu.cuCtxCreate_v2(OUT0, 0, device(0)));
      const handle = readSize(OUT0);
      ok(cu.cuCtxPopCurrent_v2(OUT0));
      return handle;
    },
    destroy: ({ cu }, handle) => cu.cuCtxDestroy_v2(handle as CUcontext),
    use: ({ cu }, handle) => cu.cuCtxPushCurrent_v2(handle as CUcontext),
    refusal: /^Error: cuCtxPushCurrent_v2: the context 0x[\da-f]+ was destroyed/,
  },
  stream: {
    make: (emulated) => emulated.stream(),
    destroy: ({ cu }, handle) => cu.cuStreamDestroy_v2(handle as CUstream),
    use: ({ cu }, handle) => cu.cuStreamQuery(handle as CUstream),
    refusal: /^Error: cuStreamQuery: the stream 0x[\da-f]+ was destroyed/,
  },
  event: {
    make: (emulated) => emulated.event(),
    destroy: ({ cu }, handle) => cu.cuEventDestroy_v2(handle as CUevent),
    use: ({ cu }, handle) => cu.cuStreamWaitEvent(LEGACY, handle as CUevent, 0),
    refusal: /^Error: cuStreamWaitEvent: the event 0x[\da-f]+ was destroyed/,
  },
  pool: {
    make: (emulated) => emulated.pool(),
    destroy: ({ cu }, handle) => cu.cuMemPoolDestroy(handle as CUmemoryPool),
    use: ({ cu }, handle) => cu.cuMemPoolTrimTo(handle as CUmemoryPool, 0),
    refusal: /^Error: cuMemPoolTrimTo: the pool 0x[\da-f]+ was destroyed/,
  },
  module: {
    make: loaded,
    destroy: ({ cu }, handle) => cu.cuModuleUnload(handle as CUmodule),
    use: ({ cu }, handle) => cu.cuModuleGetFunctionCount(OUT0, handle as CUmodule),
    refusal: /^Error: cuModuleGetFunctionCount: the module 0x[\da-f]+ was destroyed/,
  },
  graph: {
    make: captured,
    destroy: ({ cu }, handle) => cu.cuGraphDestroy(handle as CUgraph),
    use: ({ cu }, handle) => cu.cuGraphInstantiateWithFlags(OUT0, handle as CUgraph, 0),
    refusal: /^Error: cuGraphInstantiateWithFlags: the graph 0x[\da-f]+ was destroyed/,
  },
  'executable graph': {
    make: (emulated) => {
      const graph = captured(emulated);
      emulated.ok(emulated.cu.cuGraphInstantiateWithFlags(OUT0, graph, 0));
      return readSize(OUT0);
    },
    destroy: ({ cu }, handle) => cu.cuGraphExecDestroy(handle as CUgraphExec),
    use: ({ cu }, handle) => cu.cuGraphLaunch(handle as CUgraphExec, LEGACY),
    refusal: /^Error: cuGraphLaunch: the executable graph 0x[\da-f]+ was destroyed/,
  },
};

describe('handles of the emulated driver', () => {
  for (const [kind, { make, destroy, use, refusal }] of Object.entries(kinds))
    test(`the handle of a destroyed ${kind} is refused with an error, and then the next one’s`, () => {
      const emulated = Emulated.inContext();
      const [first, second] = [make(emulated), make(emulated)];
      assert.notEqual(first, second);
      for (const handle of [first, second]) {
        emulated.ok(destroy(emulated, handle));
        assert.throws(() => use(emulated, handle), refusal);
        assert.throws(() => destroy(emulated, handle), { name: 'Error', message: /was destroyed/ });
      }
      assert.deepEqual([make(emulated), make(emulated)], [second, first]);
      emulated.ok(use(emulated, first));
    });

  test('a handle that was never assigned is unknown', () => {
    const { cu } = Emulated.inContext();
    assert.equal(cu.cuStreamQuery(4711 as CUstream), 400);
    assert.equal(cu.cuEventQuery(4711 as CUevent), 400);
  });

  test('what belonged to a context is destroyed with it, and a kernel with its module', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const [stream, event, module] = [emulated.stream(), emulated.event(), loaded(emulated)];
    emulated.ok(cu.cuModuleEnumerateFunctions(BLOCK, 1, module));
    const kernel = readSize(BLOCK) as CUfunction;
    emulated.ok(cu.cuFuncLoad(kernel));
    emulated.ok(cu.cuModuleUnload(module));
    assert.throws(
      () => cu.cuFuncLoad(kernel),
      /^Error: cuFuncLoad: the kernel 0x[\da-f]+ was destr/,
    );
    emulated.ok(cu.cuDevicePrimaryCtxReset_v2(device(0)));
    assert.throws(() => cu.cuStreamQuery(stream), /the stream 0x[\da-f]+ was destroyed/);
    assert.throws(() => cu.cuEventQuery(event), /the event 0x[\da-f]+ was destroyed/);
  });
});
