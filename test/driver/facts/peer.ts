/** Devices that reach each other: of one device alone, and (where there are two) of both. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { MIB, outOf, statusIn } from './kinds.ts';

export const peerFacts: FactGroup = async (note) => {
  await using peer = new DriverProcess();
  const context = await enterContext(peer);
  const status = statusIn(peer);
  note('peer: a device and itself', await outOf(peer)('cuDeviceCanAccessPeer', 'OUT0', 0, 0));
  note('peer: a device that is not there', await status('cuDeviceCanAccessPeer', 'OUT0', 0, 99));
  note(
    'peer: attribute of a device and itself',
    await status('cuDeviceGetP2PAttribute', 'OUT0', 1, 0, 0),
  );
  note('peer: access to the current context', await status('cuCtxEnablePeerAccess', context, 0));
  note('peer: access to no context', await status('cuCtxEnablePeerAccess', 0, 0));
  note(
    'peer: access disabled that was not enabled',
    await status('cuCtxDisablePeerAccess', context),
  );
  const memory = await outOf(peer)('cuMemAlloc_v2', 'OUT0', MIB);
  const copy = (to: number, from: number): Promise<number> =>
    status('cuMemcpyPeerAsync', memory, to, memory + 4096, from, 4096, 0);
  note('peer: copy within a context', await copy(context, context));
  note('peer: copy without contexts', await copy(0, 0));
};
