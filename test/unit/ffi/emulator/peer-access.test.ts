/** Two devices: which work can access the other's memory with peer access, and without. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, readBytes, readInt32, readSize, writeBytes } from '../../../../ffi/arena.ts';
import type { RegisteredKernel } from '../../../../ffi/emulated-kernels.ts';
import type { Address, CUcontext, CUdeviceptr, CUmodule, CUstream } from '../../../../ffi/types.ts';
import { at, device, Emulated, hostWords, NON_BLOCKING } from './support.ts';

const ILLEGAL_ADDRESS = 700;
const PTX = Buffer.from(
  '.version 8.0\n.target sm_90\n.visible .entry count_equal' +
    '(.param .u64 a, .param .u64 b, .param .u64 n, .param .u64 equal)\n{\nret;\n}\n\0',
);

/** Counts the bytes that are equal in two memories. */
const countEqual: RegisteredKernel['run'] = ({ view }, args) => {
  const [a, b, length, equal] = args as [number, number, bigint, number];
  const left = view(a, Uint8Array, Number(length));
  const right = view(b, Uint8Array, Number(length));
  const sum = view(equal, BigUint64Array, 1);
  sum[0] = BigInt(left.filter((byte, at) => byte === right[at]).length);
};
const KERNEL: RegisteredKernel = {
  params: ['pointer', 'pointer', 'uint64', 'pointer'],
  run: countEqual,
};

interface Room {
  readonly emulated: Emulated;
  readonly contexts: readonly [CUcontext, CUcontext];
  readonly theirs: CUdeviceptr;
  readonly own: CUdeviceptr;
  readonly stream: CUstream;
}

/** Memory of device 0; memory and a stream of device 1, whose context is current. */
function furnish(): Room {
  const emulated = new Emulated(
    { CUFFI_EMULATED_DEVICES: '2' },
    new Map([['count_equal', KERNEL]]),
  );
  const contexts = [emulated.retain(0), emulated.retain(1)] as const;
  emulated.push(contexts[0]);
  const theirs = emulated.allocate(4096);
  emulated.write(theirs, 0, 0);
  emulated.push(contexts[1]);
  const own = emulated.allocate(4096);
  return { emulated, contexts, theirs, own, stream: emulated.stream(NON_BLOCKING) };
}

/** Has a kernel read from `memory`. */
function launch({ emulated, own, stream }: Room, memory: CUdeviceptr): number {
  const { cu, ok } = emulated;
  ok(cu.cuModuleLoadDataEx(OUT0, writeBytes(PTX), 0, 0 as Address, 0 as Address));
  ok(cu.cuModuleEnumerateFunctions(OUT0, 1, readSize(OUT0) as CUmodule));
  const kernel = readSize(OUT0) as never;
  const host = hostWords(16);
  const values = new BigUint64Array(host.words.buffer, host.words.byteOffset, 8);
  values.set([memory, memory, 16, own + 64].map(BigInt));
  values.set(
    [0, 8, 16, 24].map((offset) => BigInt(host.address + offset)),
    4,
  );
  ok(cu.cuMemsetD8Async(at(own, 64), 0, 8, stream));
  const table = (host.address + 32) as Address;
  return cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, table, 0 as Address);
}

