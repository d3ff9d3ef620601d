/**
 * Copies between host and device, each waited for, and on the device: of ordinary typed arrays,
 * which the driver calls pageable, and of page-locked ones.
 */
import { DeviceBuffer, PinnedBuffer, pin, Stream } from 'cuffi';
import { sizeName } from '../bytes.ts';
import { inProcess } from '../measure.ts';
import { type Case, inPeers, type Limit, type OpenCase } from './case.ts';
import { DevicePair } from './device-pair.ts';
import { type Direction, HostCopies, type Way } from './host-copies.ts';
import { PUBLIC } from './names.ts';

const KIB = 1 << 10;
const MIB = 1 << 20;

const SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 1024 * MIB];
/** Above, the emulated driver is left in peace. */
const MOST_WITHOUT_GPU = MIB;
/** From here on the moving counts, not the calling. */
const LARGE = 16 * MIB;

/** How often a size is copied in a turn, and how many turns it takes: the large ones fewer. */
const calls = (byteLength: number): number => Math.max(1, Math.min(50, (64 * MIB) / byteLength));
const rounds = (byteLength: number): number =>
  byteLength > 64 * MIB ? 6 : byteLength > LARGE ? 15 : 31;
/** Making and comparing so many bytes takes longer than copying them. */
const passes = (byteLength: number): { passes?: number } =>
  byteLength > 64 * MIB ? { passes: 2 } : {};

const LINK: Limit = { by: 'link', times: 1 };
const MEMORY: Limit = { by: 'memory', times: 2 };

const moving = (byteLength: number, limit: Limit) => ({
  limit,
  variant: sizeName(byteLength),
  calls: Math.floor(calls(byteLength)),
  rounds: rounds(byteLength),
  ...passes(byteLength),
  byteLength,
  isCopy: true,
  needsGpu: byteLength > MOST_WITHOUT_GPU,
});

const AWAITED = `${PUBLIC}, awaited`;
const SYNC = `${PUBLIC}, Sync`;

function toAndFro(direction: Direction, byteLength: number): Case[] {
  const name = direction === 'toDevice' ? 'copyFrom' : 'copyToHost';
  const to = direction === 'toDevice' ? 'to the device' : 'to the host';
  return [
    {
      name,
      what: `copies an ordinary typed array ${to}; the others: pageable memory`,
      ...moving(byteLength, LINK),
      peers: inPeers(`pageable.${direction}`, 'C', 'torch'),
      open: () => openPageable(direction, byteLength),
    },
    {
      name: `${name}.pinned`,
      what: `copies page-locked memory ${to}, awaited; the others: pinned memory`,
      ...moving(byteLength, LINK),
      peers: inPeers(`pinned.${direction}`, 'C', 'torch'),
      open: () => openPinned(direction, byteLength),
    },
  ];
}

// By sizes: the programs of other languages keep the memory of one size at a time.
export const copyCases: readonly Case[] = SIZES.flatMap((byteLength) => [
  ...toAndFro('toDevice', byteLength),
  ...toAndFro('toHost', byteLength),
  {
    name: 'copyTo',
    what: 'copies on the device, queued and waited for at the end of a batch',
    ...moving(byteLength, MEMORY),
    peers: inPeers('onDevice', 'C', 'torch'),
    open: () => openOnDevice(byteLength),
  },
]);

const awaited =
  (direction: Direction): Way =>
  (buffer, host) =>
    direction === 'toDevice' ? buffer.copyFrom(host) : buffer.copyToHost(host);

const blocking =
  (direction: Direction): Way =>
  (buffer, host) => {
    if (direction === 'toDevice') buffer.copyFromSync(host);
    else buffer.copyToHostSync(host);
  };

async function openPageable(direction: Direction, byteLength: number): Promise<OpenCase> {
  const buffer = DeviceBuffer.allocate(byteLength);
  const host = new Uint8Array(byteLength);
  const copies = await HostCopies.open(direction, buffer, host);
  return {
    contestants: [
      copies.contestant(AWAITED, awaited(direction)),
      copies.contestant(SYNC, blocking(direction)),
    ],
    verify: () => copies.verify(),
    close: () => buffer.close(),
  };
}

async function openPinned(direction: Direction, byteLength: number): Promise<OpenCase> {
  const buffer = DeviceBuffer.allocate(byteLength);
  const pinned = PinnedBuffer.allocate(byteLength);
  const array = new Uint8Array(byteLength);
  const locked = pin(array);
  const [ofBuffer, ofArray] = [
    await HostCopies.open(direction, buffer, new Uint8Array(pinned.buffer)),
    await HostCopies.open(direction, buffer, array),
  ];
  return {
    contestants: [
      ofBuffer.contestant(`${PUBLIC}, PinnedBuffer`, awaited(direction)),
      ofArray.contestant(`${PUBLIC}, pin()`, awaited(direction)),
    ],
    async verify() {
      for (const copies of [ofBuffer, ofArray]) await copies.verify();
    },
    close() {
      for (const resource of [locked, pinned, buffer]) resource.close();
    },
  };
}

function openOnDevice(byteLength: number): OpenCase {
  const stream = Stream.create({ nonBlocking: true });
  const pair = new DevicePair(byteLength);
  const { source, target } = pair;
  return {
    contestants: [
      inProcess(PUBLIC, (batch) => {
        for (let call = 0; call < batch; call += 1) source.copyTo(target, { stream });
        stream.synchronizeSync();
      }),
    ],
    verify: () => pair.verify('copyTo'),
    close() {
      for (const resource of [pair, stream]) resource.close();
    },
  };
}
