/**
 * What the GPU itself takes for copies: of page-locked memory, which is the transfer alone, and on
 * the device. By its own clock, with all copies queued before the first begins.
 */
import { DeviceBuffer, PinnedBuffer, pin } from 'cuffi';
import { type Address, addressOf, type CUdeviceptr, type CUstream, cu } from 'cuffi/ffi';
import { sizeName, writePattern } from '../bytes.ts';
import { GpuTimer } from '../gpu-time.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { DevicePair } from './device-pair.ts';
import { type Direction, requireCopied } from './host-copies.ts';
import { PUBLIC, RAW, requireSuccess } from './names.ts';

const KIB = 1 << 10;
const MIB = 1 << 20;

const SIZES = [64 * KIB, MIB, 16 * MIB, 256 * MIB];
/** Above, the emulated driver is left in peace. */
const MOST_WITHOUT_GPU = MIB;

/** The GPU's clock jitters less than the host's: fewer rounds, in fewer processes, tell as much. */
const bounds = { rounds: 15, passes: 2, budgetMs: 500, clock: 'gpu' } as const;

const moving = (byteLength: number) => ({
  ...bounds,
  variant: sizeName(byteLength),
  calls: Math.max(2, Math.min(50, (64 * MIB) / byteLength)),
  byteLength,
  isCopy: true,
  needsGpu: byteLength > MOST_WITHOUT_GPU,
});

const transfer = (direction: Direction, byteLength: number): Case => ({
  name: `transfer.${direction}`,
  what: `moves page-locked memory ${direction === 'toDevice' ? 'to the device' : 'to the host'}: the transfer alone`,
  ...moving(byteLength),
  limit: { by: 'link', times: 1 },
  peers: inPeers(`gpu.${direction}`, 'C', 'torch'),
  open: () => openTransfer(direction, byteLength),
});

// By sizes: the programs of other languages keep the memory of one size at a time.
export const gpuCopyCases: readonly Case[] = SIZES.flatMap((byteLength) => [
  transfer('toDevice', byteLength),
  transfer('toHost', byteLength),
  {
    name: 'copyTo.gpu',
    what: 'copies on the device',
    ...moving(byteLength),
    limit: { by: 'memory', times: 2 },
    peers: inPeers('gpu.onDevice', 'C', 'torch'),
    open: () => openOnDevice(byteLength),
  },
]);

function openTransfer(direction: Direction, byteLength: number): OpenCase {
  const timer = GpuTimer.create();
  const buffer = DeviceBuffer.allocate(byteLength);
  const pinned = PinnedBuffer.allocate(byteLength);
  const array = new Uint8Array(byteLength);
  const locked = pin(array);
  const sides = [
    { name: `${RAW}, PinnedBuffer`, host: new Uint8Array(pinned.buffer) },
    { name: `${RAW}, pin()`, host: array },
  ];
  for (const { host } of sides) writePattern(host);
  buffer.copyFromSync(array);
  const { stream } = timer;
  const queue = (host: Uint8Array) => {
    // Page-locked memory stays where it is.
    const [device, address] = [buffer.address, addressOf(host)];
    return (calls: number): void =>
      queueTransfers(calls, direction, { device, address, byteLength, stream: stream.handle });
  };
  return {
    contestants: sides.map(({ name, host }) => timer.contestant(name, queue(host))),
    async verify() {
      for (const { name, host } of sides)
        await requireCopied(direction, buffer, host, name, () => {
          stream.synchronizeSync();
          queue(host)(1);
          stream.synchronizeSync();
        });
    },
    close() {
      for (const resource of [locked, pinned, buffer, timer]) resource.close();
    },
  };
}

interface Transfer {
  readonly device: CUdeviceptr;
  readonly address: Address;
  readonly byteLength: number;
  readonly stream: CUstream;
}

function queueTransfers(
  calls: number,
  direction: Direction,
  { device, address, byteLength, stream }: Transfer,
): void {
  let status = 0;
  for (let call = 0; call < calls; call += 1)
    status |=
      direction === 'toDevice'
        ? cu.cuMemcpyHtoDAsync_v2(device, address, byteLength, stream)
        : cu.cuMemcpyDtoHAsync_v2(address, device, byteLength, stream);
  requireSuccess(status === 0, 'a transfer');
}

function openOnDevice(byteLength: number): OpenCase {
  const timer = GpuTimer.create();
  const { stream } = timer;
  const pair = new DevicePair(byteLength);
  const { source, target } = pair;
  return {
    contestants: [
      timer.contestant(PUBLIC, (calls) => {
        for (let call = 0; call < calls; call += 1) source.copyTo(target, { stream });
      }),
    ],
    verify: () => pair.verify(PUBLIC),
    close() {
      for (const resource of [pair, timer]) resource.close();
    },
  };
}
