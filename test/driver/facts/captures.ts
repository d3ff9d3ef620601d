/** What a capture makes of work beside it, and of waiting, resetting and destroying meanwhile. */
import type { FunctionName } from '../../../ffi/functions.ts';
import type { Argument } from '../../support/calls.ts';
import { Asked, MANY, question, questions } from './asked.ts';
import type { FactGroup } from './facts.ts';
import { MIB } from './kinds.ts';

type Call = [FunctionName, ...Argument[]];

const MODES = { global: 0, 'of this thread': 1, relaxed: 2 } as const;
const DISABLE_TIMING = 2;

async function makeIn(asked: Asked) {
  const { k } = await asked.kernels();
  const memory = await asked.memory(MIB);
  const spare = await asked.memory(4 * MIB);
  const event = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
  const other = await asked.stream();
  const second = await asked.stream(0);
  await asked.made('cuEventRecord', event, other);
  await asked.made('cuCtxSynchronize');
  return { asked, k, memory, spare, event, other, second };
}

type Made = Awaited<ReturnType<typeof makeIn>> & { readonly stream: number };

const beside: Readonly<Record<string, (made: Made) => Call>> = {
  'memset in stream 0': ({ memory }) => ['cuMemsetD8Async', memory, 1, 64, 0],
  'a launch in stream 0': ({ asked, k }) => asked.launch(k, 0),
  'copy to the device': ({ memory }) => ['cuMemcpyHtoD_v2', memory, 'BLOCK', 64],
  'copy to the host': ({ memory }) => ['cuMemcpyDtoH_v2', 'BLOCK', memory, 64],
  'a record in stream 0': ({ event }) => ['cuEventRecord', event, 0],
  'a query of stream 0': () => ['cuStreamQuery', 0],
  'a wait for stream 0': () => ['cuStreamSynchronize', 0],
  'a wait for the context': () => ['cuCtxSynchronize'],
  'a query of an event': ({ event }) => ['cuEventQuery', event],
  'a wait for an event': ({ event }) => ['cuEventSynchronize', event],
  'a query of another stream': ({ other }) => ['cuStreamQuery', other],
  'a wait for another stream': ({ other }) => ['cuStreamSynchronize', other],
  'memset in another stream': ({ memory, other }) => ['cuMemsetD8Async', memory, 1, 64, other],
  'memset in another blocking stream': ({ memory, second }) => [
    'cuMemsetD8Async',
    memory,
    1,
    64,
    second,
  ],
  'memory allocated': () => ['cuMemAlloc_v2', 'OUT0', MIB],
  'memory freed': ({ spare }) => ['cuMemFree_v2', spare],
  'pinned memory allocated': () => ['cuMemHostAlloc', 'OUT0', MIB, 3],
  'free memory told': () => ['cuMemGetInfo_v2', 'OUT0', 'OUT1'],
  'an event created': () => ['cuEventCreate', 'OUT0', DISABLE_TIMING],
  'a stream created': () => ['cuStreamCreateWithPriority', 'OUT0', 1, 0],
  'a handle for another process': ({ memory }) => ['cuIpcGetMemHandle', 'BLOCK', memory],
  'the capture told': ({ stream }) => ['cuStreamIsCapturing', stream, 'OUT0'],
};

export const besideCaptureFacts: FactGroup = async (note) => {
  for (const [mode, number] of Object.entries(MODES))
    for (const [kind, flags] of [
      ['blocking', 0],
      ['non-blocking', 1],
    ] as const)
      await question(note, `beside a capture (${mode}) of a ${kind} stream`, async (named) => {
        await using asked = await Asked.start(named);
        for (const [what, call] of Object.entries(beside)) {
          const stream = await asked.stream(flags);
          const made = { ...(await makeIn(asked)), stream };
          await asked.made('cuStreamBeginCapture_v2', stream, number);
          await asked.made('cuMemsetD8Async', made.memory, 1, 64, stream);
          await asked.answers(what, async () => {
            const { status } = await asked.call(...call(made));
            const end = await asked.call('cuStreamEndCapture', stream, 'OUT0');
            return `${status}, and its end ${end.status}`;
          });
        }
      });
};

