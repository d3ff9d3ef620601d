/** Which calls about kinds of memory need a current context: made while none is current. */
import type { FunctionName } from '../../../ffi/functions.ts';
import {
  type Argument,
  DriverProcess,
  enterContext,
  pointed,
  struct,
} from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { access, FD, location, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

export const contextlessFacts: FactGroup = async (note) => {
  await using exporter = new DriverProcess();
  await enterContext(exporter);
  await using peer = new DriverProcess();
  const context = await enterContext(peer);
  const madeIn =
    (side: DriverProcess) =>
    async (name: FunctionName, ...args: Argument[]): Promise<number> => {
      const { status, out0 } = await side.call(name, ...args);
      if (status !== 0) throw new Error(`${name}: ${status}`);
      return out0;
    };
  const made = madeIn(peer);
  const theirs = madeIn(exporter);
  const shareable = poolProperties({ handleTypes: FD });

  const foreignPool = await theirs('cuMemPoolCreate', 'OUT0', shareable);
  const foreign = await theirs('cuMemAllocFromPoolAsync', 'OUT0', MIB, foreignPool, 0);
  await theirs('cuCtxSynchronize');
  const data = { bytes: (await exporter.call('cuMemPoolExportPointer', 'BLOCK', foreign)).block };
  const sent = await theirs('cuMemPoolExportToShareableHandle', 'OUT0', foreignPool, FD, 0);
  const poolFd = await exporter.sendFd(sent, peer);
  const physicalOfThem = await theirs(
    'cuMemCreate',
    'OUT0',
    UNIT,
    physicalProperties({ requestedHandleTypes: FD }),
    0,
  );
  const exported = await theirs('cuMemExportToShareableHandle', 'OUT0', physicalOfThem, FD, 0);
  const physicalFd = await exporter.sendFd(exported, peer);

  const stream = await made('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  const pool = await made('cuMemPoolCreate', 'OUT0', shareable);
  const doomed = await made('cuMemPoolCreate', 'OUT0', poolProperties());
  const pooled = await made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
  const freed = await made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
  const plain = await made('cuMemAlloc_v2', 'OUT0', MIB);
  const pinned = await made('cuMemHostAlloc', 'OUT0', 4096, 3);
  // It is used as a semaphore, which fresh memory is not until it is cleared.
  await peer.call('cuMemsetD8Async', pinned, 0, 4096, stream);
  await peer.call('cuStreamSynchronize', stream);
  const { status: isManaged, out0: managed } = await peer.call(
    'cuMemAllocManaged',
    'OUT0',
    UNIT,
    1,
  );
  await made('cuCtxSynchronize');
  await made('cuCtxPopCurrent_v2', 'OUT0');

  const ask = async (name: FunctionName, ...args: Argument[]): Promise<number> => {
    const { status, out0 } = await peer.call(name, ...args);
    note(`without a context: ${name}`, status);
    return out0;
  };
  await ask('cuDeviceGetDefaultMemPool', 'OUT0', 0);
  await ask('cuDeviceGetMemPool', 'OUT0', 0);
  await ask('cuDeviceSetMemPool', 0, pool);
  await ask('cuMemPoolCreate', 'OUT0', poolProperties());
  await ask('cuMemPoolTrimTo', pool, 0);
  await ask('cuMemPoolSetAttribute', pool, 4, pointed(0));
  await ask('cuMemPoolGetAttribute', pool, 4, 'OUT0');
  await ask('cuMemPoolSetAccess', pool, access(3), 1);
  await ask('cuMemPoolGetAccess', 'OUT0', pool, location());
  await ask('cuMemPoolExportToShareableHandle', 'OUT0', pool, FD, 0);
  await ask('cuMemPoolExportPointer', 'BLOCK', pooled);
  const imported = await ask('cuMemPoolImportFromShareableHandle', 'OUT0', poolFd, FD, 0);
  await ask('cuMemPoolImportPointer', 'OUT0', imported, data);
  await ask('cuMemPoolDestroy', doomed);

  const handle = await ask(
    'cuMemCreate',
    'OUT0',
    UNIT,
    physicalProperties({ requestedHandleTypes: FD }),
    0,
  );
  const place = await ask('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);
  await ask('cuMemGetAllocationGranularity', 'OUT0', physicalProperties(), 0);
  await ask('cuMemMap', place, UNIT, 0, handle, 0);
  await ask('cuMemSetAccess', place, UNIT, access(3), 1);
  await ask('cuMemGetAccess', 'OUT0', location(), place);
  await ask('cuMemExportToShareableHandle', 'OUT0', handle, FD, 0);
  await ask('cuMemImportFromShareableHandle', 'OUT0', physicalFd, FD);
  await ask('cuMemUnmap', place, UNIT);
  await ask('cuMemRelease', handle);
  await ask('cuMemAddressFree', place, UNIT);

  await ask('cuMemHostAlloc', 'OUT0', 4096, 0);
  await ask('cuMemHostGetFlags', 'OUT0', pinned);
  await ask('cuMemAllocManaged', 'OUT0', 4096, 1);
  if (isManaged === 0) await ask('cuMemAdvise', managed, UNIT, 1, 0);
  await ask('cuMemAllocPitch_v2', 'OUT0', 'OUT1', 100, 10, 4);
  await ask('cuDeviceCanAccessPeer', 'OUT0', 0, 0);
  await ask('cuDeviceGetP2PAttribute', 'OUT0', 1, 0, 0);
  await ask('cuCtxEnablePeerAccess', context, 0);
  await ask('cuCtxDisablePeerAccess', context);

  const flat = {
    srcMemoryType: 2,
    srcDevice: plain,
    srcPitch: 512,
    srcHeight: 2,
    dstMemoryType: 2,
    dstDevice: plain + 65_536,
    dstPitch: 512,
    dstHeight: 2,
    WidthInBytes: 64,
    Height: 2,
  };
  const { srcHeight: _, dstHeight: __, ...rows } = flat;
  const box = { ...flat, Depth: 1 };
  await ask('cuMemcpy2DUnaligned_v2', struct('CUDA_MEMCPY2D', rows));
  await ask('cuMemcpy3D_v2', struct('CUDA_MEMCPY3D', box));

  for (const [which, where] of [
    ['a stream', stream],
    ['stream 0', 0],
    ['the per-thread stream', 2],
  ] as const) {
    const queue = async (name: FunctionName, ...args: Argument[]): Promise<void> =>
      note(`without a context: ${name} in ${which}`, (await peer.call(name, ...args)).status);
    await queue('cuMemAllocAsync', 'OUT0', 4096, where);
    await queue('cuMemAllocFromPoolAsync', 'OUT0', 4096, pool, where);
    await queue('cuStreamWriteValue64_v2', where, plain, 7, 0);
    await queue('cuStreamWaitValue64_v2', where, plain, 7, 1);
    await queue('cuLaunchHostFunc', where, { symbol: 'sem_post' }, pinned);
    await queue('cuMemcpy2DAsync_v2', struct('CUDA_MEMCPY2D', rows), where);
    await queue('cuMemcpy3DAsync_v2', struct('CUDA_MEMCPY3D', box), where);
    const peers = { ...box, srcContext: context, dstContext: context };
    await queue('cuMemcpy3DPeerAsync', struct('CUDA_MEMCPY3D_PEER', peers), where);
    await queue('cuMemcpyPeerAsync', plain, context, plain + 4096, context, 64, where);
    await queue('cuMemsetD2D8Async', plain, 512, 1, 64, 4, where);
    await queue('cuMemsetD2D16Async', plain, 512, 1, 64, 4, where);
    await queue('cuMemsetD2D32Async', plain, 512, 1, 64, 4, where);
    if (isManaged === 0) {
      await queue('cuMemPrefetchAsync', managed, UNIT, 0, where);
      await queue('cuStreamAttachMemAsync', where, managed, 0, 1);
    }
    await queue('cuMemFreeAsync', where === stream ? freed : pooled, where);
  }
  note(
    'without a context: cuMemFree_v2 of pool memory',
    (await peer.call('cuMemFree_v2', pooled)).status,
  );
  await ask('cuMemFreeHost', pinned);
};
