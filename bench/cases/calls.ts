/**
 * Single calls through the public API, beside the driver call alone: through `cuffi/ffi`, from C,
 * and from Python. All use the same kinds of objects: a non-blocking stream, an event without
 * timing, 4 MiB of cuMemAlloc memory.
 */
import { channel } from 'node:diagnostics_channel';
import { Context, CudaEvent, DeviceBuffer, Stream } from 'cuffi';
import { cu, writeBytes } from 'cuffi/ffi';
import { getIpcHandle, Timeline } from 'cuffi/ipc';
import { inProcess } from '../measure.ts';
import { type Case, inPeers, PUBLIC, RAW, requireSuccess } from './case.ts';

const BUFFER_BYTE_LENGTH = 4 << 20;

export const callCases: readonly Case[] = [
  {
    name: 'stream.done',
    what: 'asks an idle stream whether its work is done: cuStreamQuery',
    calls: 5000,
    peers: inPeers('stream.done', 'C', 'cuda.bindings', 'ctypes', 'cupy'),
    open() {
      const stream = Stream.create({ nonBlocking: true });
      const { handle } = stream;
      return {
        contestants: [
          inProcess(PUBLIC, (calls) => {
            let done = 0;
            for (let call = 0; call < calls; call += 1) done += Number(stream.done);
            requireSuccess(done === calls, 'stream.done');
          }),
          inProcess(RAW, (calls) => {
            let status = 0;
            for (let call = 0; call < calls; call += 1) status |= cu.cuStreamQuery(handle);
            requireSuccess(status === 0, 'cuStreamQuery');
          }),
        ],
        close: () => stream.close(),
      };
    },
  },
  {
    name: 'timeline.value',
    what: 'reads the value of a timeline; C: cuStreamQuery of an idle stream',
    calls: 5000,
    peers: [{ peer: 'C', batch: 'stream.done', name: 'C, cuStreamQuery' }],
    open() {
      const timeline = Timeline.create();
      const stream = Stream.create({ nonBlocking: true });
      timeline.signal(3, { stream });
      stream.synchronizeSync();
      return {
        contestants: [
          inProcess(PUBLIC, (calls) => {
            let sum = 0;
            for (let call = 0; call < calls; call += 1) sum += timeline.value;
            requireSuccess(sum === 3 * calls, 'timeline.value');
          }),
        ],
        close() {
          timeline.close();
          stream.close();
        },
      };
    },
  },
  {
    name: 'diagnostics.check',
    what: 'asks whether somebody subscribes, as cuffi does before it makes a message; then makes and publishes one',
    calls: 5000,
    peers: [],
    open() {
      const quiet = channel('cuffi-bench:quiet');
      const heard = channel('cuffi-bench:heard');
      let seen = 0;
      const hear = (): void => {
        seen += 1;
      };
      heard.subscribe(hear);
      return {
        contestants: [
          inProcess('nobody subscribes', (calls) => {
            let published = 0;
            for (let call = 0; call < calls; call += 1) published += Number(quiet.hasSubscribers);
            requireSuccess(published === 0, 'a check');
          }),
          inProcess('a message', (calls) => {
            const before = seen;
            for (let call = 0; call < calls; call += 1)
              if (heard.hasSubscribers) heard.publish({ pid: 1, type: 'value', byteLength: call });
            requireSuccess(seen === before + calls, 'publishing');
          }),
        ],
        close: () => heard.unsubscribe(hear),
      };
    },
  },
  {
    name: 'event.record',
    what: 'records an event in a stream: cuEventRecord',
    calls: 5000,
    peers: inPeers('event.record', 'C', 'cuda.bindings', 'ctypes', 'cupy'),
    open() {
      const stream = Stream.create({ nonBlocking: true });
      const event = CudaEvent.create({ timing: false });
      const streamHandle = stream.handle;
      const eventHandle = event.handle;
      // Between the batches: a full queue would make the driver wait for the GPU.
      const settle = (): void => stream.synchronizeSync();
      return {
        contestants: [
          inProcess(
            PUBLIC,
            (calls) => {
              for (let call = 0; call < calls; call += 1) event.record(stream);
            },
            settle,
          ),
          inProcess(
            RAW,
            (calls) => {
              let status = 0;
              for (let call = 0; call < calls; call += 1)
                status |= cu.cuEventRecord(eventHandle, streamHandle);
              requireSuccess(status === 0, 'cuEventRecord');
            },
            settle,
          ),
        ],
        close() {
          event.close();
          stream.close();
        },
      };
    },
  },
  {
    name: 'getIpcHandle',
    what: 'makes a descriptor; the others call cuIpcGetMemHandle alone',
    calls: 2000,
    peers: inPeers('getIpcHandle', 'C', 'cuda.bindings', 'ctypes', 'cupy'),
    open() {
      const context = Context.primary();
      const buffer = DeviceBuffer.allocate(BUFFER_BYTE_LENGTH, { context });
      const { address } = buffer;
      // 64 bytes that the driver writes to.
      const ipcHandle = writeBytes(new Uint8Array(64));
      return {
        contestants: [
          inProcess(PUBLIC, (calls) => {
            for (let call = 0; call < calls; call += 1) getIpcHandle(buffer);
          }),
          inProcess(RAW, (calls) =>
            context.run(() => {
              let status = 0;
              for (let call = 0; call < calls; call += 1)
                status |= cu.cuIpcGetMemHandle(ipcHandle, address);
              requireSuccess(status === 0, 'cuIpcGetMemHandle');
            }),
          ),
        ],
        close: () => buffer.close(),
      };
    },
  },
];
