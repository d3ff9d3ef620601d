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
import { needsContext, noContext, unsafeInCapture } from './row.ts';

export const deviceRows = {
  // Initialisation, version, errors
  cuInit: noContext(uint),
  cuDriverGetVersion: noContext(out(int)),
  cuGetErrorString: noContext(CUresultType, out(constString)),

  // Devices
  cuDeviceGetCount: noContext(out(int)),
  cuDeviceGet: noContext(out(CUdevice), int),
  cuDeviceGetName: noContext(out(char), int, CUdevice),
  cuDeviceGetUuid_v2: noContext(out(CUuuid), CUdevice),
  cuDeviceGetAttribute: noContext(out(int), CUdevice_attribute, CUdevice),
  cuDeviceTotalMem_v2: noContext(out(size_t), CUdevice),

  // Contexts
  cuDevicePrimaryCtxRetain: noContext(out(CUcontext), CUdevice),
  cuDevicePrimaryCtxRelease_v2: noContext(CUdevice),
  cuDevicePrimaryCtxReset_v2: noContext(CUdevice),
  cuDevicePrimaryCtxGetState: noContext(CUdevice, out(uint), out(int)),
  cuCtxCreate_v2: noContext(out(CUcontext), uint, CUdevice),
  cuCtxDestroy_v2: noContext(CUcontext),
  cuCtxGetCurrent: noContext(out(CUcontext)),
  cuCtxPushCurrent_v2: noContext(CUcontext),
  cuCtxPopCurrent_v2: needsContext(out(CUcontext)),
  cuCtxGetDevice: needsContext(out(CUdevice)),
  cuCtxSynchronize: unsafeInCapture(needsContext()),
  cuCtxGetLimit: needsContext(out(size_t), CUlimit),
  cuCtxSetLimit: unsafeInCapture(needsContext(CUlimit, size_t)),
  cuCtxGetStreamPriorityRange: needsContext(out(int), out(int)),

  // Peers
  cuDeviceCanAccessPeer: noContext(out(int), CUdevice, CUdevice),
  cuDeviceGetP2PAttribute: noContext(out(int), CUdevice_P2PAttribute, CUdevice, CUdevice),
  cuCtxEnablePeerAccess: unsafeInCapture(needsContext(CUcontext, uint)),
  cuCtxDisablePeerAccess: needsContext(CUcontext),
} as const;
