/** The second process of `cuffi doctor`: offers an object of each kind, and a large buffer. */
import { Context } from '../context.ts';
import { ClosedError, PeerGoneError } from '../errors.ts';
import { offerProbes } from '../ipc/inspect/probes.ts';
import { leases } from '../ipc/lease/leases.ts';
import { parentPeer } from '../ipc/peer/spawn.ts';
import { DeviceBuffer } from '../memory/buffer.ts';

/** The parent reads it twice. */
const RETURN_TIMEOUT_MS = 10_000;

const device = Number(process.argv[2] ?? 0);
const byteLength = Number(process.argv[3] ?? 0);
const parent = parentPeer();
const context = Context.primary(device);
await offerProbes(parent, context.device);
try {
  using buffer = DeviceBuffer.allocate(byteLength, { context });
  await parent.send({ buffer });
  await leases.returned(buffer, { timeoutMs: RETURN_TIMEOUT_MS });
} catch (error) {
  // The parent has ended, or the device cannot share plain memory: the probes have said so.
  if (!(error instanceof ClosedError || error instanceof PeerGoneError)) parent.close();
}
parent.close();
