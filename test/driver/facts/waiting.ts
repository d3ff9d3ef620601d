/** Which calls make the process wait for a stream that is held up. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { withHeldStream } from './holding.ts';

export const waitingFacts: FactGroup = async (note) => {
  await using exporter = new DriverProcess();
  await enterContext(exporter);
  const foreign = (await exporter.call('cuMemAlloc_v2', 'OUT0', 4 << 20)).out0;
  const handle = { base64: (await exporter.call('cuIpcGetMemHandle', 'BLOCK', foreign)).block };

  await withHeldStream(note, async ({ peer, stream: nonBlocking, made, hold, open, waitsAs }) => {
    const blocking = await made('cuStreamCreateWithPriority', 'OUT0', 0, 0);
    const memory = await made('cuMemAlloc_v2', 'OUT0', 4 << 20);
    const spare = await made('cuMemAlloc_v2', 'OUT0', 4 << 20);
    const event = await made('cuEventCreate', 'OUT0', 2);
    const mapped = await made('cuIpcOpenMemHandle_v2', 'OUT0', handle, 1);

    await waitsAs(
      'cuMemAlloc_v2 beside a held non-blocking stream',
      nonBlocking,
      'cuMemAlloc_v2',
      'OUT0',
      4 << 20,
    );
    await waitsAs(
      'cuMemFree_v2 beside a held non-blocking stream',
      nonBlocking,
      'cuMemFree_v2',
      spare,
    );
    await waitsAs(
      'cuIpcOpenMemHandle_v2 beside a held non-blocking stream',
      nonBlocking,
      'cuIpcOpenMemHandle_v2',
      'OUT0',
      handle,
      1,
    );
    await waitsAs(
      'cuIpcCloseMemHandle beside a held non-blocking stream',
      nonBlocking,
      'cuIpcCloseMemHandle',
      mapped,
    );
    await waitsAs(
      'cuIpcCloseMemHandle that unmaps beside a held non-blocking stream',
      nonBlocking,
      'cuIpcCloseMemHandle',
      mapped,
    );
    await waitsAs(
      'cuIpcGetMemHandle beside a held non-blocking stream',
      nonBlocking,
      'cuIpcGetMemHandle',
      'BLOCK',
      memory,
    );
    await waitsAs(
      'cuEventCreate beside a held non-blocking stream',
      nonBlocking,
      'cuEventCreate',
      'OUT0',
      2,
    );
    await waitsAs(
      'cuEventDestroy_v2 beside a held non-blocking stream',
      nonBlocking,
      'cuEventDestroy_v2',
      event,
    );
    await waitsAs(
      'cuStreamCreateWithPriority beside a held non-blocking stream',
      nonBlocking,
      'cuStreamCreateWithPriority',
      'OUT0',
      1,
      0,
    );
    await waitsAs(
      'cuMemGetInfo_v2 beside a held non-blocking stream',
      nonBlocking,
      'cuMemGetInfo_v2',
      'OUT0',
      'OUT1',
    );
    await waitsAs(
      'cuMemcpyDtoH_v2 beside a held non-blocking stream',
      nonBlocking,
      'cuMemcpyDtoH_v2',
      'BLOCK',
      memory,
      64,
    );
    await waitsAs(
      'cuMemcpyDtoH_v2 beside a held blocking stream',
      blocking,
      'cuMemcpyDtoH_v2',
      'BLOCK',
      memory,
      64,
    );
    await waitsAs(
      'cuMemcpyDtoHAsync_v2 of pageable memory in the held stream',
      nonBlocking,
      'cuMemcpyDtoHAsync_v2',
      'BLOCK',
      memory,
      64,
      nonBlocking,
    );
    await waitsAs(
      'cuMemcpyHtoDAsync_v2 of 64 pageable bytes in the held stream',
      nonBlocking,
      'cuMemcpyHtoDAsync_v2',
      memory,
      'BLOCK',
      64,
      nonBlocking,
    );
    await waitsAs(
      'cuMemsetD8Async in stream 0 beside a held blocking stream',
      blocking,
      'cuMemsetD8Async',
      memory,
      1,
      64,
      0,
    );
    await hold(blocking);
    note(
      'cuStreamQuery of stream 0 beside a held blocking stream',
      (await peer.call('cuStreamQuery', 0)).status,
    );
    note('cuStreamQuery of the held stream', (await peer.call('cuStreamQuery', blocking)).status);
    await open();
    await waitsAs(
      'cuStreamDestroy_v2 of the held stream',
      nonBlocking,
      'cuStreamDestroy_v2',
      nonBlocking,
    );
  });
};
