/**
 * Copies between host and device, and on the device. Host times wait for each copy; GPU times queue
 * all copies before the first begins. The host's memory is ordinary ("pageable") or page-locked.
 */
import { DeviceBuffer, PinnedBuffer, pin, Stream } from 'cuffi';
import { type Address, addressOf, type CUdeviceptr, type CUstream, cu } from 'cuffi/ffi';
import { sizeName } from '../format.ts';
import { type Contestant, inProcess } from '../measure.ts';
import type { CaseResult } from '../results.ts';
import { requirePattern, writePattern } from '../ways/pattern.ts';
import { type Case, inPeers, type OpenCase, PUBLIC, RAW, requireSuccess } from './case.ts';
import { GpuTimer } from './gpu-timer.ts';

type Limit = NonNullable<CaseResult['limit']>;

const KIB = 1 << 10;
const MIB = 1 << 20;

const SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 1024 * MIB];
/** The emulated driver copies no more than this. */
const MOST_WITHOUT_GPU = MIB;
/** From here on the copy dominates, not the call. */
const LARGE = 16 * MIB;

/** Calls in a batch, and rounds: fewer for large sizes. */
const calls = (byteLength: number): number => Math.max(1, Math.min(50, (64 * MIB) / byteLength));
const rounds = (byteLength: number): number =>
  byteLength > 64 * MIB ? 6 : byteLength > LARGE ? 15 : 31;

const GPU_SIZES = [64 * KIB, MIB, 16 * MIB, 256 * MIB];

const LINK: Limit = { by: 'link', times: 1 };
const MEMORY: Limit = { by: 'memory', times: 2 };

