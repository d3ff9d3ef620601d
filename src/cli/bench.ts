/** How long it takes to hand a GPU buffer to another process, by sharing it and by copying it. */
import type { Socket } from 'node:net';
import { closeFd, createMemfd, type Mapping, mapShared } from '../../ffi/linux/libc.ts';
import { Context } from '../context.ts';
import { CudaError, CuffiError, NotSupportedError } from '../errors.ts';
import { Channel } from '../ipc/channel/channel.ts';
import { type ChildPeer, type SpawnPeerOptions, spawnPeer } from '../ipc/peer/spawn.ts';
import { spawnPython } from '../ipc/peer/spawn-python.ts';
import { ipcSupport } from '../ipc/sharing/blockers.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { PinnedBuffer } from '../memory/pinned.ts';
import { Stream } from '../stream.ts';
import { type Figures, figuresOf, type WayName } from './bench-figures.ts';
import { MEMORY_FD, type Order, SOCKET_FD } from './bench-messages.ts';
import { childProgram, failedInChild, noReplyWithin } from './child.ts';
import type { DriverChoice } from './driver-choice.ts';
import { defaultKind, type KindName, kinds } from './kinds.ts';
import { shortBytes } from './table.ts';

/** What was measured, and why the rest was not. */
export interface BenchResult {
  readonly figures: readonly Figures[];
  /** Ways that do not work here, and sizes for which there is no room. */
  readonly omitted: readonly { readonly what: string; readonly reason: string }[];
}

/** Options of {@link bench}. */
export interface BenchOptions {
  /** In bytes, ascending: multiples of 4. */
  readonly sizes: readonly number[];
  readonly device: number;
  readonly driver: DriverChoice;
  /** Approximate measuring and warm-up time for each way and size. */
  readonly budgetMs: number;
  readonly warmUpMs: number;
  /** Ends the measurement and the child; {@link bench} throws its reason. */
  readonly signal: AbortSignal;
  /** Whether a process in Python gets buffers, too. */
  readonly python?: boolean;
  /** Called when a size begins. */
  onSize?(byteLength: number): void;
  /** The child's program; tests pass one that fails. */
  readonly program?: string;
  /** How long the child may take to reply before it is ended. */
  readonly deadlineMs?: number;
}

/** Measures all ways with all sizes. @throws CuffiError if the child dies or hands over wrong data */
export async function bench(options: BenchOptions): Promise<BenchResult> {
  const { device, driver, deadlineMs = 30_000, program = childProgram('bench-child') } = options;
  const context = Context.primary(device);
  const omitted: Omitted = [];
  const sizes = options.sizes.filter((byteLength) => {
    const reason = lacksRoom(byteLength * (options.python ? COPIES + 1 : COPIES), context);
    if (reason !== undefined) omitted.push({ what: shortBytes(byteLength), reason });
    return reason === undefined;
  });
  const mostBytes = sizes.at(-1);
  if (mostBytes === undefined) return { figures: [], omitted };
  using watch = new Watch(options.signal, deadlineMs);
  using stream = Stream.create({ context, nonBlocking: true });
  const fd = createMemfd('cuffi-bench', mostBytes);
  let memory: Mapping | undefined;
  let child: ChildPeer | undefined;
  let python: ChildPeer | undefined;
  let pinned: PinnedBuffer | undefined;
  try {
    memory = mapShared(fd, mostBytes);
    child = startChild(program, {
      args: [String(device), String(mostBytes)],
      env: { ...process.env, CUFFI_DRIVER: driver.name },
      fd,
      signal: watch.signal,
    });
    await receiveFrom(child);
    if (options.python) python = await startPython(options, watch.signal, omitted);
    pinned = openOrOmit(omitted, 'copying, page-locked', () =>
      PinnedBuffer.allocate(mostBytes, { context, shareable: true }),
    );
    if (pinned) await tell(child, { type: 'page-locked', pinned });
    const support = ipcSupport(context.device);
    const kind = defaultKind(context.device, support);
    const { supported: isShared, reason } = support[kinds[kind].capability];
    if (!isShared) omitted.push({ what: 'connection' satisfies WayName, reason });
    const figures: Figures[] = [];
    // Each hand-over has a word of its own, so that the old contents of reused memory never pass for it.
    let words = 0;
    const shared = new Uint8Array(memory.view());
    const place = { context, stream, child, python, shared, pinned, kind, isShared, omitted };
    for (const byteLength of sizes) {
      options.onSize?.(byteLength);
      const open = await openWays(byteLength, place);
      try {
        const isFirst = byteLength === sizes[0];
        const round = { watch, isFirst, nextWord: () => ++words };
        figures.push(...(await measure(open.ways, byteLength, options, round)));
      } catch (error) {
        // A child that has died closes nothing.
        await open.close().catch(() => {});
        throw error;
      }
      await open.close();
    }
    return { figures, omitted };
  } catch (error) {
    // An abort ends the child, and the error only reports its exit.
    watch.signal.throwIfAborted();
    throw error;
  } finally {
    if (child) await end(child);
    if (python) await endPython(python);
    pinned?.close();
    memory?.unmap();
    closeFd(fd);
    await context.flush();
  }
}

