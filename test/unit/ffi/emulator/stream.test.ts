import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { describe, type TestContext, test } from 'node:test';
import {
  BLOCK,
  OUT0,
  OUT1,
  readInt32,
  readSize,
  writeBytes,
  writeStruct,
} from '../../../../ffi/arena.ts';
import type {
  Address,
  CUdeviceptr,
  CUfunction,
  CUmodule,
  CUstream,
} from '../../../../ffi/types.ts';
import { programFile } from '../../../support/program.ts';
import {
  at,
  device,
  Emulated,
  hostWords,
  LEGACY,
  NON_BLOCKING,
  unmappedAddress,
} from './support.ts';

const GEQ = 0;
const EQ = 1;
const AND = 2;
const NOR = 3;
const NOT_READY = 600;
const LAUNCH_FAILED = 719;
const PTX = Buffer.from('.version 8.0\n.target sm_90\n.visible .entry nothing()\n{\nret;\n}\n\0');

/** A stream that waits until `release` is called. */
function held(emulated: Emulated, flags = 0): { stream: CUstream; release: () => void } {
  const word = emulated.allocate(4);
  emulated.write(word, 0);
  const stream = emulated.stream(flags);
  const other = emulated.stream(NON_BLOCKING);
  emulated.ok(emulated.cu.cuStreamWaitValue32_v2(stream, word, 1, EQ));
  return {
    stream,
    release: () => {
      emulated.ok(emulated.cu.cuStreamWriteValue32_v2(other, word, 1, 0));
      emulated.ok(emulated.cu.cuStreamSynchronize(other));
    },
  };
}

const hex = (handle: number): string => handle.toString(16);

/** A clock by which the emulated driver's patience is over in a moment. */
function hurry(t: TestContext): void {
  let now = 0;
  t.mock.method(performance, 'now', () => {
    now += 100;
    return now;
  });
}

