/** Two devices: memory of the other one without access, and what comes from other processes. */
import type { FunctionName } from '../../../ffi/functions.ts';
import type { Argument } from '../../support/calls.ts';
import { Asked, MANY, question, questions } from './asked.ts';
import type { FactGroup } from './facts.ts';
import { access, FD, firstByte, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

type Call = [FunctionName, ...Argument[]];

const LAZY_PEER_ACCESS = 1;

/** Memory of device 1, and what device 0 works with, whose context is current. */
async function makeBoth(asked: Asked) {
  const zero = asked.context;
  const kernels = await asked.kernels();
  const here = await asked.memory(MIB);
  const stream = await asked.stream();
  const one = await asked.enter(1);
  const there = await asked.made('cuMemAlloc_v2', 'OUT0', MIB);
  const streamThere = await asked.stream();
  const pool = await asked.made(
    'cuMemPoolCreate',
    'OUT0',
    poolProperties({ 'location.id': 1, handleTypes: FD }),
  );
  const pooled = await asked.made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, streamThere);
  const reserved = await asked.made('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);
  const properties = physicalProperties({ 'location.id': 1 });
  const physical = await asked.made('cuMemCreate', 'OUT0', UNIT, properties, 0);
  await asked.made('cuMemMap', reserved, UNIT, 0, physical, 0);
  await asked.made('cuMemSetAccess', reserved, UNIT, access(3, 1), 1);
  await asked.made('cuCtxSynchronize');
  await asked.made('cuCtxPopCurrent_v2', 'OUT0');
  const memories = { plain: there, pool: pooled, virtual: reserved };
  return { asked, zero, one, ...kernels, here, stream, streamThere, pool, memories };
}

type Both = Awaited<ReturnType<typeof makeBoth>>;

const uses: Readonly<Record<string, (both: Both, memory: number) => Call>> = {
  'written by a kernel': ({ asked, write, stream }, memory) => asked.launch(write, stream, memory),
  set: ({ stream }, memory) => ['cuMemsetD8Async', memory, 1, 64, stream],
  'copied from': ({ here, stream }, memory) => ['cuMemcpyDtoDAsync_v2', here, memory, 64, stream],
  'copied to': ({ here, stream }, memory) => ['cuMemcpyDtoDAsync_v2', memory, here, 64, stream],
  'copied between contexts': ({ here, zero, one, stream }, memory) => [
    'cuMemcpyPeerAsync',
    here,
    zero,
    memory,
    one,
    64,
    stream,
  ],
  'copied to the host': (_, memory) => ['cuMemcpyDtoH_v2', 'BLOCK', memory, 64],
  'copied from the host': (_, memory) => ['cuMemcpyHtoD_v2', memory, 'BLOCK', 64],
  'written a value to': ({ stream }, memory) => ['cuStreamWriteValue32_v2', stream, memory, 1, 0],
  'waited for': ({ stream }, memory) => ['cuStreamWaitValue32_v2', stream, memory, 0, 0],
  'set in a stream of its own device': ({ streamThere }, memory) => [
    'cuMemsetD8Async',
    memory,
    1,
    64,
    streamThere,
  ],
  freed: (_, memory) => ['cuMemFree_v2', memory],
};

export const otherDeviceFacts: FactGroup = async (note) => {
  for (const given of ['without access', 'with access of its context'])
    for (const kind of ['plain', 'pool', 'virtual'] as const)
      await questions(
        note,
        `${kind} memory of another device, ${given}`,
        Object.keys(uses),
        async (asked, what) => {
          const both = await makeBoth(asked);
          if (given.startsWith('with access'))
            await asked.made('cuCtxEnablePeerAccess', both.one, 0);
          const use = uses[what] as (typeof uses)[string];
          await asked.ask(what, ...use(both, both.memories[kind]));
          await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', both.stream);
        },
        MANY,
      );
  await question(note, 'a pool of another device', async (named) => {
    await using asked = await Asked.start(named);
    const { pool, stream, streamThere } = await makeBoth(asked);
    const alloc = 'cuMemAllocFromPoolAsync';
    await asked.ask('allocated from in a stream of device 0', alloc, 'OUT0', MIB, pool, stream);
    await asked.ask(
      'allocated from in a stream of device 1',
      alloc,
      'OUT0',
      MIB,
      pool,
      streamThere,
    );
    await asked.ask('lets device 0 in', 'cuMemPoolSetAccess', pool, access(3, 0), 1);
    await asked.ask('lets device 0 only read', 'cuMemPoolSetAccess', pool, access(1, 0), 1);
    await asked.ask('lets device 0 out', 'cuMemPoolSetAccess', pool, access(0, 0), 1);
    await asked.ask('keeps device 1 out', 'cuMemPoolSetAccess', pool, access(0, 1), 1);
  });
  await question(note, 'a context lost on device 0', async (named) => {
    await using asked = await Asked.start(named);
    const { one, trap, stream, streamThere, memories } = await makeBoth(asked);
    await asked.made(...asked.launch(trap, stream));
    await asked.ask('its stream', 'cuStreamSynchronize', stream);
    await asked.ask('device 1’s context made current', 'cuCtxPushCurrent_v2', one);
    await asked.ask('device 1’s stream', 'cuStreamSynchronize', streamThere);
    await asked.ask('device 1 sets memory', 'cuMemsetD8Async', memories.plain, 1, 64, streamThere);
    await asked.ask('device 1’s memory freed', 'cuMemFree_v2', memories.plain);
    await asked.ask('device 1 reset', 'cuDevicePrimaryCtxReset_v2', 1);
    await asked.ask('device 0 reset', 'cuDevicePrimaryCtxReset_v2', 0);
  });
  await question(note, 'an event of another device', async (named) => {
    await using asked = await Asked.start(named);
    const { stream, one } = await makeBoth(asked);
    await asked.made('cuCtxPushCurrent_v2', one);
    const event = await asked.made('cuEventCreate', 'OUT0', 0);
    await asked.made('cuCtxPopCurrent_v2', 'OUT0');
    await asked.ask('recorded', 'cuEventRecord', event, stream);
    await asked.ask('waited for', 'cuStreamWaitEvent', stream, event, 0);
    const own = await asked.made('cuEventCreate', 'OUT0', 0);
    await asked.made('cuEventRecord', own, stream);
    await asked.made('cuStreamSynchronize', stream);
    await asked.ask('timed', 'cuEventElapsedTime', 'OUT0', own, event);
  });
};

/** What another process shares from device 0, opened where device 1 is current. */
export const openedElsewhereFacts: FactGroup = async (note) => {
  const share = async (a: Asked) => {
    const memory = await a.memory(4 * MIB);
    await a.made('cuMemsetD8Async', memory, 42, MIB, 0);
    await a.made('cuCtxSynchronize');
    return { base64: (await a.call('cuIpcGetMemHandle', 'BLOCK', memory)).block };
  };
  for (const flags of [0, LAZY_PEER_ACCESS])
    for (const use of ['read', 'set', 'written by a kernel'])
      await question(note, `a handle opened on another device, flags ${flags}`, async (named) => {
        await using a = await Asked.start(named);
        await using b = await Asked.start(named, 1);
        const handle = await share(a);
        const { write } = await b.kernels();
        const stream = await b.stream();
        const opened = await b.ask(`to be ${use}`, 'cuIpcOpenMemHandle_v2', 'OUT0', handle, flags);
        if (opened?.status !== 0) return;
        const at = opened.out0;
        const calls: Record<string, Call> = {
          read: ['cuMemcpyDtoH_v2', 'BLOCK', at, 64],
          set: ['cuMemsetD8Async', at, 1, 64, stream],
          'written by a kernel': b.launch(write, stream, at),
        };
        await b.ask(use, ...(calls[use] as Call));
        await b.ask(`${use}: the stream`, 'cuStreamSynchronize', stream);
        const attribute = await b.ask(`${use}: its device`, 'cuPointerGetAttribute', 'OUT0', 9, at);
        if (attribute?.status === 0) named(`${use}: its device is`, attribute.int0);
      });
  await question(note, 'a handle opened on both devices', async (named) => {
    await using a = await Asked.start(named);
    await using b = await Asked.start(named);
    const handle = await share(a);
    const open = 'cuIpcOpenMemHandle_v2';
    const first = await b.made(open, 'OUT0', handle, LAZY_PEER_ACCESS);
    await b.enter(1);
    const second = (await b.ask('the second time', open, 'OUT0', handle, LAZY_PEER_ACCESS))?.out0;
    named('at the same address', first === second ? 'yes' : 'no');
    await b.ask('the first closed from the second context', 'cuIpcCloseMemHandle', first);
    await b.ask('the second read', 'cuMemcpyDtoH_v2', 'BLOCK', second as number, 64);
    await b.ask('the second closed', 'cuIpcCloseMemHandle', second as number);
    await b.made('cuCtxPopCurrent_v2', 'OUT0');
    await b.ask('the first read', 'cuMemcpyDtoH_v2', 'BLOCK', first, 64);
  });
  for (const given of ['nothing', 'access'])
    for (const use of ['read', 'set', 'written by a kernel'])
      await question(
        note,
        `pool memory imported on another device, given ${given}`,
        async (named) => {
          await using a = await Asked.start(named);
          await using b = await Asked.start(named, 1);
          const { write } = await b.kernels();
          const stream = await b.stream();
          const pool = await a.made('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: FD }));
          const memory = await a.made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, 0);
          await a.made('cuMemsetD8Async', memory, 42, MIB, 0);
          await a.made('cuCtxSynchronize');
          const exported = await a.call('cuMemPoolExportToShareableHandle', 'OUT0', pool, FD, 0);
          const data = { bytes: (await a.call('cuMemPoolExportPointer', 'BLOCK', memory)).block };
          const fd = await a.sendFd(exported.int0, b);
          const imported = await b.made('cuMemPoolImportFromShareableHandle', 'OUT0', fd, FD, 0);
          const rights = access(3, 1);
          if (given === 'access')
            await b.ask(`to be ${use}: access`, 'cuMemPoolSetAccess', imported, rights, 1);
          const at = (await b.ask(`to be ${use}`, 'cuMemPoolImportPointer', 'OUT0', imported, data))
            ?.out0 as number;
          const calls: Record<string, Call> = {
            read: ['cuMemcpyDtoH_v2', 'BLOCK', at, 64],
            set: ['cuMemsetD8Async', at, 1, 64, stream],
            'written by a kernel': b.launch(write, stream, at),
          };
          const answer = await b.ask(use, ...(calls[use] as Call));
          if (use === 'read' && answer?.status === 0) named('read, as', firstByte(answer));
          await b.ask(`${use}: the stream`, 'cuStreamSynchronize', stream);
        },
      );
};