/** Starts the child, which is ended if `signal` aborts. @param fd memory of both processes */
function startChild(
  program: string,
  { fd, ...options }: Omit<SpawnPeerOptions, 'stdio'> & { fd: number; signal: AbortSignal },
): ChildPeer {
  const stdio: ('ignore' | 'inherit' | 'pipe' | number)[] = ['ignore', 'ignore', 'inherit'];
  stdio[SOCKET_FD] = 'pipe';
  stdio[MEMORY_FD] = fd;
  const child = spawnPeer(program, { ...options, stdio });
  options.signal.addEventListener('abort', () => child.killLater(GRACE_MS));
  // A child that dies breaks its socket; its exit is reported instead.
  socketOf(child).on('error', () => {});
  return child;
}

/** How long a child that was asked to exit may clean up before it is killed. */
const GRACE_MS = 3000;

async function end(child: ChildPeer): Promise<void> {
  child.killLater(GRACE_MS);
  socketOf(child).destroy();
  await child[Symbol.asyncDispose]();
}

/**
 * Starts the process in Python, which is ended if `signal` aborts. If there is no Python here, or none that the
 * companion runs in, adds the reason to `omitted`, and returns undefined.
 */
async function startPython(
  { driver }: BenchOptions,
  signal: AbortSignal,
  omitted: Omitted,
): Promise<ChildPeer | undefined> {
  const child = spawnPython(
    { module: 'cuffi._bench' },
    {
      env: { ...process.env, CUFFI_DRIVER: driver.name },
      // What it complains of is printed.
      stdio: ['ignore', 'ignore', 'inherit'],
      signal,
    },
  );
  signal.addEventListener('abort', () => child.killLater(GRACE_MS));
  try {
    await receiveFrom(child);
    return child;
  } catch (error) {
    await endPython(child);
    signal.throwIfAborted();
    omitted.push({ what: 'Python', reason: (error as Error).message });
    return undefined;
  }
}

async function endPython(child: ChildPeer): Promise<void> {
  child.killLater(GRACE_MS);
  await child[Symbol.asyncDispose]();
}

/** How many times the size is in use at once, of GPU memory and of host memory; Python uses it once more. */
const COPIES = 3;
const SPARE_BYTES = 256 << 20;

/** Returns why there is no room for so many bytes. */
function lacksRoom(needed: number, context: Context): string | undefined {
  const { free } = context.memoryInfo();
  const places = [
    ['the GPU', free],
    ['this host', process.availableMemory()],
  ] as const;
  const short = places.find(([, available]) => needed + SPARE_BYTES > available);
  return (
    short &&
    `it takes ${shortBytes(needed)} of ${short[0]} and some to spare, and ${shortBytes(short[1])} are free`
  );
}

type Omitted = { what: string; reason: string }[];

/**
 * Opens what a way needs. If this device or system cannot, or lacks memory, adds the reason to `omitted`,
 * once, and returns undefined.
 *
 * @param byteLength the size that may lack memory; undefined if all sizes use what is opened
 */
function openOrOmit<T>(
  omitted: Omitted,
  way: WayName,
  open: () => T,
  byteLength?: number,
): T | undefined {
  try {
    return open();
  } catch (error) {
    const isFull = error instanceof CudaError && error.code === 'CUDA_ERROR_OUT_OF_MEMORY';
    if (!isFull && !(error instanceof NotSupportedError)) throw error;
    const name = isFull && byteLength !== undefined ? `${way}, ${shortBytes(byteLength)}` : way;
    if (!omitted.some(({ what }) => what === name))
      omitted.push({ what: name, reason: error.message });
    return undefined;
  }
}

