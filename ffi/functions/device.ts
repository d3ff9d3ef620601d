/** Initialisation, errors, devices, contexts, and devices that reach each other's memory. */
import {
  CUcontext,
  CUdevice,
  CUdevice_attribute,
  CUdevice_P2PAttribute,
  CUlimit,
  CUresultType,
  CUuuid,
  char,
  constString,
  int,
  out,
  size_t,
  uint,
} from '../types.ts';
import { anywhere, inContext } from './row.ts';

export const deviceRows = {
  // Initialisation, version, errors
  cuInit: anywhere(uint),
  cuDriverGetVersion: anywhere(out(int)),
  cuGetErrorString: anywhere(CUresultType, out(constString)),

  // Devices
  cuDeviceGetCount: anywhere(out(int)),
  cuDeviceGet: anywhere(out(CUdevice), int),
  cuDeviceGetName: anywhere(out(char), int, CUdevice),
  cuDeviceGetUuid_v2: anywhere(out(CUuuid), CUdevice),
  cuDeviceGetAttribute: anywhere(out(int), CUdevice_attribute, CUdevice),
  cuDeviceTotalMem_v2: anywhere(out(size_t), CUdevice),

  // Contexts
  cuDevicePrimaryCtxRetain: anywhere(out(CUcontext), CUdevice),
  cuDevicePrimaryCtxRelease_v2: anywhere(CUdevice),
  cuDevicePrimaryCtxReset_v2: anywhere(CUdevice),
  cuDevicePrimaryCtxGetState: anywhere(CUdevice, out(uint), out(int)),
  cuCtxCreate_v2: anywhere(out(CUcontext), uint, CUdevice),
  cuCtxDestroy_v2: anywhere(CUcontext),
  cuCtxGetCurrent: anywhere(out(CUcontext)),
  cuCtxPushCurrent_v2: anywhere(CUcontext),
  cuCtxPopCurrent_v2: inContext(out(CUcontext)),
  cuCtxGetDevice: inContext(out(CUdevice)),
  cuCtxSynchronize: inContext(),
  cuCtxGetLimit: inContext(out(size_t), CUlimit),
  cuCtxSetLimit: inContext(CUlimit, size_t),
  cuCtxGetStreamPriorityRange: inContext(out(int), out(int)),

  // Peers
  cuDeviceCanAccessPeer: anywhere(out(int), CUdevice, CUdevice),
  cuDeviceGetP2PAttribute: anywhere(out(int), CUdevice_P2PAttribute, CUdevice, CUdevice),
  cuCtxEnablePeerAccess: inContext(CUcontext, uint),
  cuCtxDisablePeerAccess: inContext(CUcontext),
} as const;
