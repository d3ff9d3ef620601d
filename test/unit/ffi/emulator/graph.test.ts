/** Stream capture and graphs of the emulated driver. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, OUT1, OUT2, readHandle, readInt32, readSize } from '../../../../ffi/arena.ts';
import { type FunctionName, functionNames, rows } from '../../../../ffi/functions.ts';
import type {
  Address,
  CUdeviceptr,
  CUgraph,
  CUgraphExec,
  CUstream,
} from '../../../../ffi/types.ts';
import { at, device, Emulated, hostWords, LEGACY, NON_BLOCKING } from './support.ts';

const RELAXED = 2;

const begin = ({ cu }: Emulated, stream: CUstream): number =>
  cu.cuStreamBeginCapture_v2(stream, RELAXED);

/** What is queued in `stream` by `work`, ready to be launched. */
function captured(emulated: Emulated, stream: CUstream, work: () => void): [CUgraph, CUgraphExec] {
  const { cu } = emulated;
  emulated.ok(begin(emulated, stream));
  work();
  emulated.ok(cu.cuStreamEndCapture(stream, OUT0));
  const graph = readSize(OUT0) as CUgraph;
  emulated.ok(cu.cuGraphInstantiateWithFlags(OUT0, graph, 0));
  return [graph, readSize(OUT0) as CUgraphExec];
}