/** Aborts if its signal does, or if nobody calls {@link refresh} for too long. */
class Watch implements Disposable {
  readonly signal: AbortSignal;
  readonly #timer: NodeJS.Timeout;

  constructor(signal: AbortSignal, deadlineMs: number) {
    const late = new AbortController();
    this.signal = AbortSignal.any([signal, late.signal]);
    this.#timer = setTimeout(
      () => late.abort(new CuffiError(noReplyWithin(deadlineMs))),
      deadlineMs,
    );
  }

  refresh(): void {
    this.#timer.refresh();
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }
}

// ---- The ways ----

/** A way that is ready for hand-overs of one size: hands a word over, and returns how long it took. */
interface OpenWay {
  readonly name: WayName;
  handOver(word: number): Promise<number>;
}

interface Place {
  readonly context: Context;
  readonly stream: Stream;
  readonly child: ChildPeer;
  readonly python: ChildPeer | undefined;
  readonly shared: Uint8Array<ArrayBuffer>;
  readonly pinned: PinnedBuffer | undefined;
  /** The kind of the buffer. */
  readonly kind: KindName;
  /** Whether the buffer can be shared. */
  readonly isShared: boolean;
  readonly omitted: Omitted;
}

const socketOf = (child: ChildPeer): Socket => child.process.stdio[SOCKET_FD] as Socket;

async function tell(child: ChildPeer, order: Order): Promise<unknown> {
  await child.send(order);
  return receiveFrom(child);
}

/** Returns the child's next reply. @throws CuffiError for one that says what failed there */
async function receiveFrom(child: ChildPeer): Promise<unknown> {
  const reply = await child.receive();
  if (typeof reply === 'string') throw new CuffiError(failedInChild(reply));
  return reply;
}

const word = new Uint32Array(1);
function setLastWord(buffer: DeviceBuffer, value: number): void {
  word[0] = value;
  buffer.subarray(buffer.byteLength - 4).copyFromSync(word);
}

/** @throws CuffiError for another word than was handed over */
function checkSeen(way: WayName, seen: unknown, expected: number): void {
  if (seen !== expected)
    throw new CuffiError(`${way}: the child read ${String(seen)} instead of ${expected}`);
}

/**
 * Returns how long a hand-over takes, and checks the word that the child has read: what `give` resolves
 * with, or what is asked for after that.
 */
async function timed(
  name: WayName,
  value: number,
  give: () => Promise<unknown>,
  askSeen?: () => Promise<unknown>,
): Promise<number> {
  const start = performance.now();
  const reply = await give();
  const ms = performance.now() - start;
  checkSeen(name, askSeen ? await askSeen() : reply, value);
  return ms;
}

/** A process that shares, and what its ways are called. */
interface Receiver {
  readonly peer: ChildPeer;
  readonly suffix: '' | ', Python';
}

