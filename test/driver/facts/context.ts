/** Which calls need a current context: each made with good arguments while none is current. */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Argument, DriverProcess, enterContext, type Side } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';

const NON_BLOCKING = 1;
const PORTABLE_DEVICEMAP = 3;
const INTERPROCESS_NO_TIMING = 6;

export const contextFacts: FactGroup = async (note) => {
  await using exporter = new DriverProcess();
  await enterContext(exporter);
  const foreign = (await exporter.call('cuMemAlloc_v2', 'OUT0', 4 << 20)).out0;
  const foreignMemory = {
    base64: (await exporter.call('cuIpcGetMemHandle', 'BLOCK', foreign)).block,
  };
  const foreignEvent = (await exporter.call('cuEventCreate', 'OUT0', INTERPROCESS_NO_TIMING)).out0;
  const foreignHandle = {
    base64: (await exporter.call('cuIpcGetEventHandle', 'BLOCK', foreignEvent)).block,
  };

  await using peer = new DriverProcess();
  note('any call before cuInit', (await peer.call('cuDeviceGetCount', 'OUT0')).status);
  const context = await enterContext(peer);
  const latch = await peer.latch();
  const made = async (name: FunctionName, ...args: Argument[]): Promise<number> => {
    const answer = await peer.call(name, ...args);
    if (answer.status !== 0) throw new Error(`${name}: ${answer.status}`);
    return answer.out0;
  };
  const memory = await made('cuMemAlloc_v2', 'OUT0', 4 << 20);
  const stream = await made('cuStreamCreateWithPriority', 'OUT0', NON_BLOCKING, 0);
  const doomedStream = await made('cuStreamCreateWithPriority', 'OUT0', NON_BLOCKING, 0);
  const event = await made('cuEventCreate', 'OUT0', 0);
  const doomedEvent = await made('cuEventCreate', 'OUT0', 0);
  const shared = await made('cuEventCreate', 'OUT0', INTERPROCESS_NO_TIMING);
  const imported = await made('cuIpcOpenMemHandle_v2', 'OUT0', foreignMemory, 1);
  await made('cuEventRecord', event, stream);
  await made('cuStreamSynchronize', stream);
  const host = await made('cuMemHostGetDevicePointer_v2', 'OUT0', latch.devicePointer, 0);
  await made('cuCtxPopCurrent_v2', 'OUT0');

  const ask = async (what: string, name: FunctionName, ...args: Argument[]): Promise<void> =>
    note(`without a context: ${what}`, (await peer.call(name, ...args)).status);

  await ask('cuCtxGetDevice', 'cuCtxGetDevice', 'OUT0');
  await ask('cuCtxPopCurrent_v2', 'cuCtxPopCurrent_v2', 'OUT0');
  await ask('cuCtxSynchronize', 'cuCtxSynchronize');
  await ask('cuCtxGetLimit', 'cuCtxGetLimit', 'OUT0', 0);
  await ask('cuCtxSetLimit', 'cuCtxSetLimit', 0, 1024);
  await ask('cuCtxGetStreamPriorityRange', 'cuCtxGetStreamPriorityRange', 'OUT0', 'OUT1');
  await ask('cuStreamCreateWithPriority', 'cuStreamCreateWithPriority', 'OUT0', 0, 0);
  for (const [which, handle] of [
    ['a stream', stream],
    ['stream 0', 0],
    ['the legacy stream', 1],
    ['the per-thread stream', 2],
  ] as const) {
    await ask(`cuStreamQuery of ${which}`, 'cuStreamQuery', handle);
    await ask(`cuStreamSynchronize of ${which}`, 'cuStreamSynchronize', handle);
    await ask(`cuStreamWaitEvent of ${which}`, 'cuStreamWaitEvent', handle, event, 0);
    await ask(`cuEventRecord in ${which}`, 'cuEventRecord', event, handle);
    await ask(`cuMemsetD8Async in ${which}`, 'cuMemsetD8Async', memory, 1, 64, handle);
    await ask(`cuMemsetD16Async in ${which}`, 'cuMemsetD16Async', memory, 1, 64, handle);
    await ask(`cuMemsetD32Async in ${which}`, 'cuMemsetD32Async', memory, 1, 64, handle);
    await ask(`cuMemcpyHtoDAsync_v2 in ${which}`, 'cuMemcpyHtoDAsync_v2', memory, host, 64, handle);
    await ask(
      `cuMemcpyDtoHAsync_v2 in ${which}`,
      'cuMemcpyDtoHAsync_v2',
      'BLOCK',
      memory,
      64,
      handle,
    );
    await ask(
      `cuMemcpyDtoDAsync_v2 in ${which}`,
      'cuMemcpyDtoDAsync_v2',
      memory,
      memory + 4096,
      64,
      handle,
    );
    await ask(`cuStreamGetFlags of ${which}`, 'cuStreamGetFlags', handle, 'OUT0');
    await ask(`cuStreamGetPriority of ${which}`, 'cuStreamGetPriority', handle, 'OUT0');
    await ask(`cuStreamGetCtx of ${which}`, 'cuStreamGetCtx', handle, 'OUT0');
    await ask(
      `cuStreamWriteValue32_v2 in ${which}`,
      'cuStreamWriteValue32_v2',
      handle,
      memory,
      7,
      0,
    );
    await ask(`cuStreamWaitValue32_v2 in ${which}`, 'cuStreamWaitValue32_v2', handle, memory, 7, 1);
  }
  await ask('cuEventCreate', 'cuEventCreate', 'OUT0', 0);
  await ask('cuEventQuery', 'cuEventQuery', event);
  await ask('cuEventSynchronize', 'cuEventSynchronize', event);
  await ask('cuEventElapsedTime', 'cuEventElapsedTime', 'OUT0', event, event);
  await ask('cuEventDestroy_v2', 'cuEventDestroy_v2', doomedEvent);
  await ask('cuStreamDestroy_v2', 'cuStreamDestroy_v2', doomedStream);
  await ask('cuMemGetInfo_v2', 'cuMemGetInfo_v2', 'OUT0', 'OUT1');
  await ask('cuMemAlloc_v2', 'cuMemAlloc_v2', 'OUT0', 1024);
  await ask('cuMemGetAddressRange_v2', 'cuMemGetAddressRange_v2', 'OUT0', 'OUT1', memory);
  await ask('cuPointerGetAttribute', 'cuPointerGetAttribute', 'OUT0', 7, memory);
  await ask('cuMemcpyHtoD_v2', 'cuMemcpyHtoD_v2', memory, 'BLOCK', 64);
  await ask('cuMemcpyDtoH_v2', 'cuMemcpyDtoH_v2', 'BLOCK', memory, 64);
  await ask('cuIpcGetMemHandle', 'cuIpcGetMemHandle', 'BLOCK', memory);
  await ask('cuIpcOpenMemHandle_v2', 'cuIpcOpenMemHandle_v2', 'OUT0', foreignMemory, 1);
  await ask('cuIpcCloseMemHandle', 'cuIpcCloseMemHandle', imported);
  await ask('cuIpcGetEventHandle', 'cuIpcGetEventHandle', 'BLOCK', shared);
  await ask('cuIpcOpenEventHandle', 'cuIpcOpenEventHandle', 'OUT0', foreignHandle);
  await ask('cuMemHostRegister_v2', 'cuMemHostRegister_v2', 'OUT0', 64, PORTABLE_DEVICEMAP);
  await ask('cuMemHostGetDevicePointer_v2', 'cuMemHostGetDevicePointer_v2', 'OUT0', host, 0);
  await ask('cuMemHostUnregister', 'cuMemHostUnregister', host);
  await ask('cuMemFree_v2', 'cuMemFree_v2', memory);

  await contexts(peer, context, note);
};