describe('emulated peer access', () => {
  test('fills and words of a stream reach another device’s memory with access alone', () => {
    const { emulated, contexts, theirs, stream } = furnish();
    const { cu } = emulated;
    const calls = [
      () => cu.cuMemsetD8Async(theirs, 1, 4, stream),
      () => cu.cuMemsetD2D32Async(theirs, 64, 1, 4, 4, stream),
      () => cu.cuStreamWriteValue32_v2(stream, theirs, 1, 0),
      () => cu.cuStreamWaitValue64_v2(stream, theirs, 0, 0),
    ];
    for (const call of calls) assert.equal(call(), 1, `${call}`);
    emulated.ok(cu.cuCtxEnablePeerAccess(contexts[0], 0));
    for (const call of calls) emulated.ok(call());
    emulated.ok(cu.cuStreamSynchronize(stream));
    emulated.ok(cu.cuCtxDisablePeerAccess(contexts[0]));
    for (const call of calls) assert.equal(call(), 1, `${call}`);
  });

  test('copies reach another device’s memory without access', () => {
    const { emulated, contexts, theirs, own, stream } = furnish();
    const { cu } = emulated;
    emulated.ok(cu.cuMemsetD32Async(own, 5, 4, stream));
    emulated.ok(cu.cuMemcpyDtoDAsync_v2(theirs, own, 16, stream));
    emulated.ok(cu.cuMemcpyPeerAsync(at(theirs, 16), contexts[0], own, contexts[1], 16, stream));
    emulated.ok(cu.cuStreamSynchronize(stream));
    emulated.ok(cu.cuMemcpyDtoH_v2(BLOCK, theirs, 32));
    assert.deepEqual(new Set(new Int32Array(readBytes(BLOCK, 32).buffer)), new Set([5]));
  });

  test('a kernel that reads another device’s memory needs access, or its context is lost', () => {
    const room = furnish();
    const { emulated, contexts, theirs, own, stream } = room;
    const { cu } = emulated;
    emulated.ok(cu.cuCtxEnablePeerAccess(contexts[0], 0));
    emulated.ok(launch(room, theirs));
    emulated.ok(cu.cuStreamSynchronize(stream));
    assert.equal(emulated.read(at(own, 64)), 16);
    emulated.ok(cu.cuCtxDisablePeerAccess(contexts[0]));
    emulated.ok(launch(room, theirs));
    assert.equal(cu.cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
  });

  test('access goes with either context', () => {
    const { emulated, contexts, theirs, stream } = furnish();
    const { cu } = emulated;
    emulated.ok(cu.cuCtxEnablePeerAccess(contexts[0], 0));
    emulated.ok(cu.cuMemsetD8Async(theirs, 1, 4, stream));
    emulated.ok(cu.cuDevicePrimaryCtxReset_v2(0 as never));
    emulated.retain(0);
    emulated.push(contexts[0]);
    const again = emulated.allocate(64);
    assert.equal(cu.cuMemsetD8Async(again, 1, 4, stream), 1);
  });
});

describe('CUFFI_EMULATED_PEERS', () => {
  test('names the devices of the machine that reach the memory of another one', () => {
    const emulated = new Emulated({
      CUFFI_EMULATED_DEVICES: '3',
      CUFFI_EMULATED_PEERS: '0>2,2>1',
      CUDA_VISIBLE_DEVICES: '2,1,0',
    });
    const { cu } = emulated;
    const reaching: string[] = [];
    for (const from of [0, 1, 2])
      for (const to of [0, 1, 2]) {
        emulated.ok(cu.cuDeviceCanAccessPeer(OUT0, device(from), device(to)));
        if (readInt32(OUT0) === 1) reaching.push(`${from}>${to}`);
        if (from === to) continue;
        emulated.ok(cu.cuDeviceGetP2PAttribute(OUT0, 2, device(from), device(to)));
        assert.equal(readInt32(OUT0) === 1, reaching.includes(`${from}>${to}`));
      }
    // Devices 0 and 2 here are 2 and 0 of the machine.
    assert.deepEqual(reaching, ['0>1', '2>0']);
    const contexts = [0, 1, 2].map((ordinal) => emulated.retain(ordinal)) as CUcontext[];
    emulated.push(contexts[0] as CUcontext);
    assert.equal(cu.cuCtxEnablePeerAccess(contexts[2] as CUcontext, 0), 217);
    emulated.ok(cu.cuCtxEnablePeerAccess(contexts[1] as CUcontext, 0));
  });
});

describe('CUFFI_EMULATED_FOREIGN_CONTEXT', () => {
  test('makes a context of the last device current that is no primary one', () => {
    for (const [setting, device] of [
      ['1', 1],
      ['0', undefined],
    ] as const) {
      const emulated = new Emulated({
        CUFFI_EMULATED_DEVICES: '2',
        CUFFI_EMULATED_FOREIGN_CONTEXT: setting,
      });
      emulated.ok(emulated.cu.cuInit(0));
      emulated.ok(emulated.cu.cuCtxGetCurrent(OUT0));
      const current = readSize(OUT0);
      assert.equal(current !== 0, device !== undefined);
      if (device === undefined) continue;
      assert.notEqual(current, emulated.retain(device));
      emulated.ok(emulated.cu.cuCtxGetDevice(OUT0));
      assert.equal(readInt32(OUT0), device);
      // Only the first cuInit makes one.
      emulated.ok(emulated.cu.cuCtxPopCurrent_v2(OUT0));
      emulated.ok(emulated.cu.cuCtxGetCurrent(OUT0));
      assert.equal(readSize(OUT0), 0);
    }
  });
});