describe('emulated streams', () => {
  /** Streams that wait for a word on the host, and 32 others. */
  function besideWaiting(count: number, env: NodeJS.ProcessEnv = {}) {
    const emulated = new Emulated(env);
    const { cu } = emulated;
    emulated.push(emulated.retain());
    const host = hostWords(1);
    emulated.ok(cu.cuMemHostRegister_v2(host.address, 4, 1));
    const word = host.address as unknown as CUdeviceptr;
    const target = emulated.allocate(4);
    const streams = (length: number) =>
      Array.from({ length }, () => emulated.stream(NON_BLOCKING)) as [CUstream, ...CUstream[]];
    const waiting = streams(count);
    const others = streams(32);
    const query = (stream: CUstream): number => cu.cuStreamQuery(stream);
    const wait = (stream: CUstream): void =>
      emulated.ok(cu.cuStreamWaitValue32_v2(stream, word, 1, GEQ));
    for (const stream of waiting) wait(stream);
    const queue = (stream: CUstream): void =>
      emulated.ok(cu.cuMemsetD32Async(target, 7, 1, stream));
    return {
      emulated,
      waiting,
      others,
      wait,
      queue,
      isDone: (stream: CUstream): boolean => query(stream) === 0,
      /** Queues work in a stream when that of others is done. */
      runs(stream: CUstream): boolean {
        queue(stream);
        return query(stream) === 0;
      },
      release(): void {
        host.words[0] = 1;
        for (const stream of [...waiting, ...others, LEGACY]) assert.equal(query(stream), 0);
      },
    };
  }

  const queues = (count: number): NodeJS.ProcessEnv => ({
    CUDA_DEVICE_MAX_CONNECTIONS: `${count}`,
  });
  for (const [given, count] of [
    [8, 8],
    [3, 3],
    [32, 32],
    [33, 8],
  ] as const)
    test(`with ${given} queues no stream runs beside ${count} that wait for words, but that of another context`, () => {
      const { emulated, others, isDone, queue, runs, release } = besideWaiting(count, {
        ...queues(given),
        CUFFI_EMULATED_DEVICES: '2',
      });
      for (const stream of [...others, LEGACY]) assert.equal(runs(stream), false);
      emulated.push(emulated.retain(1));
      const elsewhere = emulated.stream(NON_BLOCKING);
      emulated.ok(emulated.cu.cuMemsetD32Async(emulated.allocate(4), 7, 1, elsewhere));
      assert.equal(isDone(elsewhere), true);
      emulated.ok(emulated.cu.cuCtxPopCurrent_v2(OUT0));
      release();
      queue(others[0]);
      assert.equal(isDone(others[0]), true);
    });

  test('all others run beside waiting streams while one queue has no unfinished work', () => {
    const { others, runs, release } = besideWaiting(7);
    for (const stream of [...others, LEGACY]) assert.equal(runs(stream), true);
    release();
  });

  test('the queue of a wait that has ended is there for others', () => {
    const { emulated, others, wait, runs, isDone, release } = besideWaiting(0);
    const [first, ...rest] = others;
    const word = emulated.allocate(4);
    emulated.write(word, 0);
    emulated.ok(emulated.cu.cuStreamWaitValue32_v2(first, word, 1, EQ));
    for (const stream of rest.slice(0, 6)) wait(stream);
    const [last] = rest.slice(6) as [CUstream];
    emulated.ok(emulated.cu.cuStreamWriteValue32_v2(last, word, 1, 0));
    assert.equal(isDone(last), true);
    assert.equal(isDone(first), true);
    for (const stream of [first, ...rest.slice(6)]) assert.equal(runs(stream), true);
    release();
  });

  test('if all queues have unfinished work, streams share them, and some stand still until a wait ends', () => {
    const { others, queue, runs, isDone, release } = besideWaiting(5);
    for (const stream of others) queue(stream);
    const still = others.filter((stream) => !isDone(stream));
    assert.ok(still.length > 0 && still.length < others.length - 3, `${still.length}`);
    // Those that came first have queues of their own.
    for (const stream of others.slice(0, 3)) assert.equal(still.includes(stream), false);
    // Queues that become idle meanwhile are for streams without work.
    for (const stream of others) assert.equal(runs(stream), !still.includes(stream));
    release();
  });

  test('work that was queued before a wait runs, although they share a queue', () => {
    const { emulated, others, wait, queue, isDone, release } = besideWaiting(0, queues(1));
    const [first, second] = others as unknown as [CUstream, CUstream];
    const event = emulated.event();
    queue(first);
    emulated.ok(emulated.cu.cuEventRecord(event, first));
    wait(second);
    queue(first);
    assert.equal(isDone(first), false);
    assert.equal(emulated.cu.cuEventQuery(event), 0);
    release();
  });

  test('a wait stands still behind another one in its queue, even if it is satisfied', () => {
    const { emulated, others, wait, isDone, release } = besideWaiting(0, queues(1));
    const word = emulated.allocate(4);
    emulated.write(word, 0);
    const satisfied = (stream: CUstream): boolean => {
      emulated.ok(emulated.cu.cuStreamWaitValue32_v2(stream, word, 0, GEQ));
      return isDone(stream);
    };
    assert.equal(satisfied(others[1] as CUstream), true);
    wait(others[0]);
    assert.equal(satisfied(others[1] as CUstream), false);
    release();
  });

  test('streams that wait for events have no queue', () => {
    const { emulated, waiting, others, runs, release } = besideWaiting(7);
    const event = emulated.event();
    emulated.ok(emulated.cu.cuEventRecord(event, waiting[0]));
    for (const stream of others.slice(0, 16)) {
      emulated.ok(emulated.cu.cuStreamWaitEvent(stream, event, 0));
      assert.equal(runs(stream), false);
    }
    for (const stream of others.slice(16)) assert.equal(runs(stream), true);
    release();
  });

  for (const from of [1, 4])
    test(`with CUFFI_EMULATED_SHARED_QUEUES=${from} every second stream stands still beside ${from} that wait`, () => {
      const env = { CUFFI_EMULATED_SHARED_QUEUES: `${from}` };
      const { others, wait, runs, isDone, release } = besideWaiting(from - 1, env);
      const [last, ...rest] = others;
      for (const stream of rest) assert.equal(runs(stream), true);
      wait(last);
      for (const [n, stream] of [...rest, LEGACY].entries())
        assert.equal(runs(stream), n % 2 === 1, `${n}`);
      assert.equal(isDone(last), false);
      release();
    });

  test('a call that blocks because its stream stands still names the stream that waits', (t) => {
    const { emulated, waiting, others, release } = besideWaiting(1, queues(1));
    const memory = emulated.allocate(4);
    hurry(t);
    const expected = new RegExp(
      `^Error: cuMemcpyDtoHAsync_v2 has waited 2000 ms for the stream 0x${hex(others[0])}, ` +
        `which shares a queue of the device with the stream 0x${hex(waiting[0])}, which waits`,
    );
    const { cu } = emulated;
    assert.throws(() => cu.cuMemcpyDtoHAsync_v2(BLOCK, memory, 4, others[0]), expected);
    // A stream without work has nothing to wait for.
    emulated.ok(cu.cuStreamSynchronize(others[1] as CUstream));
    release();
    emulated.ok(cu.cuStreamSynchronize(others[0]));
  });

  test('a stream tells its flags, its priority and its context', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    emulated.ok(cu.cuCtxGetStreamPriorityRange(OUT0, OUT1));
    assert.deepEqual([readInt32(OUT0), readInt32(OUT1)], [0, -5]);
    const stream = emulated.stream(NON_BLOCKING, -99);
    emulated.ok(cu.cuStreamGetFlags(stream, OUT0));
    assert.equal(readInt32(OUT0), NON_BLOCKING);
    emulated.ok(cu.cuStreamGetPriority(stream, OUT0));
    assert.equal(readInt32(OUT0), -5);
    emulated.ok(cu.cuCtxGetCurrent(OUT0));
    emulated.ok(cu.cuStreamGetCtx(stream, OUT1));
    assert.equal(readSize(OUT1), readSize(OUT0));
    assert.equal(cu.cuStreamCreateWithPriority(OUT0, 2, 0), 1);
  });

  test('the work of a destroyed stream goes on', () => {
    const emulated = Emulated.inContext();
    const { stream, release } = held(emulated, NON_BLOCKING);
    const memory = emulated.allocate(4);
    emulated.write(memory, 0);
    emulated.ok(emulated.cu.cuMemsetD32Async(memory, 3, 1, stream));
    emulated.ok(emulated.cu.cuStreamDestroy_v2(stream));
    assert.equal(emulated.read(memory), 0);
    release();
    assert.equal(emulated.read(memory), 3);
  });

  test('work behind an unsatisfied wait stays queued, in order', () => {
    const emulated = Emulated.inContext();
    const { stream, release } = held(emulated, NON_BLOCKING);
    const memory = emulated.allocate(4);
    emulated.write(memory, 0);
    emulated.ok(emulated.cu.cuMemsetD32Async(memory, 1, 1, stream));
    emulated.ok(emulated.cu.cuMemsetD32Async(memory, 2, 1, stream));
    assert.equal(emulated.cu.cuStreamQuery(stream), NOT_READY);
    assert.equal(emulated.read(memory), 0);
    release();
    assert.equal(emulated.cu.cuStreamQuery(stream), 0);
    assert.equal(emulated.read(memory), 2);
  });

  test('work on what is unmapped before its turn ends the context, whichever work it is', () => {
    const unit = 2 ** 21;
    const kinds: readonly ((
      emulated: Emulated,
      memory: CUdeviceptr,
      stream: CUstream,
    ) => number)[] = [
      ({ cu }, memory, stream) => cu.cuMemsetD8Async(memory, 1, 64, stream),
      ({ cu }, memory, stream) => cu.cuMemcpyDtoDAsync_v2(memory, at(memory, 64), 64, stream),
      ({ cu }, memory, stream) => cu.cuStreamWriteValue64_v2(stream, memory, 1, 0),
      ({ cu }, memory, stream) => cu.cuStreamWaitValue32_v2(stream, memory, 1, EQ),
    ];
    for (const queue of kinds) {
      const emulated = Emulated.inContext();
      const { cu } = emulated;
      const { stream, release } = held(emulated, NON_BLOCKING);
      const memory = emulated.reserve(unit);
      const handle = emulated.createPhysical(unit);
      emulated.ok(cu.cuMemMap(memory, unit, 0, handle, 0));
      emulated.ok(emulated.setAccess(memory, unit, 3));
      const plain = emulated.allocate(64);
      emulated.ok(queue(emulated, memory, stream));
      emulated.ok(cu.cuMemUnmap(memory, unit));
      assert.equal(cu.cuStreamQuery(stream), NOT_READY);
      assert.throws(release, { actual: LAUNCH_FAILED });
      assert.equal(cu.cuStreamQuery(stream), LAUNCH_FAILED);
      assert.equal(cu.cuMemAlloc_v2(OUT0, 64), LAUNCH_FAILED);
      assert.equal(cu.cuMemcpyDtoH_v2(BLOCK, plain, 4), LAUNCH_FAILED);
    }
  });

  /** Queues work that accesses memory which is unmapped by then, and what `queueMore` queues behind it. */
  function lose(emulated: Emulated, queueMore: (stream: CUstream) => void = () => {}): void {
    const unit = 2 ** 21;
    const { cu } = emulated;
    const { stream, release } = held(emulated, NON_BLOCKING);
    const memory = emulated.reserve(unit);
    emulated.ok(cu.cuMemMap(memory, unit, 0, emulated.createPhysical(unit), 0));
    emulated.ok(emulated.setAccess(memory, unit, 3));
    emulated.ok(cu.cuMemsetD8Async(memory, 1, 64, stream));
    queueMore(stream);
    emulated.ok(cu.cuMemUnmap(memory, unit));
    assert.throws(release, { actual: LAUNCH_FAILED });
  }

  test('a lost context runs nothing of what is queued behind the failure', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.allocate(8);
    emulated.write(memory, 7, 8);
    const host = hostWords(2);
    emulated.ok(cu.cuMemHostRegister_v2(host.address, 8, 1));
    host.words.set([1, 2]);
    // Before the failure it arrives, behind it it does not.
    emulated.ok(cu.cuMemcpyDtoHAsync_v2(host.address, memory, 4, LEGACY));
    emulated.ok(cu.cuCtxSynchronize());
    assert.deepEqual([...host.words], [7, 2]);
    const second = (host.address + 4) as Address;
    lose(emulated, (stream) => {
      emulated.ok(cu.cuMemcpyDtoHAsync_v2(second, at(memory, 4), 4, stream));
    });
    assert.equal(cu.cuCtxSynchronize(), LAUNCH_FAILED);
    assert.deepEqual([...host.words], [7, 2]);
  });

  test('a process that has lost a context can give back only what belongs to none', () => {
    const unit = 2 ** 21;
    const emulated = new Emulated({ CUFFI_EMULATED_DEVICES: '2' });
    const { cu } = emulated;
    const contexts = [emulated.retain(0), emulated.retain(1)] as const;
    emulated.push(contexts[1]);
    const elsewhere = emulated.allocate(64);
    const streamElsewhere = emulated.stream();
    emulated.ok(cu.cuCtxPopCurrent_v2(OUT0));
    emulated.push(contexts[0]);
    const plain = emulated.allocate(64);
    emulated.ok(cu.cuMemAllocManaged(OUT0, 64, 1));
    const managed = readSize(OUT0) as CUdeviceptr;
    emulated.ok(cu.cuMemHostAlloc(OUT0, 64, 0));
    const pinned = readSize(OUT0) as Address;
    const { address: registered } = hostWords(16);
    emulated.ok(cu.cuMemHostRegister_v2(registered, 64, 0));
    emulated.ok(cu.cuModuleLoadDataEx(OUT0, writeBytes(PTX), 0, 0 as Address, 0 as Address));
    const module = readSize(OUT0) as CUmodule;
    const pool = emulated.pool();
    const handle = emulated.createPhysical(unit);
    const reserved = emulated.reserve(unit);
    emulated.ok(cu.cuMemMap(reserved, unit, 0, handle, 0));
    lose(emulated);

    const kept: readonly (() => number)[] = [
      () => cu.cuMemFree_v2(plain),
      () => cu.cuMemFree_v2(managed),
      () => cu.cuMemFreeHost(pinned),
      () => cu.cuMemHostUnregister(registered),
      () => cu.cuModuleUnload(module),
      () => cu.cuCtxCreate_v2(OUT0, 0, device(0)),
    ];
    const all = (): number[] => kept.map((call) => call());
    const refused = kept.map(() => LAUNCH_FAILED);
    assert.deepEqual(all(), refused);
    // They are still there, and refused whichever context is current.
    emulated.ok(cu.cuCtxPopCurrent_v2(OUT0));
    assert.deepEqual(all(), refused);
    emulated.push(contexts[1]);
    assert.deepEqual(all(), refused);
    assert.equal(cu.cuStreamQuery(streamElsewhere), LAUNCH_FAILED);
    assert.equal(cu.cuMemFree_v2(elsewhere), LAUNCH_FAILED);
    emulated.ok(cu.cuMemPoolDestroy(pool));
    emulated.ok(cu.cuMemUnmap(reserved, unit));
    emulated.ok(cu.cuMemRelease(handle));
    emulated.ok(cu.cuMemAddressFree(reserved, unit));
    emulated.ok(cu.cuCtxPopCurrent_v2(OUT0));
    for (const ordinal of [0, 1].map(device)) {
      emulated.ok(cu.cuDevicePrimaryCtxRelease_v2(ordinal));
      emulated.ok(cu.cuDevicePrimaryCtxReset_v2(ordinal));
      assert.equal(cu.cuDevicePrimaryCtxRetain(OUT0, ordinal), LAUNCH_FAILED);
    }
    emulated.push(contexts[0]);
    assert.equal(cu.cuMemAlloc_v2(OUT0, 64), 709);
  });

  test('each comparison of a value wait says what it should', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const word = emulated.allocate(4);
    const FLUSH = 0x4000_0000;
    for (const [value, wanted, flags, isDone] of [
      [5, 5, GEQ, true],
      [4, 5, GEQ, false],
      // Cyclic: -1 counts as coming before 1.
      [1, 0xffff_ffff, GEQ, true],
      [0xffff_ffff, 1, GEQ, false],
      [0xffff_ffff, 0xffff_ffff, EQ | FLUSH, true],
      [6, 5, EQ, false],
      [6, 2, AND, true],
      [4, 2, AND, false],
      [0, 0, NOR, true],
      [0xffff_0000, 0x0000_ffff, NOR, false],
    ] as const) {
      emulated.write(word, value);
      const stream = emulated.stream(NON_BLOCKING);
      emulated.ok(cu.cuStreamWaitValue32_v2(stream, word, wanted, flags));
      assert.equal(cu.cuStreamQuery(stream), isDone ? 0 : NOT_READY, `${value} ${wanted} ${flags}`);
      emulated.write(word, flags === NOR ? 0 : wanted);
      assert.equal(cu.cuStreamQuery(stream), 0);
      emulated.ok(cu.cuStreamDestroy_v2(stream));
    }
  });

  test('value operations want an aligned, mapped word and known flags', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const word = emulated.allocate(8);
    const stream = emulated.stream();
    for (const call of [cu.cuStreamWaitValue32_v2, cu.cuStreamWriteValue32_v2]) {
      assert.equal(call(stream, at(word, 2), 0, 0), 1);
      assert.equal(call(stream, at(0), 0, 0), 1);
      assert.equal(call(stream, unmappedAddress() as number as CUdeviceptr, 0, 0), 1);
      assert.equal(call(stream, word, 0, 0x10), 1);
      assert.equal(call(9999 as CUstream, word, 0, 0), 400);
    }
  });

  test('a store to registered host memory releases a wait', () => {
    const emulated = Emulated.inContext();
    const host = hostWords(2);
    emulated.ok(emulated.cu.cuMemHostRegister_v2(host.address, 8, 1));
    const stream = emulated.stream(NON_BLOCKING);
    const [word, answer] = [at(host.address), at(host.address, 4)];
    emulated.ok(emulated.cu.cuStreamWaitValue32_v2(stream, word, 7, GEQ));
    emulated.ok(emulated.cu.cuStreamWriteValue32_v2(stream, answer, 0xffff_fff0, 0));
    assert.equal(emulated.cu.cuStreamQuery(stream), NOT_READY);
    Atomics.store(host.words, 0, 8);
    assert.equal(emulated.cu.cuStreamQuery(stream), 0);
    assert.equal(Atomics.load(host.words, 1), -16);
    emulated.ok(emulated.cu.cuMemHostUnregister(host.address));
  });

  test('the legacy stream waits for blocking streams, and they for it', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const { stream, release } = held(emulated);
    const free = emulated.stream(NON_BLOCKING);
    const later = emulated.stream();
    const memory = emulated.allocate(12);
    emulated.ok(cu.cuMemsetD32Async(memory, 0, 3, free));
    emulated.ok(cu.cuMemsetD32Async(memory, 1, 1, LEGACY));
    emulated.ok(cu.cuMemsetD32Async(at(memory, 4), 2, 1, later));
    emulated.ok(cu.cuMemsetD32Async(at(memory, 8), 3, 1, free));
    const host = hostWords(3);
    emulated.ok(cu.cuMemcpyDtoHAsync_v2(host.address, memory, 12, free));
    assert.deepEqual([...host.words], [0, 0, 3]);
    for (const waiting of [stream, LEGACY, later])
      assert.equal(cu.cuStreamQuery(waiting), NOT_READY);
    release();
    emulated.ok(cu.cuMemcpyDtoH_v2(host.address, memory, 12));
    assert.deepEqual([...host.words], [1, 2, 3]);
  });

  test('synchronising a context waits for streams that block nobody, too', () => {
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(4);
    const stream = emulated.stream(NON_BLOCKING);
    const host = hostWords(1);
    emulated.ok(emulated.cu.cuMemHostRegister_v2(host.address, 4, 0));
    emulated.ok(emulated.cu.cuMemsetD32Async(memory, 9, 1, stream));
    emulated.ok(emulated.cu.cuMemcpyDtoHAsync_v2(host.address, memory, 4, stream));
    emulated.ok(emulated.cu.cuCtxSynchronize());
    assert.equal(host.words[0], 9);
    emulated.ok(emulated.cu.cuMemHostUnregister(host.address));
  });

  test('work that never ends does not keep a process alive', { timeout: 20_000 }, async () => {
    const { path, execArgv } = programFile(new URL('./fixtures/never-done.ts', import.meta.url));
    const child = fork(path, { execArgv });
    try {
      const [code] = await once(child, 'exit');
      assert.equal(code, 0);
    } finally {
      child.kill('SIGKILL');
    }
  });

  test('where hardware blocks its caller for good, an error names the call and the stream', (t) => {
    hurry(t);
    const large = hostWords(2 ** 19);
    const calls: Readonly<
      Record<string, (emulated: Emulated, stream: CUstream, memory: CUdeviceptr) => number>
    > = {
      cuStreamSynchronize: ({ cu }, stream) => cu.cuStreamSynchronize(stream),
      cuCtxSynchronize: ({ cu }) => cu.cuCtxSynchronize(),
      cuMemFree_v2: ({ cu }, _, memory) => cu.cuMemFree_v2(memory),
      cuModuleLoadDataEx: ({ cu }) =>
        cu.cuModuleLoadDataEx(OUT0, writeBytes(PTX), 0, 0 as Address, 0 as Address),
      cuMemcpyDtoH_v2: ({ cu }, _, memory) => cu.cuMemcpyDtoH_v2(BLOCK, memory, 4),
      cuMemcpyDtoHAsync_v2: ({ cu }, stream, memory) =>
        cu.cuMemcpyDtoHAsync_v2(BLOCK, memory, 4, stream),
      cuMemcpyHtoDAsync_v2: ({ cu }, stream, memory) =>
        cu.cuMemcpyHtoDAsync_v2(memory, large.address, 2 ** 20 + 1, stream),
      cuMemcpy2DAsync_v2: ({ cu }, stream, memory) =>
        cu.cuMemcpy2DAsync_v2(
          writeStruct('CUDA_MEMCPY2D', {
            srcMemoryType: 1,
            srcHost: large.address,
            srcPitch: 1024,
            dstMemoryType: 2,
            dstDevice: memory,
            dstPitch: 1024,
            WidthInBytes: 1024,
            Height: 1025,
          }),
          stream,
        ),
    };
    for (const [name, call] of Object.entries(calls)) {
      const emulated = Emulated.inContext();
      const memory = emulated.allocate(2 ** 21);
      const { stream, release } = held(emulated);
      const expected = new RegExp(
        `^Error: ${name} has waited 2000 ms for the stream 0x${hex(stream)},`,
      );
      assert.throws(() => call(emulated, stream, memory), expected);
      release();
      emulated.ok(call(emulated, stream, memory));
    }
  });

  test('a call without a stream waits for a copy of rows to the host, not for one on the device', (t) => {
    hurry(t);
    const emulated = Emulated.inContext();
    const memory = emulated.allocate(8192);
    const copy = (target: object): number =>
      emulated.cu.cuMemcpy2DUnaligned_v2(
        writeStruct('CUDA_MEMCPY2D', {
          srcMemoryType: 2,
          srcDevice: memory,
          srcPitch: 64,
          dstPitch: 64,
          WidthInBytes: 32,
          Height: 2,
          ...target,
        }),
      );
    const onDevice = at(memory, 4096);
    emulated.write(memory, 7);
    emulated.write(onDevice, 0);
    const { stream, release } = held(emulated);
    emulated.ok(copy({ dstMemoryType: 2, dstDevice: onDevice }));
    assert.equal(emulated.cu.cuStreamQuery(LEGACY), NOT_READY);
    assert.throws(
      () => copy({ dstMemoryType: 1, dstHost: hostWords(64).address }),
      new RegExp(`^Error: cuMemcpy2DUnaligned_v2 has .* for the stream 0x${hex(stream)},`),
    );
    release();
    assert.equal(emulated.read(onDevice), 7);
  });

  test('the first launch of a kernel waits for all streams, unless the kernel was loaded', (t) => {
    hurry(t);
    for (const name of ['cuFuncLoad', 'cuLaunchKernel'] as const) {
      const emulated = new Emulated({}, new Map([['nothing', { params: [], run() {} }]]));
      emulated.push(emulated.retain());
      const { cu } = emulated;
      emulated.ok(cu.cuModuleLoadDataEx(OUT0, writeBytes(PTX), 0, 0 as Address, 0 as Address));
      const module = readSize(OUT0) as CUmodule;
      emulated.ok(cu.cuModuleGetFunction(OUT0, module, writeBytes(Buffer.from('nothing\0'))));
      const kernel = readSize(OUT0) as CUfunction;
      const other = emulated.stream(NON_BLOCKING);
      const launch = (): number =>
        cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, other, 0 as Address, 0 as Address);
      const first = held(emulated, NON_BLOCKING);
      assert.throws(
        name === 'cuFuncLoad' ? () => cu.cuFuncLoad(kernel) : launch,
        new RegExp(`^Error: ${name} has waited 2000 ms for the stream 0x${hex(first.stream)},`),
      );
      first.release();
      emulated.ok(name === 'cuFuncLoad' ? cu.cuFuncLoad(kernel) : launch());
      const second = held(emulated, NON_BLOCKING);
      emulated.ok(launch());
      second.release();
    }
  });

  test('an event behind held work is named where it is waited for', (t) => {
    hurry(t);
    const emulated = Emulated.inContext();
    const event = emulated.event();
    const { stream, release } = held(emulated, NON_BLOCKING);
    emulated.ok(emulated.cu.cuEventRecord(event, stream));
    const expected = new RegExp(`^Error: cuEventSynchronize has .* for the event 0x${hex(event)},`);
    assert.throws(() => emulated.cu.cuEventSynchronize(event), expected);
    release();
    emulated.ok(emulated.cu.cuEventSynchronize(event));
  });

  test('up to 1 MiB of ordinary memory is copied at once into a held stream', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const large = hostWords(2 ** 18);
    large.words.fill(5);
    const memory = emulated.allocate(2 ** 20);
    const { stream, release } = held(emulated, NON_BLOCKING);
    emulated.ok(cu.cuMemcpyHtoDAsync_v2(memory, large.address, 2 ** 20, stream));
    large.words.fill(6);
    release();
    emulated.ok(cu.cuStreamSynchronize(stream));
    assert.equal(emulated.read(memory), 5);
  });

  test('behind a held piece of work there is room for 1,020 more', (t) => {
    hurry(t);
    const kinds: readonly ((
      emulated: Emulated,
      stream: CUstream,
      memory: CUdeviceptr,
    ) => number)[] = [
      ({ cu }, stream, memory) => cu.cuStreamWriteValue32_v2(stream, memory, 1, 0),
      ({ cu }, stream, memory) => cu.cuStreamWaitValue32_v2(stream, memory, 0, GEQ),
      ({ cu }, stream, memory) => cu.cuMemcpyDtoDAsync_v2(memory, at(memory, 64), 4, stream),
    ];
    for (const queue of kinds) {
      const emulated = Emulated.inContext();
      const memory = emulated.allocate(128);
      emulated.write(memory, 0);
      const { stream, release } = held(emulated, NON_BLOCKING);
      for (let n = 0; n < 1020; n += 1) emulated.ok(queue(emulated, stream, memory));
      const expected = new RegExp(
        `^Error: cu\\w+ has waited 2000 ms for the stream 0x${hex(stream)},`,
      );
      assert.throws(() => queue(emulated, stream, memory), expected);
      // Other streams have room of their own, and other work takes none.
      emulated.ok(queue(emulated, emulated.stream(NON_BLOCKING), memory));
      emulated.ok(emulated.cu.cuEventRecord(emulated.event(), stream));
      release();
      emulated.ok(queue(emulated, stream, memory));
      emulated.ok(emulated.cu.cuStreamSynchronize(stream));
    }
  });
});