describe('emulated graphs', () => {
  test('captured work runs at each launch, one launch after the other', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const [stream, other] = [emulated.stream(NON_BLOCKING), emulated.stream(NON_BLOCKING)];
    const [word, gate] = [emulated.allocate(4), emulated.allocate(4)];
    emulated.write(word, 0);
    emulated.write(gate, 0);
    const [graph, executable] = captured(emulated, stream, () => {
      emulated.ok(cu.cuStreamWaitValue32_v2(stream, gate, 1, 1));
      emulated.ok(cu.cuMemsetD32Async(word, 7, 1, stream));
      emulated.ok(cu.cuMemsetD32Async(gate, 0, 1, stream));
    });
    assert.equal(cu.cuStreamQuery(stream), 0);
    assert.equal(emulated.read(word), 0);
    for (const each of [stream, other]) emulated.ok(cu.cuGraphLaunch(executable, each));
    emulated.ok(cu.cuGraphExecDestroy(executable));
    emulated.ok(cu.cuGraphDestroy(graph));
    const writer = emulated.stream(NON_BLOCKING);
    for (const [done, left] of [
      [stream, 600],
      [other, 0],
    ] as const) {
      assert.equal(cu.cuStreamQuery(done), 600);
      emulated.ok(cu.cuStreamWriteValue32_v2(writer, gate, 1, 0));
      emulated.ok(cu.cuStreamSynchronize(done));
      assert.equal(cu.cuStreamQuery(other), left);
    }
    assert.equal(emulated.read(word), 7);
  });

  test('a copy to ordinary host memory is done at each launch', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const stream = emulated.stream(NON_BLOCKING);
    const memory = emulated.allocate(64);
    const { address, words } = hostWords(16);
    const [, executable] = captured(emulated, stream, () =>
      emulated.ok(cu.cuMemcpyDtoHAsync_v2(address, memory, 4, stream)),
    );
    for (const value of [5, 6]) {
      emulated.write(memory, value);
      emulated.ok(cu.cuGraphLaunch(executable, stream));
      emulated.ok(cu.cuStreamSynchronize(stream));
      assert.equal(words[0], value);
    }
  });

  test('work that cannot be captured invalidates the capture, which leaves nothing behind', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const [stream, side] = [emulated.stream(NON_BLOCKING), emulated.stream(NON_BLOCKING)];
    const memory = emulated.allocate(64);
    const event = emulated.event(2);
    const elsewhere = emulated.event(2);
    emulated.ok(cu.cuEventRecord(elsewhere, side));
    assert.equal(cu.cuStreamEndCapture(stream, OUT0), 401);
    assert.equal(begin(emulated, LEGACY), 900);
    const breaking: readonly (readonly [act: () => number, status: number])[] = [
      [() => cu.cuStreamQuery(stream), 900],
      [() => cu.cuStreamSynchronize(stream), 900],
      [() => cu.cuStreamWaitEvent(stream, elsewhere, 0), 905],
      [() => cu.cuEventRecord(event, stream) || cu.cuEventQuery(event), 907],
      [() => cu.cuEventRecord(event, stream) || cu.cuEventSynchronize(event), 907],
      [() => cu.cuEventRecord(event, stream) || cu.cuStreamWaitEvent(LEGACY, event, 0), 906],
    ];
    for (const [act, status] of breaking) {
      emulated.ok(begin(emulated, stream));
      assert.equal(begin(emulated, stream), 401);
      assert.equal(act(), status, String(act));
      emulated.ok(cu.cuStreamIsCapturing(stream, OUT0));
      assert.equal(readInt32(OUT0), 2);
      assert.equal(cu.cuStreamEndCapture(stream, OUT0), 901);
      assert.equal(readSize(OUT0), 0);
      emulated.ok(cu.cuStreamQuery(stream));
    }
    // A fork is captured, too, and only the origin ends it.
    emulated.ok(begin(emulated, stream));
    emulated.ok(cu.cuEventRecord(event, stream));
    emulated.ok(cu.cuStreamWaitEvent(side, event, 0));
    emulated.ok(cu.cuMemsetD8Async(memory, 1, 64, side));
    assert.equal(cu.cuStreamEndCapture(side, OUT0), 903);
    emulated.ok(
      cu.cuStreamGetCaptureInfo_v2(side, OUT0, OUT1, OUT2, BLOCK, (BLOCK + 8) as Address),
    );
    assert.deepEqual([readInt32(OUT0), readSize((BLOCK + 8) as Address)], [1, 1]);
    assert.equal(cu.cuStreamEndCapture(stream, OUT0), 904);
    for (const each of [stream, side]) emulated.ok(cu.cuStreamQuery(each));
  });

  test('memory of a graph exists only in its launches, and is released by a trim', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const stream = emulated.stream(NON_BLOCKING);
    const result = emulated.allocate(4);
    const pool = emulated.pool({ maxSize: 1 << 20 });
    const free = emulated.freeBytes();
    let memory = at(0);
    const [graph, executable] = captured(emulated, stream, () => {
      memory = emulated.allocateFrom(pool, 4096, stream);
      emulated.ok(cu.cuMemsetD32Async(memory, 5, 1, stream));
      emulated.ok(cu.cuMemcpyDtoDAsync_v2(result, memory, 4, stream));
      assert.equal(cu.cuMemFree_v2(memory), 1);
      emulated.ok(cu.cuMemFreeAsync(memory, stream));
      assert.equal(cu.cuMemcpyDtoDAsync_v2(result, memory, 4, stream), 1);
    });
    assert.equal(emulated.poolAttribute(pool, 7), 0);
    assert.equal(cu.cuMemsetD8Async(memory, 1, 1, stream), 1);
    emulated.ok(cu.cuGraphLaunch(executable, stream));
    emulated.ok(cu.cuStreamSynchronize(stream));
    assert.equal(emulated.read(result), 5);
    assert.equal(cu.cuMemsetD8Async(memory, 1, 1, stream), 1);
    assert.equal(cu.cuGraphExecUpdate_v2(executable, graph, BLOCK), 910);
    // Destroyed with a launch that is queued: that has it to its end.
    emulated.write(result, 0);
    emulated.ok(cu.cuGraphLaunch(executable, stream));
    emulated.ok(cu.cuGraphExecDestroy(executable));
    emulated.ok(cu.cuGraphDestroy(graph));
    emulated.ok(cu.cuStreamSynchronize(stream));
    assert.equal(emulated.read(result), 5);
    emulated.ok(cu.cuDeviceGraphMemTrim(device(0)));
    assert.equal(emulated.freeBytes(), free);
    assert.equal(cu.cuDeviceGraphMemTrim(device(9)), 101);
    // What a graph does not free outlives its launches: that is the hardware's.
    emulated.ok(begin(emulated, stream));
    emulated.allocateFrom(pool, 4096, stream);
    emulated.ok(cu.cuStreamEndCapture(stream, OUT0));
    const unfreed = readSize(OUT0) as CUgraph;
    assert.equal(cu.cuGraphInstantiateWithFlags(OUT0, unfreed, 0), 801);
    emulated.ok(cu.cuDevicePrimaryCtxReset_v2(device(0)));
    emulated.push(emulated.retain());
    emulated.ok(cu.cuDeviceGraphMemTrim(device(0)));
    assert.throws(() => cu.cuGraphDestroy(unfreed), /was destroyed/);
  });

  /** A capture that is open, of a blocking stream or of one that blocks nobody. */
  function capturing(flags: number, mode = RELAXED): { emulated: Emulated; stream: CUstream } {
    const emulated = Emulated.inContext();
    const stream = emulated.stream(flags);
    emulated.ok(emulated.cu.cuStreamBeginCapture_v2(stream, mode));
    return { emulated, stream };
  }

  const legacyCalls: readonly ((emulated: Emulated, memory: CUdeviceptr) => number)[] = [
    ({ cu }, memory) => cu.cuMemsetD8Async(memory, 1, 4, LEGACY),
    ({ cu }, memory) => cu.cuMemcpyDtoDAsync_v2(memory, at(memory, 64), 4, 1 as CUstream),
    ({ cu }, memory) => cu.cuMemcpyHtoD_v2(memory, BLOCK, 4),
    ({ cu }, memory) => cu.cuMemcpyDtoH_v2(BLOCK, memory, 4),
    (emulated) => emulated.cu.cuEventRecord(emulated.event(), LEGACY),
    ({ cu }) => cu.cuStreamQuery(LEGACY),
    ({ cu }) => cu.cuStreamSynchronize(LEGACY),
  ];

  test('work and questions of the legacy stream end the capture of a blocking stream', () => {
    for (const [flags, answer, end] of [
      [0, 906, 901],
      [NON_BLOCKING, 0, 0],
    ] as const)
      for (const call of legacyCalls) {
        const { emulated, stream } = capturing(flags);
        const memory = emulated.allocate(128);
        assert.equal(call(emulated, memory), answer, `${call}`);
        assert.equal(emulated.cu.cuStreamEndCapture(stream, OUT0), end, `${call}`);
      }
    // Of another context it is another stream.
    const { emulated, stream } = capturing(0);
    emulated.ok(emulated.cu.cuCtxCreate_v2(OUT0, 0, device(0)));
    emulated.ok(emulated.cu.cuStreamSynchronize(LEGACY));
    emulated.ok(emulated.cu.cuCtxSynchronize());
    emulated.ok(emulated.cu.cuStreamEndCapture(stream, OUT0));
  });

  test('whether the legacy stream is captured cannot be told, and asking ends no capture', () => {
    const { emulated, stream } = capturing(0);
    const { cu } = emulated;
    assert.equal(cu.cuStreamIsCapturing(LEGACY, OUT0), 906);
    assert.equal(
      cu.cuStreamGetCaptureInfo_v2(LEGACY, OUT0, OUT1, OUT2, 0 as Address, 0 as Address),
      906,
    );
    emulated.ok(cu.cuStreamIsCapturing(stream, OUT0));
    emulated.ok(cu.cuStreamEndCapture(stream, OUT0));
  });

  test('synchronising a context ends the captures in it', () => {
    for (const flags of [0, NON_BLOCKING]) {
      const { emulated, stream } = capturing(flags);
      assert.equal(emulated.cu.cuCtxSynchronize(), 900);
      assert.equal(emulated.cu.cuStreamEndCapture(stream, OUT0), 901);
      emulated.ok(emulated.cu.cuCtxSynchronize());
    }
  });

  test('allocating, freeing, asking and waiting end a capture unless it is relaxed, and other modes are refused', () => {
    const [GLOBAL, THREAD_LOCAL] = [0, 1];
    for (const [mode, answer, end] of [
      [GLOBAL, 900, 901],
      [THREAD_LOCAL, 900, 901],
      [RELAXED, 0, 0],
    ] as const)
      for (const call of [
        ({ cu }: Emulated) => cu.cuMemAlloc_v2(OUT0, 4),
        ({ cu }: Emulated) => cu.cuMemAllocPitch_v2(OUT0, OUT1, 64, 4, 4),
        ({ cu }: Emulated) => cu.cuMemFree_v2(at(0)),
        ({ cu }: Emulated) => cu.cuMemHostAlloc(OUT0, 4, 0),
        ({ cu }: Emulated) => cu.cuStreamQuery(LEGACY),
        ({ cu }: Emulated) => cu.cuStreamSynchronize(LEGACY),
        (emulated: Emulated) => emulated.cu.cuStreamQuery(emulated.stream(NON_BLOCKING)),
        (emulated: Emulated) => emulated.cu.cuStreamSynchronize(emulated.stream()),
        (emulated: Emulated) => emulated.cu.cuEventQuery(emulated.event()),
        (emulated: Emulated) => emulated.cu.cuEventSynchronize(emulated.event()),
      ]) {
        const { emulated, stream } = capturing(NON_BLOCKING, mode);
        assert.equal(call(emulated), answer, `${call}, mode ${mode}`);
        assert.equal(emulated.cu.cuStreamEndCapture(stream, OUT0), end);
      }
    const emulated = Emulated.inContext();
    assert.equal(emulated.cu.cuStreamBeginCapture_v2(emulated.stream(), 3), 1);
  });

  test('a call that its row marks as unsafe ends a strict capture, and no other row does', () => {
    const { emulated, stream } = capturing(NON_BLOCKING, 0);
    const { cu } = emulated;
    const endsCapture = (name: FunctionName): boolean => {
      const call = cu[name] as (...args: unknown[]) => number;
      // Null is no argument that does anything.
      call(...rows[name].params.map(({ c }) => (c === 'CUstream' ? LEGACY : 0)));
      const isOver = cu.cuStreamEndCapture(stream, OUT0) !== 0;
      emulated.ok(cu.cuStreamBeginCapture_v2(stream, 0));
      return isOver;
    };
    const withoutObject = functionNames.filter(
      (name) => !/^cu(Event|Ctx(Create|Destroy|Pop|Push)|Device(Primary|Set)|Init)/.test(name),
    );
    assert.deepEqual(
      withoutObject.filter(endsCapture),
      withoutObject.filter((name) => rows[name].isUnsafeInCapture),
    );
  });

  test('a call that its row marks as never captured ends a capture of each mode in its stream', () => {
    for (const mode of [0, 1, 2]) {
      const { emulated, stream } = capturing(NON_BLOCKING, mode);
      const { cu } = emulated;
      const names = functionNames.filter(
        (name) =>
          rows[name].params.some(({ c }) => c === 'CUstream') &&
          !/^cuStream(BeginCapture|EndCapture|Destroy)/.test(name),
      );
      const isRefused = (name: FunctionName): boolean => {
        const call = cu[name] as (...args: unknown[]) => number;
        const isInvalid =
          call(...rows[name].params.map(({ c }) => (c === 'CUstream' ? stream : 0))) === 900;
        assert.equal(cu.cuStreamEndCapture(stream, OUT0), isInvalid ? 901 : 0, name);
        emulated.ok(cu.cuStreamBeginCapture_v2(stream, mode));
        return isInvalid;
      };
      assert.deepEqual(
        names.filter(isRefused),
        names.filter((name) => rows[name].isNeverCaptured),
      );
    }
  });

  test('a strict capture allows pool memory in its own stream only, a relaxed one in each', () => {
    for (const mode of [0, 1, 2]) {
      const { emulated, stream } = capturing(NON_BLOCKING, mode);
      const { cu } = emulated;
      const other = emulated.stream(NON_BLOCKING);
      emulated.ok(cu.cuMemAllocAsync(OUT0, 64, stream));
      emulated.ok(cu.cuMemFreeAsync(readHandle<CUdeviceptr>(OUT0), stream));
      assert.equal(cu.cuMemAllocAsync(OUT0, 64, other), mode === 2 ? 0 : 900);
      assert.equal(cu.cuStreamEndCapture(stream, OUT0), mode === 2 ? 0 : 901);
    }
  });

  test('a broken capture refuses further work until it is ended, and says that it is broken', () => {
    const { emulated, stream } = capturing(NON_BLOCKING);
    const { cu } = emulated;
    const memory = emulated.allocate(64);
    assert.equal(cu.cuStreamQuery(stream), 900);
    assert.equal(cu.cuMemsetD8Async(memory, 1, 4, stream), 901);
    assert.equal(cu.cuEventRecord(emulated.event(), stream), 901);
    // What no captured stream allows is refused for that first.
    assert.equal(cu.cuStreamQuery(stream), 900);
    assert.equal(cu.cuStreamGetFlags(stream, OUT0), 900);
    emulated.ok(cu.cuStreamIsCapturing(stream, OUT0));
    assert.equal(readInt32(OUT0), 2);
    assert.equal(cu.cuStreamEndCapture(stream, OUT0), 901);
    emulated.ok(cu.cuMemsetD8Async(memory, 1, 4, stream));
  });
});
