/** Managed memory. Never more than a few megabytes: asking for more than is free ends badly. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { withHeldStream } from './holding.ts';
import { attributeIn, outOf, statusIn, UNIT } from './kinds.ts';

const CPU = -1;
const GLOBAL = 1;

export const managedFacts: FactGroup = async (note) => {
  await using peer = new DriverProcess();
  await enterContext(peer);
  const status = statusIn(peer);
  const out = outOf(peer);
  for (const attribute of [83, 89])
    note(
      `device attribute ${attribute}`,
      (await peer.call('cuDeviceGetAttribute', 'OUT0', attribute, 0)).int0,
    );
  note('managed: nothing allocated', await status('cuMemAllocManaged', 'OUT0', 0, GLOBAL));
  for (const flags of [0, 3, 4])
    note(`managed: with flags ${flags}`, await status('cuMemAllocManaged', 'OUT0', 4096, flags));
  const made = await peer.call('cuMemAllocManaged', 'OUT0', 2 * UNIT, GLOBAL);
  note('managed: allocated', made.status);
  const memory = made.out0;
  const attribute = attributeIn(peer);
  for (const number of [2, 8, 9, 10, 12, 13, 14, 16, 17])
    note(`managed memory: attribute ${number}`, await attribute(number, memory));
  note('managed memory: legacy handle', await status('cuIpcGetMemHandle', 'BLOCK', memory));
  note('managed memory: set', await status('cuMemsetD8Async', memory, 5, 2 * UNIT, 0));
  const prefetch = (byteLength: number, device: number): Promise<number> =>
    status('cuMemPrefetchAsync', memory, byteLength, device, 0);
  note('managed memory: prefetched', await prefetch(2 * UNIT, 0));
  note('managed memory: prefetched to the CPU', await prefetch(2 * UNIT, CPU));
  note('managed memory: prefetched in part', await prefetch(4096, 0));
  note('managed memory: prefetched beyond its end', await prefetch(2 * UNIT + 1, 0));
  note('managed memory: prefetched to a device that is not there', await prefetch(4096, 99));
  note('managed memory: nothing prefetched', await prefetch(0, 0));
  const advise = (advice: number, device: number): Promise<number> =>
    status('cuMemAdvise', memory, 2 * UNIT, advice, device);
  for (const advice of [1, 2, 3, 4, 5, 6])
    note(`managed memory: advice ${advice}`, await advise(advice, 0));
  note('managed memory: the CPU preferred', await advise(3, CPU));
  note('managed memory: advice that is not there', await advise(7, 0));
  note('managed memory: advice for a device that is not there', await advise(3, 99));
  const plain = await out('cuMemAlloc_v2', 'OUT0', UNIT);
  note('plain memory prefetched', await status('cuMemPrefetchAsync', plain, UNIT, 0, 0));
  note('plain memory advised', await status('cuMemAdvise', plain, UNIT, 1, 0));
  const stream = await out('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  note(
    'managed memory: attached to a stream',
    await status('cuStreamAttachMemAsync', stream, memory, 0, 4),
  );
  note(
    'managed memory: attached to stream 0',
    await status('cuStreamAttachMemAsync', 0, memory, 0, 4),
  );
  note(
    'managed memory: attached in part',
    await status('cuStreamAttachMemAsync', stream, memory, 4096, 4),
  );
  note(
    'managed memory: 64-bit write',
    await status('cuStreamWriteValue64_v2', stream, memory, 1, 0),
  );
  await status('cuCtxSynchronize');
  note('managed memory: freed inside', await status('cuMemFree_v2', memory + 4096));
  note('managed memory: freed', await status('cuMemFree_v2', memory));
  note('managed memory: freed twice', await status('cuMemFree_v2', memory));

  await withHeldStream(note, async ({ stream: held, made: get, waits }) => {
    const own = await get('cuMemAllocManaged', 'OUT0', UNIT, GLOBAL);
    await waits('cuMemAllocManaged', 'OUT0', UNIT, GLOBAL);
    await waits('cuMemPrefetchAsync', own, UNIT, 0, held);
    await waits('cuMemAdvise', own, UNIT, 1, 0);
  });
};
