/** Legacy IPC of memory: two processes. */
import type { FunctionName } from '../../../ffi/functions.ts';
import {
  type Answer,
  type Argument,
  DriverProcess,
  enterContext,
  type Side,
} from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';

const LAZY_PEER_ACCESS = 1;
const INVENTED = 0x1234_5600;
const GONE_SIZE = 64 << 20;

const statusOf =
  (side: Side) =>
  async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await side.call(name, ...args)).status;

async function share(side: Side, byteLength: number, value: number) {
  const { out0: address } = await side.call('cuMemAlloc_v2', 'OUT0', byteLength);
  await side.call('cuMemsetD8Async', address, value, byteLength, 0);
  await side.call('cuCtxSynchronize');
  const { block } = await side.call('cuIpcGetMemHandle', 'BLOCK', address);
  return { address, handle: { base64: block } };
}

const firstByte = (answer: Answer): number => Buffer.from(answer.block, 'base64')[0] as number;
const freeOf = async (side: Side): Promise<number> =>
  (await side.call('cuMemGetInfo_v2', 'OUT0', 'OUT1')).out0;

export const ipcFacts: FactGroup = async (note) => {
  await using a = new DriverProcess();
  await using b = new DriverProcess();
  await enterContext(a);
  await enterContext(b);
  const inA = statusOf(a);
  const inB = statusOf(b);
  const open = (handle: { base64: string }): Promise<Answer> =>
    b.call('cuIpcOpenMemHandle_v2', 'OUT0', handle, LAZY_PEER_ACCESS);

  const one = await share(a, 1024, 11);
  const two = await share(a, 1024, 22);
  note(
    'opening in the exporting process',
    await inA('cuIpcOpenMemHandle_v2', 'OUT0', one.handle, LAZY_PEER_ACCESS),
  );
  note(
    'a handle of an interior pointer',
    await inA('cuIpcGetMemHandle', 'BLOCK', one.address + 100),
  );
  const interior = (await a.call('cuIpcGetMemHandle', 'BLOCK', one.address + 100)).block;
  note(
    'a handle of an interior pointer is the base’s',
    interior === one.handle.base64 ? 'yes' : 'no',
  );
  note(
    'a handle asked for twice is the same',
    (await a.call('cuIpcGetMemHandle', 'BLOCK', one.address)).block === one.handle.base64
      ? 'yes'
      : 'no',
  );
  note('a handle of an invented pointer', await inA('cuIpcGetMemHandle', 'BLOCK', INVENTED));
  note('opening with flags 0', await inB('cuIpcOpenMemHandle_v2', 'OUT0', one.handle, 0));
  note(
    'opening 64 zero bytes',
    (await open({ base64: Buffer.alloc(64).toString('base64') })).status,
  );

  const opened = await open(one.handle);
  const opened2 = await open(two.handle);
  note('opening', opened.status);
  const range = await b.call('cuMemGetAddressRange_v2', 'OUT0', 'OUT1', opened2.out0);
  note('opened memory is its own base', range.out0 === opened2.out0 ? 'yes' : 'no');
  note('opened memory has the allocation’s bytes', range.out1);
  note(
    'what the exporter wrote is read',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', opened2.out0, 64)),
  );
  note(
    'copying from beyond opened memory into the neighbour, opened too',
    await inB('cuMemcpyDtoH_v2', 'BLOCK', opened.out0 + 1024, 64),
  );
  note('a handle of opened memory', await inB('cuIpcGetMemHandle', 'BLOCK', opened.out0));
  note('freeing opened memory', await inB('cuMemFree_v2', opened2.out0));
  note(
    'closing opened memory by an interior pointer',
    await inB('cuIpcCloseMemHandle', opened.out0 + 64),
  );
  note('closing memory that was not opened', await inB('cuIpcCloseMemHandle', INVENTED));

  const second = await b.call('cuCtxCreate_v2', 'OUT0', 0, 0);
  note('opening in a second context of the device too', (await open(one.handle)).status);
  await b.call('cuCtxDestroy_v2', second.out0);

  const again = await open(one.handle);
  note('opening twice', again.status);
  note('opening twice gives the same address', again.out0 === opened.out0 ? 'yes' : 'no');
  note('closing once of twice', await inB('cuIpcCloseMemHandle', opened.out0));
  note(
    'reading after closing once of twice',
    await inB('cuMemcpyDtoH_v2', 'BLOCK', opened.out0, 64),
  );
  note('closing twice of twice', await inB('cuIpcCloseMemHandle', opened.out0));
  note(
    'reading after closing twice of twice',
    await inB('cuMemcpyDtoH_v2', 'BLOCK', opened.out0, 64),
  );
  note('closing once more', await inB('cuIpcCloseMemHandle', opened.out0));

  const stale = await share(a, GONE_SIZE, 1);
  await inA('cuMemFree_v2', stale.address);
  note('opening what the exporter has freed', (await open(stale.handle)).status);

  const free = await freeOf(a);
  const kept = await share(a, GONE_SIZE, 33);
  const mapped = await open(kept.handle);
  note(
    'the importer’s free memory falls by opening',
    free - GONE_SIZE - (await freeOf(b)) >= GONE_SIZE ? 'yes' : 'no',
  );
  note('the exporter frees what is mapped elsewhere', await inA('cuMemFree_v2', kept.address));
  note(
    'freed while mapped elsewhere: the memory is back',
    (await freeOf(a)) >= free ? 'yes' : 'no',
  );
  note(
    'the importer reads what was freed',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', mapped.out0, 64)),
  );
  note('the importer closes what was freed', await inB('cuIpcCloseMemHandle', mapped.out0));
  note('closed by the importer: the memory is back', (await freeOf(a)) >= free ? 'yes' : 'no');

  const live = await share(a, GONE_SIZE, 44);
  const unopened = await share(a, GONE_SIZE, 55);
  const survivor = await open(live.handle);
  await a.kill();
  note(
    'exporter killed: reading',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', survivor.out0, 64)),
  );
  note('exporter killed: writing', await inB('cuMemsetD8Async', survivor.out0, 66, 1024, 0));
  note(
    'exporter killed: written is read',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', survivor.out0, 64)),
  );
  note('exporter killed: closing', await inB('cuIpcCloseMemHandle', survivor.out0));
  note('exporter killed: its context still allocates', await inB('cuMemAlloc_v2', 'OUT0', 1024));
  note('opening memory of a dead exporter', (await open(unopened.handle)).status);
};