const moving = (byteLength: number, limit: Limit) => ({
  limit,
  variant: sizeName(byteLength),
  calls: Math.floor(calls(byteLength)),
  rounds: rounds(byteLength),
  byteLength,
  isCopy: true,
  needsGpu: byteLength > MOST_WITHOUT_GPU,
  // Filling and comparing a GiB takes longer than copying it.
  isOnce: byteLength > 64 * MIB,
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

// Ordered by size: the peers keep memory of one size at a time.
const hostTimed: readonly Case[] = SIZES.flatMap((byteLength) => [
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

/** The GPU's clock varies less than the host's, so fewer rounds are enough. */
const bounds = { rounds: 15, budgetMs: 400, clock: 'gpu', isOnce: true } as const;

const movingOnGpu = (byteLength: number) => ({
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
  ...movingOnGpu(byteLength),
  limit: { by: 'link', times: 1 },
  peers: inPeers(`gpu.${direction}`, 'C', 'torch'),
  open: () => openTransfer(direction, byteLength),
});

// Ordered by size: the peers keep memory of one size at a time.
const gpuTimed: readonly Case[] = GPU_SIZES.flatMap((byteLength) => [
  transfer('toDevice', byteLength),
  transfer('toHost', byteLength),
  {
    name: 'copyTo.gpu',
    what: 'copies on the device',
    ...movingOnGpu(byteLength),
    limit: { by: 'memory', times: 2 },
    peers: inPeers('gpu.onDevice', 'C', 'torch'),
    open: () => openOnDeviceByGpu(byteLength),
  },
]);

function openTransfer(direction: Direction, byteLength: number): OpenCase {
  const timer = new GpuTimer();
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
    // Page-locked memory does not move.
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

function openOnDeviceByGpu(byteLength: number): OpenCase {
  const timer = new GpuTimer();
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

export const copyCases: readonly Case[] = [...hostTimed, ...gpuTimed];

/** Two buffers of a device: the pattern is in one, and what is copied from it is looked for in the other. */
class DevicePair {
  readonly source: DeviceBuffer;
  readonly target: DeviceBuffer;
  readonly #host: Uint8Array;

  constructor(byteLength: number) {
    this.source = DeviceBuffer.allocate(byteLength);
    this.target = DeviceBuffer.allocate(byteLength);
    this.#host = new Uint8Array(byteLength);
    writePattern(this.#host);
    this.source.copyFromSync(this.#host);
    // Its pages are there, and hold something else.
    this.target.fill(0);
    this.target.context.synchronizeSync();
  }

  /** @throws Error where anything but the pattern was copied */
  verify(what: string): void {
    requirePattern(this.target.copyToHostSync(this.#host.fill(0)), what);
  }

  close(): void {
    this.source.close();
    this.target.close();
  }
}

export type Direction = 'toDevice' | 'toHost';

/**
 * Clears one side, has the other copied there once more, and compares all of it.
 *
 * @param copy copies the whole of it
 * @throws Error where other bytes arrive
 */
export async function requireCopied(
  direction: Direction,
  buffer: DeviceBuffer,
  host: Uint8Array,
  what: string,
  copy: () => unknown,
): Promise<void> {
  writePattern(host);
  if (direction === 'toDevice') {
    buffer.fill(0);
    buffer.context.synchronizeSync();
    await copy();
    buffer.copyToHostSync(host.fill(0));
  } else {
    buffer.copyFromSync(host);
    host.fill(0);
    await copy();
  }
  requirePattern(host, what);
}

/** How a copy is made. */
type Way = (buffer: DeviceBuffer, host: Uint8Array) => unknown;

const MARK_BYTE_LENGTH = 8;
/** Small copies are mostly JavaScript. */
const WARM_UP_MS = 100;
const LARGEST_TO_WARM_UP = 1 << 20;

/**
 * Copies between one array and one buffer. What arrives is compared: after each turn the beginning, the
 * middle and the end, which every turn writes anew, and all of it after the rounds.
 */
class HostCopies {
  readonly #direction: Direction;
  readonly #buffer: DeviceBuffer;
  readonly #host: Uint8Array;
  readonly #ways = new Map<string, Way>();
  #turns = 0;

  private constructor(direction: Direction, buffer: DeviceBuffer, host: Uint8Array) {
    this.#direction = direction;
    this.#buffer = buffer;
    this.#host = host;
  }

  /** Touches all pages of both. */
  static async open(
    direction: Direction,
    buffer: DeviceBuffer,
    host: Uint8Array,
  ): Promise<HostCopies> {
    const copies = new HostCopies(direction, buffer, host);
    writePattern(host);
    await buffer.copyFrom(host);
    return copies;
  }

  /** Compares a whole copy by each of the ways that took part. @throws Error where it is not right */
  async verify(): Promise<void> {
    for (const [name, way] of this.#ways)
      await requireCopied(this.#direction, this.#buffer, this.#host, name, () =>
        way(this.#buffer, this.#host),
      );
  }

  /** A contestant that waits for each copy before the next one. */
  contestant(name: string, way: Way): Contestant {
    this.#ways.set(name, way);
    return {
      name,
      warmUpMs: this.#host.byteLength > LARGEST_TO_WARM_UP ? 0 : WARM_UP_MS,
      run: async (calls) => {
        this.#turns += 1;
        const mark = this.#turns % 256;
        this.#mark(mark);
        const start = process.hrtime.bigint();
        for (let call = 0; call < calls; call += 1) {
          const copied = way(this.#buffer, this.#host);
          // The blocking one pays for no promise.
          if (copied instanceof Promise) await copied;
        }
        const end = process.hrtime.bigint();
        this.#requireMark(mark, name);
        return Number(end - start);
      },
    };
  }

  get #places(): number[] {
    const { byteLength } = this.#host;
    return [0, byteLength / 2, byteLength - MARK_BYTE_LENGTH];
  }

  #mark(value: number): void {
    for (const at of this.#places) {
      const end = at + MARK_BYTE_LENGTH;
      if (this.#direction === 'toDevice') this.#host.fill(value, at, end);
      else
        this.#buffer.subarray(at, end).copyFromSync(new Uint8Array(MARK_BYTE_LENGTH).fill(value));
    }
  }

  #requireMark(value: number, name: string): void {
    for (const at of this.#places) {
      const end = at + MARK_BYTE_LENGTH;
      const seen =
        this.#direction === 'toDevice'
          ? this.#buffer.subarray(at, end).copyToHostSync()
          : this.#host.subarray(at, end);
      if (seen.some((byte) => byte !== value))
        throw new Error(`${name}: ${seen.join(', ')} at byte ${at}, where ${value} was sent`);
    }
  }
}