/** Each ends its process, or its capture: asked in one of its own. */
const within: Readonly<Record<string, (made: Made & { readonly inside: number }) => Call>> = {
  'the stream is waited for': ({ stream }) => ['cuStreamSynchronize', stream],
  'the stream is queried': ({ stream }) => ['cuStreamQuery', stream],
  'the stream is destroyed': ({ stream }) => ['cuStreamDestroy_v2', stream],
  'its capture is begun again': ({ stream }) => ['cuStreamBeginCapture_v2', stream, 2],
  'a capture of another stream is begun': ({ other }) => ['cuStreamBeginCapture_v2', other, 2],
  'another stream’s capture is ended': ({ other }) => ['cuStreamEndCapture', other, 'OUT0'],
  'an event recorded in it is queried': ({ inside }) => ['cuEventQuery', inside],
  'an event recorded in it is waited for': ({ inside }) => ['cuEventSynchronize', inside],
  'an event recorded in it is destroyed': ({ inside }) => ['cuEventDestroy_v2', inside],
  'another stream waits for it': ({ other, inside }) => ['cuStreamWaitEvent', other, inside, 0],
  'stream 0 waits for it': ({ inside }) => ['cuStreamWaitEvent', 0, inside, 0],
  'it waits for an event from before': ({ stream, event }) => [
    'cuStreamWaitEvent',
    stream,
    event,
    0,
  ],
  'memory that it uses is freed': ({ memory }) => ['cuMemFree_v2', memory],
  'the primary context is released': () => ['cuDevicePrimaryCtxRelease_v2', 0],
  'the primary context is reset': () => ['cuDevicePrimaryCtxReset_v2', 0],
  'a host function is called': ({ stream }) => [
    'cuLaunchHostFunc',
    stream,
    { symbol: 'getpid' },
    0,
  ],
  'a value is waited for': ({ stream, memory }) => ['cuStreamWaitValue32_v2', stream, memory, 1, 0],
  'a value is written': ({ stream, memory }) => ['cuStreamWriteValue32_v2', stream, memory, 1, 0],
  'pageable memory is copied to the device': ({ stream, memory }) => [
    'cuMemcpyHtoDAsync_v2',
    memory,
    'BLOCK',
    64,
    stream,
  ],
  'it is copied to pageable memory': ({ stream, memory }) => [
    'cuMemcpyDtoHAsync_v2',
    'BLOCK',
    memory,
    64,
    stream,
  ],
};

export const withinCaptureFacts: FactGroup = async (note) => {
  for (const [mode, number] of Object.entries(MODES).filter(([name]) => name !== 'of this thread'))
    await questions(
      note,
      `in a capture (${mode})`,
      Object.keys(within),
      async (asked, what) => {
        const stream = await asked.stream();
        const made = { ...(await makeIn(asked)), stream };
        const inside = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
        await asked.made('cuStreamBeginCapture_v2', stream, number);
        await asked.made('cuMemsetD8Async', made.memory, 1, 64, stream);
        await asked.made('cuEventRecord', inside, stream);
        await asked.ask(what, ...(within[what] as (typeof within)[string])({ ...made, inside }));
        await asked.ask(`${what}, and it ends`, 'cuStreamEndCapture', stream, 'OUT0');
      },
      MANY,
    );
  await question(note, 'a capture', async (named) => {
    await using asked = await Asked.start(named);
    const stream = await asked.stream();
    for (const mode of [3, 99])
      await asked.ask(`of mode ${mode}`, 'cuStreamBeginCapture_v2', stream, mode);
    for (const [name, handle] of [
      ['stream 0', 0],
      ['the legacy stream', 1],
      ['the per-thread stream', 2],
    ] as const) {
      const begun = await asked.ask(`of ${name}`, 'cuStreamBeginCapture_v2', handle, 2);
      if (begun?.status === 0) await asked.made('cuStreamEndCapture', handle, 'OUT0');
    }
    await asked.ask('that was not begun, ended', 'cuStreamEndCapture', stream, 'OUT0');
  });
};