async function contexts(
  peer: Side,
  primary: number,
  note: Parameters<FactGroup>[0],
): Promise<void> {
  const status = async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await peer.call(name, ...args)).status;
  note(
    'retaining the primary context twice gives the same handle',
    (await peer.call('cuDevicePrimaryCtxRetain', 'OUT0', 0)).out0 === primary ? 'yes' : 'no',
  );
  note('pushing context 0', await status('cuCtxPushCurrent_v2', 0));
  await status('cuDevicePrimaryCtxRelease_v2', 0);
  note(
    'releasing the primary context for the last time',
    await status('cuDevicePrimaryCtxRelease_v2', 0),
  );
  note('resetting a released primary context', await status('cuDevicePrimaryCtxReset_v2', 0));
  note('pushing a primary context after its reset', await status('cuCtxPushCurrent_v2', primary));
  note('allocating in it though it is not retained', await status('cuMemAlloc_v2', 'OUT0', 1024));
  await status('cuCtxPopCurrent_v2', 'OUT0');
  note(
    'retaining after a reset gives the same handle',
    (await peer.call('cuDevicePrimaryCtxRetain', 'OUT0', 0)).out0 === primary ? 'yes' : 'no',
  );
  note('pushing it when retained again', await status('cuCtxPushCurrent_v2', primary));
  note('allocating in it when retained again', await status('cuMemAlloc_v2', 'OUT0', 1024));
  note('a device that is not there', await status('cuDeviceGet', 'OUT0', 99));
  note('an attribute that is not there', await status('cuDeviceGetAttribute', 'OUT0', 9999, 0));
  note('a limit that is not there', await status('cuCtxGetLimit', 'OUT0', 99));
}
