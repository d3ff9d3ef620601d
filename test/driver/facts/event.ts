/** Events: flags, queries, times, and between two processes. */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Answer, type Argument, DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';

const DISABLE_TIMING = 2;
const INTERPROCESS = 4;

export const eventFacts: FactGroup = async (note) => {
  await using a = new DriverProcess();
  await using b = new DriverProcess();
  await enterContext(a);
  await enterContext(b);
  const inA = async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await a.call(name, ...args)).status;
  const inB = async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await b.call(name, ...args)).status;
  const create = (flags: number): Promise<Answer> => a.call('cuEventCreate', 'OUT0', flags);

  note('interprocess event with timing', (await create(INTERPROCESS)).status);
  const timed = (await create(0)).out0;
  const timed2 = (await create(0)).out0;
  const untimed = (await create(DISABLE_TIMING)).out0;
  note('query of an event never recorded', await inA('cuEventQuery', timed));
  note(
    'elapsed time of events never recorded',
    await inA('cuEventElapsedTime', 'OUT0', timed, timed2),
  );
  const stream = (await a.call('cuStreamCreateWithPriority', 'OUT0', 1, 0)).out0;
  for (const event of [timed, timed2, untimed]) await inA('cuEventRecord', event, stream);
  await inA('cuStreamSynchronize', stream);
  note('elapsed time', await inA('cuEventElapsedTime', 'OUT0', timed, timed2));
  note('elapsed time without timing', await inA('cuEventElapsedTime', 'OUT0', timed, untimed));
  note('handle of an event not made for it', await inA('cuIpcGetEventHandle', 'BLOCK', untimed));

  const shared = await create(INTERPROCESS | DISABLE_TIMING);
  note('interprocess event', shared.status);
  const exported = await a.call('cuIpcGetEventHandle', 'BLOCK', shared.out0);
  note('handle of an interprocess event', exported.status);
  const handle = { base64: exported.block };
  note('opening an event in its own process', await inA('cuIpcOpenEventHandle', 'OUT0', handle));
  const opened = await b.call('cuIpcOpenEventHandle', 'OUT0', handle);
  note('opening an event', opened.status);
  note('opening an event twice', await inB('cuIpcOpenEventHandle', 'OUT0', handle));
  note(
    'opening an event of 64 zero bytes',
    await inB('cuIpcOpenEventHandle', 'OUT0', { base64: Buffer.alloc(64).toString('base64') }),
  );
  note('query of an opened event never recorded', await inB('cuEventQuery', opened.out0));
  await inA('cuEventRecord', shared.out0, stream);
  note(
    'elapsed time of an interprocess event',
    await inA('cuEventElapsedTime', 'OUT0', shared.out0, shared.out0),
  );
  note('handle of an opened event', await inB('cuIpcGetEventHandle', 'BLOCK', opened.out0));

  const latch = await a.latch();
  await inA('cuStreamWaitValue32_v2', stream, latch.devicePointer, 1, 0);
  await inA('cuEventRecord', shared.out0, stream);
  note(
    'recorded behind unfinished work: query by the other process',
    await inB('cuEventQuery', opened.out0),
  );
  note(
    'recorded behind unfinished work: elapsed time',
    await (async () => {
      await inA('cuEventRecord', timed2, stream);
      return inA('cuEventElapsedTime', 'OUT0', timed, timed2);
    })(),
  );
  const other = (await b.call('cuStreamCreateWithPriority', 'OUT0', 1, 0)).out0;
  note(
    'the other process queues a wait for it',
    await inB('cuStreamWaitEvent', other, opened.out0, 0),
  );
  note('the waiting stream', await inB('cuStreamQuery', other));
  const open = (await a.call('cuStreamCreateWithPriority', 'OUT0', 1, 0)).out0;
  await inA('cuStreamWriteValue32_v2', open, latch.devicePointer, 1, 0);
  await inA('cuStreamSynchronize', stream);
  note('the waiting stream, when the work is done', await inB('cuStreamSynchronize', other));
  note('query by the other process, when the work is done', await inB('cuEventQuery', opened.out0));
  note('recorded by the importer', await inB('cuEventRecord', opened.out0, other));
  note('destroying an opened event', await inB('cuEventDestroy_v2', opened.out0));

  const unopened = await create(INTERPROCESS | DISABLE_TIMING);
  const late = { base64: (await a.call('cuIpcGetEventHandle', 'BLOCK', unopened.out0)).block };
  await a.kill();
  note('opening an event of a dead process', await inB('cuIpcOpenEventHandle', 'OUT0', late));

  await using c = new DriverProcess();
  await enterContext(c);
  let live = 0;
  let last = 0;
  while (live < 5000 && last === 0) {
    last = (await c.call('cuEventCreate', 'OUT0', INTERPROCESS | DISABLE_TIMING)).status;
    if (last === 0) live += 1;
  }
  note('interprocess events alive in a process', live);
  note('one more', last);
};
