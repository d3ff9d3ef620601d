/** Legacy interprocess communication: memory and events by 64-byte handles. */
import { CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, out, uint } from '../types.ts';
import { needsContext } from './row.ts';

export const ipcRows = {
  cuIpcGetMemHandle: needsContext(out(CUipcMemHandle), CUdeviceptr),
  cuIpcOpenMemHandle_v2: needsContext(out(CUdeviceptr), CUipcMemHandle, uint),
  cuIpcCloseMemHandle: needsContext(CUdeviceptr),
  cuIpcGetEventHandle: needsContext(out(CUipcEventHandle), CUevent),
  cuIpcOpenEventHandle: needsContext(out(CUevent), CUipcEventHandle),
} as const;
