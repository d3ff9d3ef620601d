/** Which calls make the process wait for a stream that is held up. */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Answer, type Argument, enterContext, Peer } from '../../support/calls.ts';
import { LatchWord } from '../../support/latch.ts';
import type { FactGroup } from './facts.ts';

const NON_BLOCKING = 1;
/** How long a call is given to return by itself before the latch is opened. */
const PATIENCE_MS = 500;

export const waitingFacts: FactGroup = async (note) => {
  await using exporter = new Peer();
  await enterContext(exporter);
  const foreign = (await exporter.call('cuMemAlloc_v2', 'OUT0', 4 << 20)).out0;
  const handle = { base64: (await exporter.call('cuIpcGetMemHandle', 'BLOCK', foreign)).block };

  await using peer = new Peer();
  await enterContext(peer);
  const made = async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await peer.call(name, ...args)).out0;
  const latch = await peer.latch();
  using word = LatchWord.of(peer.pid, latch.fd);
  const nonBlocking = await made('cuStreamCreateWithPriority', 'OUT0', NON_BLOCKING, 0);
  const blocking = await made('cuStreamCreateWithPriority', 'OUT0', 0, 0);
  const memory = await made('cuMemAlloc_v2', 'OUT0', 4 << 20);
  const spare = await made('cuMemAlloc_v2', 'OUT0', 4 << 20);
  const event = await made('cuEventCreate', 'OUT0', 2);
  const mapped = await made('cuIpcOpenMemHandle_v2', 'OUT0', handle, 1);

  const hold = async (stream: number): Promise<void> => {
    word.shut();
    await peer.call('cuStreamWaitValue32_v2', stream, latch.devicePointer, 1, 0);
  };
  const waits = async (what: string, stream: number, name: FunctionName, ...args: Argument[]) => {
    await hold(stream);
    const opening = setTimeout(() => word.open(), PATIENCE_MS);
    const answer = (await peer.call(name, ...args)) as Answer & { latchOpen: boolean };
    clearTimeout(opening);
    note(what, answer.latchOpen ? 'waits' : 'returns');
    word.open();
    await peer.call('cuCtxSynchronize');
  };

  await waits(
    'cuMemAlloc_v2 beside a held non-blocking stream',
    nonBlocking,
    'cuMemAlloc_v2',
    'OUT0',
    4 << 20,
  );
  await waits('cuMemFree_v2 beside a held non-blocking stream', nonBlocking, 'cuMemFree_v2', spare);
  await waits(
    'cuIpcOpenMemHandle_v2 beside a held non-blocking stream',
    nonBlocking,
    'cuIpcOpenMemHandle_v2',
    'OUT0',
    handle,
    1,
  );
  await waits(
    'cuIpcCloseMemHandle beside a held non-blocking stream',
    nonBlocking,
    'cuIpcCloseMemHandle',
    mapped,
  );
  await waits(
    'cuIpcCloseMemHandle that unmaps beside a held non-blocking stream',
    nonBlocking,
    'cuIpcCloseMemHandle',
    mapped,
  );
  await waits(
    'cuIpcGetMemHandle beside a held non-blocking stream',
    nonBlocking,
    'cuIpcGetMemHandle',
    'BLOCK',
    memory,
  );
  await waits(
    'cuEventCreate beside a held non-blocking stream',
    nonBlocking,
    'cuEventCreate',
    'OUT0',
    2,
  );
  await waits(
    'cuEventDestroy_v2 beside a held non-blocking stream',
    nonBlocking,
    'cuEventDestroy_v2',
    event,
  );
  await waits(
    'cuStreamCreateWithPriority beside a held non-blocking stream',
    nonBlocking,
    'cuStreamCreateWithPriority',
    'OUT0',
    1,
    0,
  );
  await waits(
    'cuMemGetInfo_v2 beside a held non-blocking stream',
    nonBlocking,
    'cuMemGetInfo_v2',
    'OUT0',
    'OUT1',
  );
  await waits(
    'cuMemcpyDtoH_v2 beside a held non-blocking stream',
    nonBlocking,
    'cuMemcpyDtoH_v2',
    'BLOCK',
    memory,
    64,
  );
  await waits(
    'cuMemcpyDtoH_v2 beside a held blocking stream',
    blocking,
    'cuMemcpyDtoH_v2',
    'BLOCK',
    memory,
    64,
  );
  await waits(
    'cuMemcpyDtoHAsync_v2 of pageable memory in the held stream',
    nonBlocking,
    'cuMemcpyDtoHAsync_v2',
    'BLOCK',
    memory,
    64,
    nonBlocking,
  );
  await waits(
    'cuMemcpyHtoDAsync_v2 of 64 pageable bytes in the held stream',
    nonBlocking,
    'cuMemcpyHtoDAsync_v2',
    memory,
    'BLOCK',
    64,
    nonBlocking,
  );
  await waits(
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
  word.open();
  await peer.call('cuCtxSynchronize');
  await waits(
    'cuStreamDestroy_v2 of the held stream',
    nonBlocking,
    'cuStreamDestroy_v2',
    nonBlocking,
  );
};
