/** Legacy interprocess communication: memory and events by 64-byte handles. */
import { CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, out, uint } from '../types.ts';
import { inContext } from './row.ts';

export const ipcRows = {
  cuIpcGetMemHandle: inContext(out(CUipcMemHandle), CUdeviceptr),
  cuIpcOpenMemHandle_v2: inContext(out(CUdeviceptr), CUipcMemHandle, uint),
  cuIpcCloseMemHandle: inContext(CUdeviceptr),
  cuIpcGetEventHandle: inContext(out(CUipcEventHandle), CUevent),
  cuIpcOpenEventHandle: inContext(out(CUevent), CUipcEventHandle),
} as const;
