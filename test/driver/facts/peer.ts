/** Devices that reach each other: of one device alone, and (where there are two) of both. */
import { enterContext, Peer } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { MIB, outOf, statusIn } from './kinds.ts';

export const peerFacts: FactGroup = async (note) => {
  await using peer = new Peer();
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

/** Only where there are two devices: not part of what one device's record holds. */
export const twoDeviceFacts: FactGroup = async (note) => {
  await using peer = new Peer({ CUFFI_EMULATED_DEVICES: '2' });
  const zero = await enterContext(peer);
  const status = statusIn(peer);
  const out = outOf(peer);
  const one = await out('cuDevicePrimaryCtxRetain', 'OUT0', 1);
  await status('cuCtxPushCurrent_v2', one);
  const there = await out('cuMemAlloc_v2', 'OUT0', MIB);
  await status('cuCtxPopCurrent_v2', 'OUT0');
  const here = await out('cuMemAlloc_v2', 'OUT0', MIB);
  note('two devices: can reach each other', await out('cuDeviceCanAccessPeer', 'OUT0', 0, 1));
  for (const attribute of [2, 3, 4])
    note(
      `two devices: attribute ${attribute}`,
      await out('cuDeviceGetP2PAttribute', 'OUT0', attribute, 0, 1),
    );
  note('two devices: attribute 99', await status('cuDeviceGetP2PAttribute', 'OUT0', 99, 0, 1));
  note(
    'two devices: copy without access',
    await status('cuMemcpyPeerAsync', here, zero, there, one, 4096, 0),
  );
  note('two devices: disabled before enabled', await status('cuCtxDisablePeerAccess', one));
  note('two devices: enabled with flags', await status('cuCtxEnablePeerAccess', one, 1));
  note('two devices: enabled', await status('cuCtxEnablePeerAccess', one, 0));
  note('two devices: enabled twice', await status('cuCtxEnablePeerAccess', one, 0));
  note(
    'two devices: copy with access',
    await status('cuMemcpyPeerAsync', here, zero, there, one, 4096, 0),
  );
  note('two devices: disabled', await status('cuCtxDisablePeerAccess', one));
  note('two devices: copied', await status('cuCtxSynchronize'));
};
