/** Host memory that the device reaches, host functions, and copies of two and three dimensions. */
import { DriverProcess, enterContext, struct } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { withHeldStream } from './holding.ts';
import { attributeIn, INVENTED, MIB, outOf, statusIn, yesNo } from './kinds.ts';

const [, DEVICE, UNIFIED] = [1, 2, 4] as const;

export const hostFacts: FactGroup = async (note) => {
  await using peer = new DriverProcess();
  await enterContext(peer);
  const status = statusIn(peer);
  const out = outOf(peer);
  note('pinned: nothing allocated', await status('cuMemHostAlloc', 'OUT0', 0, 0));
  note('pinned: more than there is', await status('cuMemHostAlloc', 'OUT0', 2 ** 46, 0));
  note('pinned: with an unknown flag', await status('cuMemHostAlloc', 'OUT0', 4096, 8));
  for (const flags of [0, 1, 2, 3, 4, 7]) {
    const memory = await out('cuMemHostAlloc', 'OUT0', 5000, flags);
    note(`pinned with flags ${flags}: flags told`, await out('cuMemHostGetFlags', 'OUT0', memory));
    note(
      `pinned with flags ${flags}: the device's address is the same`,
      yesNo((await out('cuMemHostGetDevicePointer_v2', 'OUT0', memory, 0)) === memory),
    );
    note(`pinned with flags ${flags}: freed`, await status('cuMemFreeHost', memory));
  }
  const memory = await out('cuMemHostAlloc', 'OUT0', 5000, 3);
  const attribute = attributeIn(peer);
  for (const number of [2, 8, 9, 10, 12, 13, 14, 16, 17])
    note(`pinned memory: attribute ${number}`, await attribute(number, memory));
  note(
    'pinned memory: range',
    (await peer.call('cuMemGetAddressRange_v2', 'OUT0', 'OUT1', memory)).out1,
  );
  note('pinned memory: registered', await status('cuMemHostRegister_v2', memory, 4096, 1));
  note('pinned memory: unregistered', await status('cuMemHostUnregister', memory));
  note('pinned memory: freed by cuMemFree', await status('cuMemFree_v2', memory));
  note('pinned memory: legacy handle', await status('cuIpcGetMemHandle', 'BLOCK', memory));
  const stream = await out('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  note(
    'pinned memory: 64-bit write',
    await status('cuStreamWriteValue64_v2', stream, memory, 5, 0),
  );
  note('pinned memory: 64-bit wait', await status('cuStreamWaitValue64_v2', stream, memory, 5, 1));
  note(
    'pinned memory: 64-bit wait at a multiple of 4',
    await status('cuStreamWaitValue64_v2', stream, memory + 4, 0, 0),
  );
  await status('cuStreamSynchronize', stream);
  note('pinned memory: freed inside', await status('cuMemFreeHost', memory + 64));
  note('pinned memory: freed', await status('cuMemFreeHost', memory));
  note('pinned memory: freed twice', await status('cuMemFreeHost', memory));
  note('pinned memory: invented pointer freed', await status('cuMemFreeHost', INVENTED));
  const latch = await peer.latch();
  note(
    'registered with flags 3: flags told',
    await out('cuMemHostGetFlags', 'OUT0', latch.devicePointer),
  );
  note(
    'registered memory: freed by cuMemFreeHost',
    await status('cuMemFreeHost', latch.devicePointer),
  );
  note('flags of memory that is not pinned', await status('cuMemHostGetFlags', 'OUT0', INVENTED));

  const semaphore = await out('cuMemHostAlloc', 'OUT0', 64, 0);
  await status('cuMemsetD8Async', semaphore, 0, 64, stream);
  note(
    'host function: sem_post',
    await status('cuLaunchHostFunc', stream, { symbol: 'sem_post' }, semaphore),
  );
  note('host function: at address 0', await status('cuLaunchHostFunc', stream, 0, semaphore));
  await status('cuStreamSynchronize', stream);
  note(
    'host function: the semaphore',
    Buffer.from(
      (await peer.call('cuMemcpyDtoH_v2', 'BLOCK', semaphore, 4)).block,
      'base64',
    ).readInt32LE(),
  );

  const pitched = await peer.call('cuMemAllocPitch_v2', 'OUT0', 'OUT1', 100, 10, 4);
  note('pitch of rows of 100 bytes', pitched.out1);
  note(
    'pitch for elements of 3 bytes',
    await status('cuMemAllocPitch_v2', 'OUT0', 'OUT1', 100, 10, 3),
  );
  const base = {
    srcMemoryType: DEVICE,
    srcDevice: pitched.out0,
    srcPitch: pitched.out1,
    dstMemoryType: DEVICE,
    dstDevice: pitched.out0 + 2048,
    dstPitch: pitched.out1,
    WidthInBytes: 100,
    Height: 4,
  };
  const copy2D = (values: object): Promise<number> =>
    status('cuMemcpy2DAsync_v2', struct('CUDA_MEMCPY2D', { ...base, ...values }), stream);
  note('2-D copy', await copy2D({}));
  note(
    '2-D copy of unified addresses',
    await copy2D({ srcMemoryType: UNIFIED, dstMemoryType: UNIFIED }),
  );
  note('2-D copy of no rows', await copy2D({ Height: 0 }));
  note('2-D copy of no width', await copy2D({ WidthInBytes: 0 }));
  note('2-D copy with a small pitch', await copy2D({ srcPitch: 50 }));
  note('2-D copy with pitch 0', await copy2D({ srcPitch: 0 }));
  note('2-D copy of one row with pitch 0', await copy2D({ srcPitch: 0, dstPitch: 0, Height: 1 }));
  note('2-D copy with an unknown memory type', await copy2D({ srcMemoryType: 9 }));
  note('2-D copy beyond the end', await copy2D({ Height: 100_000 }));
  note('2-D copy with a pitch of 101', await copy2D({ srcPitch: 101, dstPitch: 103, Height: 2 }));
  note(
    '2-D copy now, with a pitch of 101',
    await status('cuMemcpy2DUnaligned_v2', struct('CUDA_MEMCPY2D', { ...base, srcPitch: 101 })),
  );
  const box = { ...base, Height: 2, Depth: 2, srcHeight: 2, dstHeight: 2 };
  const copy3D = (values: object): Promise<number> =>
    status('cuMemcpy3DAsync_v2', struct('CUDA_MEMCPY3D', { ...box, ...values }), stream);
  note('3-D copy', await copy3D({}));
  note('3-D copy with a small height', await copy3D({ srcHeight: 1 }));
  note('3-D copy of no slices', await copy3D({ Depth: 0 }));
  note('3-D copy with a level of detail', await copy3D({ srcLOD: 1 }));
  note('3-D copy now', await status('cuMemcpy3D_v2', struct('CUDA_MEMCPY3D', box)));
  const fill = (pitch: number, width: number, height: number): Promise<number> =>
    status('cuMemsetD2D16Async', pitched.out0, pitch, 1, width, height, stream);
  note('2-D fill', await fill(pitched.out1, 50, 10));
  note('2-D fill of no rows', await fill(pitched.out1, 50, 0));
  note('2-D fill with a small pitch', await fill(50, 50, 4));
  note('2-D fill with an odd pitch', await fill(101, 50, 4));
  note('2-D fill of one row with pitch 0', await fill(0, 50, 1));

  await withHeldStream(note, async ({ peer: held, stream: own, made, waits }) => {
    const first = await made('cuMemHostAlloc', 'OUT0', MIB, 3);
    await held.call('cuMemsetD8Async', first, 0, 64, own);
    const second = await made('cuMemAlloc_v2', 'OUT0', 4 * MIB);
    await waits('cuMemHostAlloc', 'OUT0', MIB, 3);
    await waits('cuMemAllocPitch_v2', 'OUT0', 'OUT1', 4096, 1024, 4);
    await waits('cuMemHostRegister_v2', 'OUT0', 64, 3);
    await waits('cuMemHostUnregister', 'OUT0');
    await waits(
      'cuMemcpy2DAsync_v2',
      struct('CUDA_MEMCPY2D', {
        ...base,
        srcDevice: second,
        dstDevice: second + MIB,
        srcPitch: 512,
        dstPitch: 512,
      }),
      own,
    );
    await waits('cuMemsetD2D8Async', second, 512, 1, 64, 4, own);
    await waits('cuLaunchHostFunc', own, { symbol: 'sem_post' }, first);
    await waits('cuMemFreeHost', first);
    await held.call('cuMemFree_v2', second);
  });
};
