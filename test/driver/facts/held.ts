/** What happens around a stream that is held up: copies, full queues, unmapping, graphs, exits. */

import { setTimeout as delay } from 'node:timers/promises';
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Argument, pointed } from '../../support/calls.ts';
import { emulated } from '../../support/driver.ts';
import { Asked, MANY, PATIENCE_MS, question, questions } from './asked.ts';
import type { FactGroup } from './facts.ts';
import { access, FD, firstByte, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

const KIB = 1024;
const DISABLE_TIMING = 2;
const INTERPROCESS = 4;
const GREATER_OR_EQUAL = 0;

type Call = [FunctionName, ...Argument[]];

/** Pageable copies into a stream that is held up. */
export const pageableFacts: FactGroup = async (note) => {
  await question(note, 'a pageable copy in a held stream', async (named) => {
    await using asked = await Asked.start(named);
    const memory = await asked.memory(4 * MIB);
    const host = await asked.map(4 * MIB);
    const stream = await asked.stream();
    const copies = (byteLength: number): Record<string, Call> => ({
      'host to device': ['cuMemcpyHtoDAsync_v2', memory, host, byteLength, stream],
      'device to host': ['cuMemcpyDtoHAsync_v2', host, memory, byteLength, stream],
    });
    for (const byteLength of [64, 64 * KIB, 64 * KIB + 1, MIB, 4 * MIB])
      for (const [way, call] of Object.entries(copies(byteLength))) {
        await asked.hold(stream);
        await asked.answers(`${byteLength} bytes, ${way}`, () => asked.waits(...call));
        asked.release();
        await asked.made('cuCtxSynchronize');
      }
  });
};

/** How much a stream takes until a call waits. */
export const depthFacts: FactGroup = async (note) => {
  const kinds = {
    memset: ({ memory, stream }) => ['cuMemsetD8Async', memory, 1, 64, stream],
    launch: ({ asked, k, stream }) => asked.launch(k, stream),
    'wait for a value': ({ memory, stream }) => [
      'cuStreamWaitValue32_v2',
      stream,
      memory,
      0,
      GREATER_OR_EQUAL,
    ],
    'write of a value': ({ memory, stream }) => ['cuStreamWriteValue32_v2', stream, memory, 1, 0],
    'record of an event': ({ event, stream }) => ['cuEventRecord', event, stream],
    'wait for an event': ({ done, stream }) => ['cuStreamWaitEvent', stream, done, 0],
    'copy within the device': ({ memory, stream }) => [
      'cuMemcpyDtoDAsync_v2',
      memory,
      memory + 4096,
      64,
      stream,
    ],
    'copy of pinned memory': ({ memory, pinned, stream }) => [
      'cuMemcpyHtoDAsync_v2',
      memory,
      pinned,
      64,
      stream,
    ],
  } satisfies Record<string, (made: Awaited<ReturnType<typeof makeQueued>>) => Call>;
  const names = Object.keys(kinds) as (keyof typeof kinds)[];
  await questions(
    note,
    'what waits behind a held stream',
    names,
    async (asked, what) => {
      const made = await makeQueued(asked);
      await asked.hold(made.stream);
      await asked.answers(`the first ${what} that waits`, () =>
        asked.countUntilItWaits(...kinds[what](made)),
      );
    },
    emulated ? MANY : 1,
  );
  await question(note, 'while a call waits for a full stream, another thread', async (named) => {
    await using asked = await Asked.start(named);
    const made = await makeQueued(asked);
    const { memory, event, stream, other } = made;
    const calls: Record<string, Call> = {
      'queries another stream': ['cuStreamQuery', other],
      'queries the full stream': ['cuStreamQuery', stream],
      'queries an event': ['cuEventQuery', event],
      'creates an event': ['cuEventCreate', 'OUT0', DISABLE_TIMING],
      'allocates memory': ['cuMemAlloc_v2', 'OUT0', MIB],
      'sets memory in another stream': ['cuMemsetD8Async', memory, 1, 64, other],
    };
    await asked.hold(stream);
    const full = await asked.countUntilItWaits(...kinds.memset(made));
    if (typeof full !== 'number') return named('is not asked', full);
    await asked.made('cuCtxSynchronize');
    await asked.hold(stream);
    await asked.repeat(full - 1, ...kinds.memset(made));
    const thread = await asked.later(PATIENCE_MS / 4, Object.values(calls));
    // It is let go after the other thread has asked what it can.
    await asked.waits(...kinds.memset(made));
    for (const [n, status] of thread.answers().entries())
      named(Object.keys(calls)[n] as string, status);
  });
};

async function makeQueued(asked: Asked) {
  const { k } = await asked.kernels();
  const stream = await asked.stream();
  const other = await asked.stream();
  const event = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
  const done = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
  await asked.made('cuEventRecord', done, other);
  const memory = await asked.memory(MIB);
  const pinned = await asked.made('cuMemHostAlloc', 'OUT0', MIB, 3);
  await asked.made(...asked.launch(k, stream));
  await asked.made('cuCtxSynchronize');
  return { asked, k, stream, other, event, done, memory, pinned };
}

/** Memory whose mapping or access is taken away under work that waits. */
export const unmappedFacts: FactGroup = async (note) => {
  const takes = {
    'is unmapped': (memory) => ['cuMemUnmap', memory, UNIT],
    'loses its access': (memory) => ['cuMemSetAccess', memory, UNIT, access(0), 1],
    'may only be read': (memory) => ['cuMemSetAccess', memory, UNIT, access(1), 1],
  } satisfies Record<string, (memory: number) => Call>;
  for (const work of ['memset', 'kernel'] as const)
    await questions(
      note,
      `virtual memory under a queued ${work}`,
      Object.keys(takes) as (keyof typeof takes)[],
      async (asked, what) => {
        const { write } = await asked.kernels();
        const stream = await asked.stream();
        const memory = await asked.made('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);
        const physical = await asked.made('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0);
        await asked.made('cuMemMap', memory, UNIT, 0, physical, 0);
        await asked.made('cuMemSetAccess', memory, UNIT, access(3), 1);
        await asked.hold(stream);
        const queued: Call =
          work === 'memset'
            ? ['cuMemsetD8Async', memory, 1, 64, stream]
            : asked.launch(write, stream, memory);
        await asked.made(...queued);
        await asked.answers(what, () => asked.waits(...(takes[what](memory) as Call)));
        asked.release();
        await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', stream);
        await asked.ask(`${what}: the context`, 'cuCtxSynchronize');
      },
    );
  await questions(
    note,
    'plain memory under a queued',
    ['memset', 'kernel'],
    async (asked, what) => {
      const { write } = await asked.kernels();
      const stream = await asked.stream();
      const memory = await asked.memory(4 * MIB);
      await asked.hold(stream);
      await asked.made(
        ...(what === 'memset'
          ? (['cuMemsetD8Async', memory, 1, 64, stream] satisfies Call)
          : asked.launch(write, stream, memory)),
      );
      await asked.answers(`${what} is freed`, () => asked.waits('cuMemFree_v2', memory));
      asked.release();
      await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', stream);
    },
  );
};

/** Graphs with memory of their own. */
export const graphMemoryFacts: FactGroup = async (note) => {
  const make = async (asked: Asked) => {
    const { k } = await asked.kernels();
    const streams = [await asked.stream(), await asked.stream()] as const;
    const pool = await asked.made('cuMemPoolCreate', 'OUT0', poolProperties());
    const [stream, other] = streams;
    await asked.made('cuStreamBeginCapture_v2', stream, 2);
    const memory = await asked.made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
    await asked.made('cuMemsetD8Async', memory, 1, 64, stream);
    await asked.made(...asked.launch(k, stream));
    await asked.made('cuMemFreeAsync', memory, stream);
    const graph = await asked.made('cuStreamEndCapture', stream, 'OUT0');
    const executable = await asked.made('cuGraphInstantiateWithFlags', 'OUT0', graph, 0);
    await asked.made('cuGraphUpload', executable, stream);
    await asked.made('cuCtxSynchronize');
    await asked.hold(stream);
    await asked.made('cuGraphLaunch', executable, stream);
    return { asked, graph, executable, stream, other };
  };
  const calls = {
    'launched in another stream too': ({ executable, other }) => [
      'cuGraphLaunch',
      executable,
      other,
    ],
    'launched in the same stream too': ({ executable, stream }) => [
      'cuGraphLaunch',
      executable,
      stream,
    ],
    'instantiated again': ({ graph }) => ['cuGraphInstantiateWithFlags', 'OUT0', graph, 0],
    'destroyed, its executable': ({ executable }) => ['cuGraphExecDestroy', executable],
    'destroyed, itself': ({ graph }) => ['cuGraphDestroy', graph],
    trimmed: () => ['cuDeviceGraphMemTrim', 0],
    updated: ({ executable, graph }) => ['cuGraphExecUpdate_v2', executable, graph, 'BLOCK'],
  } satisfies Record<string, (made: Awaited<ReturnType<typeof make>>) => Call>;
  await questions(
    note,
    'a graph with memory, while it waits in a held stream',
    Object.keys(calls) as (keyof typeof calls)[],
    async (asked, what) => {
      const made = await make(asked);
      await asked.answers(what, () => asked.waits(...(calls[what](made) as Call)));
      asked.release();
      await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', made.stream);
      await asked.ask(`${what}: the context`, 'cuCtxSynchronize');
    },
  );
};

/** Memory of a pool that another process has before the owner's stream has come to it. */
export const earlyPoolFacts: FactGroup = async (note) => {
  const share = async (a: Asked, b: Asked, isHeld: boolean) => {
    const stream = await a.stream();
    const pool = await a.made('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: FD }));
    const exported = await a.call('cuMemPoolExportToShareableHandle', 'OUT0', pool, FD, 0);
    const fd = await a.sendFd(exported.int0, b);
    const imported = await b.made('cuMemPoolImportFromShareableHandle', 'OUT0', fd, FD, 0);
    if (isHeld) await a.hold(stream);
    const memory = await a.made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
    await a.made('cuMemsetD8Async', memory, 42, MIB, stream);
    if (!isHeld) await a.made('cuStreamSynchronize', stream);
    return { stream, pool, memory, imported };
  };
  await question(note, 'pool memory whose allocation waits in a held stream', async (named) => {
    await using a = await Asked.start(named);
    await using b = await Asked.start(named);
    const { stream, memory, imported } = await share(a, b, true);
    const pointer = await a.ask('is exported', 'cuMemPoolExportPointer', 'BLOCK', memory);
    const data = { bytes: pointer?.block as string };
    const there = await b.ask('is imported', 'cuMemPoolImportPointer', 'OUT0', imported, data);
    const at = there?.out0 as number;
    const read = await b.ask('is read by the importer', 'cuMemcpyDtoH_v2', 'BLOCK', at, 64);
    if (read?.status === 0) named('is read by the importer, set', firstByte(read) === 42 ? 1 : 0);
    a.release();
    await a.made('cuStreamSynchronize', stream);
    const after = await b.ask('is read when it has run', 'cuMemcpyDtoH_v2', 'BLOCK', at, 64);
    if (after?.status === 0) named('is read when it has run, as', firstByte(after));
  });
  const ends = {
    'frees it and destroys the pool': async (a, { memory, pool, stream }) => {
      await a.ask('is freed by its owner', 'cuMemFreeAsync', memory, stream);
      await a.made('cuStreamSynchronize', stream);
      await a.ask('its pool is destroyed', 'cuMemPoolDestroy', pool);
    },
    'destroys the pool': async (a, { pool }) => {
      await a.ask('its pool is destroyed, with it in use', 'cuMemPoolDestroy', pool);
    },
    'is killed': (a) => a.kill(),
  } satisfies Record<
    string,
    (a: Asked, shared: Awaited<ReturnType<typeof share>>) => Promise<void>
  >;
  for (const [what, end] of Object.entries(ends))
    await question(note, `pool memory whose owner ${what}`, async (named) => {
      await using a = await Asked.start(named);
      await using b = await Asked.start(named);
      const shared = await share(a, b, false);
      const { imported, memory } = shared;
      const data = { bytes: (await a.call('cuMemPoolExportPointer', 'BLOCK', memory)).block };
      const at = await b.made('cuMemPoolImportPointer', 'OUT0', imported, data);
      await end(a, shared);
      const read = await b.ask('is read by the importer', 'cuMemcpyDtoH_v2', 'BLOCK', at, 64);
      if (read?.status === 0) named('is read by the importer, as', firstByte(read));
      await b.ask('is imported again', 'cuMemPoolImportPointer', 'OUT0', imported, data);
      await b.ask('is freed by the importer', 'cuMemFreeAsync', at, 0);
      await b.ask('the importer waits', 'cuCtxSynchronize');
      await b.ask('the imported pool is destroyed', 'cuMemPoolDestroy', imported);
    });
  await question(note, 'pool memory in two contexts of the importer', async (named) => {
    await using a = await Asked.start(named);
    await using b = await Asked.start(named);
    const { imported, memory } = await share(a, b, false);
    const data = { bytes: (await a.call('cuMemPoolExportPointer', 'BLOCK', memory)).block };
    const first = await b.made('cuMemPoolImportPointer', 'OUT0', imported, data);
    const second = await b.made('cuCtxCreate_v2', 'OUT0', 0, 0);
    const again = await b.ask('is imported', 'cuMemPoolImportPointer', 'OUT0', imported, data);
    named('is at the same address', again?.out0 === first ? 'yes' : 'no');
    await b.ask('is read', 'cuMemcpyDtoH_v2', 'BLOCK', first, 64);
    await b.ask('is freed', 'cuMemFreeAsync', first, 0);
    await b.ask('the context is waited for', 'cuCtxSynchronize');
    await b.made('cuCtxDestroy_v2', second);
    await b.ask('is read in the first', 'cuMemcpyDtoH_v2', 'BLOCK', first, 64);
  });
};

/** Events of another process, whose owner destroys them or ends while a stream waits. */
export const lentEventFacts: FactGroup = async (note) => {
  const ends = {
    'destroys it': async (a, event) => {
      await a.ask('is destroyed by its owner', 'cuEventDestroy_v2', event);
    },
    'is killed': (a) => a.kill(),
  } satisfies Record<string, (a: Asked, event: number) => Promise<void>>;
  for (const [what, end] of Object.entries(ends))
    for (const when of ['before the importer waits', 'while the importer waits'])
      await question(note, `an event whose owner ${what} ${when}`, async (named) => {
        await using a = await Asked.start(named);
        await using b = await Asked.start(named);
        const stream = await a.stream();
        const waiting = await b.stream();
        const event = await a.made('cuEventCreate', 'OUT0', INTERPROCESS | DISABLE_TIMING);
        const { block } = await a.call('cuIpcGetEventHandle', 'BLOCK', event);
        const opened = await b.made('cuIpcOpenEventHandle', 'OUT0', { base64: block });
        await a.hold(stream);
        await a.made('cuEventRecord', event, stream);
        const wait = async (): Promise<void> => {
          await b.ask('is waited for by a stream', 'cuStreamWaitEvent', waiting, opened, 0);
        };
        if (when.startsWith('while')) await wait();
        await end(a, event);
        if (when.startsWith('before')) await wait();
        await delay(PATIENCE_MS);
        await b.ask('the waiting stream', 'cuStreamQuery', waiting);
        await b.ask('is queried', 'cuEventQuery', opened);
        a.release();
        await delay(PATIENCE_MS);
        await b.ask('the waiting stream when the work is done', 'cuStreamQuery', waiting);
        await b.ask('is queried when the work is done', 'cuEventQuery', opened);
        await b.ask('is destroyed by the importer', 'cuEventDestroy_v2', opened);
        await b.ask('the waiting stream then', 'cuStreamQuery', waiting);
        await b.ask('the waiting stream is destroyed', 'cuStreamDestroy_v2', waiting);
        named('the importer exits', await b.exit());
      });
};

/** Comparisons at the wrap of a word, and processes that exit with a stream held up. */
export const wrapFacts: FactGroup = async (note) => {
  const top = 2n ** 63n;
  const most = 2n ** 64n - 1n;
  const cases: readonly (readonly [word: bigint, value: bigint])[] = [
    [0n, most],
    [most, 0n],
    [0n, top],
    [0n, top + 1n],
    [5n, top + 4n],
    [5n, top + 5n],
    [5n, top + 6n],
    [top, 0n],
    [top - 1n, 0n],
    [4n, 5n],
    [5n, 5n],
  ];
  await question(note, 'a 64-bit wait', async (named) => {
    await using asked = await Asked.start(named);
    const memory = await asked.memory(64);
    const writer = await asked.stream();
    for (const [word, value] of cases) {
      const stream = await asked.stream();
      const least = { wide: `${value}` };
      await asked.made('cuMemcpyHtoD_v2', memory, pointed(word), 8);
      await asked.made('cuStreamWaitValue64_v2', stream, memory, least, GREATER_OR_EQUAL);
      await delay(50);
      const { status } = await asked.call('cuStreamQuery', stream);
      await asked.made('cuStreamWriteValue64_v2', writer, memory, least, 0);
      await asked.made('cuStreamSynchronize', stream);
      named(`for at least ${value} where ${word} is`, status === 0 ? 'passes' : 'waits');
    }
  });
  for (const what of ['a held stream', 'a held stream and a full queue', 'a stream in capture'])
    await question(note, 'a process exits', async (named) => {
      await using asked = await Asked.start(named);
      const { memory, stream } = await makeQueued(asked);
      if (what.endsWith('capture')) await asked.made('cuStreamBeginCapture_v2', stream, 2);
      else await asked.hold(stream);
      const queued = what.endsWith('queue') ? 900 : 1;
      for (let n = 0; n < queued; n++) await asked.made('cuMemsetD8Async', memory, 1, 64, stream);
      named(`with ${what}`, await asked.exit());
    });
};
