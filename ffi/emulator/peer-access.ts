/** Peer access: whether devices can access each other's memory, and whether a context may. */
import { CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';
import type { Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import type { Settings } from './settings.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
  CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
} = CUresult;

const LAST_ATTRIBUTE = 5;
const ONLY_PARTIAL_ATOMICS = 5;

type PeerAccessFunctions = Pick<
  Driver,
  | 'cuDeviceCanAccessPeer'
  | 'cuDeviceGetP2PAttribute'
  | 'cuCtxEnablePeerAccess'
  | 'cuCtxDisablePeerAccess'
>;

export function peerAccessFunctions(
  contexts: Contexts,
  host: HostMemory,
  settings: Pick<Settings, 'canAccessPeer'>,
): PeerAccessFunctions {
  const canAccess = (device: number, peer: number): boolean =>
    settings.canAccessPeer(contexts.physicalDevice(device), contexts.physicalDevice(peer));
  const areDevices = (...devices: number[]): boolean =>
    devices.every((device) => contexts.hasDevice(device));
  return {
    cuDeviceCanAccessPeer(out, device, peer) {
      if (!areDevices(device, peer)) return CUDA_ERROR_INVALID_DEVICE;
      host.setInt32(out, device !== peer && canAccess(device, peer) ? 1 : 0);
      return CUDA_SUCCESS;
    },
    cuDeviceGetP2PAttribute(out, attribute, device, peer) {
      if (attribute < 1 || attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
      if (!areDevices(device, peer) || device === peer) return CUDA_ERROR_INVALID_DEVICE;
      const isZero =
        attribute === CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute === ONLY_PARTIAL_ATOMICS;
      host.setInt32(out, isZero || !canAccess(device, peer) ? 0 : 1);
      return CUDA_SUCCESS;
    },
    cuCtxEnablePeerAccess(handle, flags) {
      const { current } = contexts;
      const peer = contexts.get(handle);
      if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      if (!peer?.alive) return CUDA_ERROR_INVALID_CONTEXT;
      if (peer.device === current.device || !canAccess(current.device, peer.device))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
      const peers = contexts.accessibleFrom(current);
      if (peers.has(peer)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
      peers.add(peer);
      return CUDA_SUCCESS;
    },
    cuCtxDisablePeerAccess(handle) {
      const peer = contexts.get(handle);
      if (!peer?.alive) return CUDA_ERROR_INVALID_CONTEXT;
      const isDisabled = contexts.accessibleFrom(contexts.current).delete(peer);
      return isDisabled ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    },
  };
}