/** Opens all ways that work here, in all processes. */
async function openWays(byteLength: number, place: Place) {
  const { context, stream, child, python, shared, pinned, kind, isShared, omitted } = place;
  const memory = kinds[kind].allocate(byteLength, context);
  const { buffer } = memory;
  const receivers: readonly Receiver[] = [
    { peer: child, suffix: '' },
    ...(python ? [{ peer: python, suffix: ', Python' } as const] : []),
  ];
  const channels: Channel[] = [];
  const close = async (): Promise<void> => {
    try {
      for (const channel of channels) channel.close();
      for (const { peer } of receivers) await tell(peer, { type: 'close' });
    } finally {
      memory[Symbol.dispose]();
      await context.flush();
    }
  };
  try {
    /** A way to hand over the buffer, whose last word is set before. */
    const way = (name: WayName, give: () => Promise<unknown>): OpenWay => ({
      name,
      handOver(value) {
        setLastWord(buffer, value);
        return timed(name, value, give);
      },
    });
    /** A way by copying to the beginning of host memory, which `send` hands over. */
    const copying = (
      name: WayName,
      host: Uint8Array<ArrayBuffer>,
      send: (bytes: Uint8Array) => Promise<unknown>,
    ): OpenWay => {
      const bytes = host.subarray(0, byteLength);
      return way(name, () => {
        buffer.copyToHostSync(bytes);
        return send(bytes);
      });
    };
    /** The ways that share, to a process. */
    const sharing = async ({ peer, suffix }: Receiver): Promise<(OpenWay | false)[]> => {
      const name: WayName = `channel${suffix}`;
      const channel = openOrOmit(
        omitted,
        name,
        () => Channel.create({ slots: 1, byteLength, deliver: 'all', context }),
        byteLength,
      );
      if (channel) channels.push(channel);
      await tell(peer, {
        type: 'open',
        byteLength,
        buffer: isShared ? buffer : undefined,
        channel,
      });
      return [
        isShared &&
          way(`connection${suffix}`, async () => {
            await peer.send(buffer);
            return receiveFrom(peer);
          }),
        channel !== undefined && {
          name,
          async handOver(value) {
            const slot = await channel.acquire();
            setLastWord(slot.buffer, value);
            const give = (): Promise<void> => {
              slot.publish({ stream });
              return channel.drained();
            };
            return timed(name, value, give, () => tell(peer, { type: 'seen' }));
          },
        },
      ];
    };
    const shares: (OpenWay | false)[] = [];
    for (const receiver of receivers) shares.push(...(await sharing(receiver)));
    const open: readonly (OpenWay | false | undefined)[] = [
      ...shares,
      copying('copying, socket', shared, (bytes) => {
        socketOf(child).write(bytes);
        return receiveFrom(child);
      }),
      copying('copying, shared memory', shared, () =>
        tell(child, { type: 'copied', isPinned: false }),
      ),
      pinned &&
        copying('copying, page-locked', new Uint8Array(pinned.buffer), () =>
          tell(child, { type: 'copied', isPinned: true }),
        ),
    ];
    return { ways: open.filter((each) => typeof each === 'object'), close };
  } catch (error) {
    await close().catch(() => {});
    throw error;
  }
}

// ---- The timer ----

/** How long a way hands over before it is the turn of the next one. */
const TURN_MS = 20;
/** Processes that slept in the turns of others are slow to wake: the first calls of a turn do not count. */
const UNTIMED_MS = 3;
const MIN_ROUNDS = 3;
const MAX_ROUNDS = 2000;
/** V8 compiles what runs often: the warm-up of the first size is so many times longer. */
const FIRST_WARM_UP = 5;

/** Lets the ways take turns, so that whatever changes meanwhile affects all of them. */
async function measure(
  open: readonly OpenWay[],
  byteLength: number,
  { budgetMs, warmUpMs }: BenchOptions,
  { watch, isFirst, nextWord }: { watch: Watch; isFirst: boolean; nextWord(): number },
): Promise<Figures[]> {
  const handOver = async ({ handOver: go }: OpenWay): Promise<number> => {
    // A signal is only seen in the event loop, which synchronous copies hold up.
    watch.signal.throwIfAborted();
    watch.refresh();
    return go(nextWord());
  };
  const runs = open.map((way) => ({ way, samples: [] as number[], spentMs: 0, latestMs: 0 }));
  const untilMs = isFirst ? FIRST_WARM_UP * warmUpMs : warmUpMs;
  for (const run of runs) {
    const begun = performance.now();
    do run.latestMs = await handOver(run.way);
    while (performance.now() - begun < untilMs);
  }
  const isLeft = ({ samples, spentMs }: (typeof runs)[number]): boolean =>
    samples.length < MIN_ROUNDS || (samples.length < MAX_ROUNDS && spentMs < budgetMs);
  while (runs.some(isLeft))
    for (const run of runs.filter(isLeft)) {
      const begun = performance.now();
      const spentMs = (): number => performance.now() - begun;
      while (run.latestMs < UNTIMED_MS && spentMs() < UNTIMED_MS) await handOver(run.way);
      do {
        run.latestMs = await handOver(run.way);
        run.samples.push(run.latestMs);
      } while (spentMs() < TURN_MS);
      run.spentMs += spentMs();
    }
  return runs.map(({ way: { name }, samples }) => figuresOf(name, byteLength, samples));
}
