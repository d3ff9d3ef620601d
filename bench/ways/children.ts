/** The second processes of hand-overs and copies, seen from the bench. */
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { type DeviceBuffer, PinnedBuffer, pin, Stream } from 'cuffi';
import { type CUdeviceptr, closeFd, createMemfd, cu, mapShared } from 'cuffi/ffi';
import {
  type Channel,
  type ChannelConsumer,
  type ChildPeer,
  spawnPeer,
  spawnPython,
  Timeline,
} from 'cuffi/ipc';
import type { DriverChoice } from '../results.ts';

/** The child's end of a pair of Unix sockets, for node:net. */
export const SOCKET_FD = 4;
/** Memory that the copying child shares with the bench. */
export const SHARED_FD = 5;

/** What the receiver is sent besides buffers. It replies with null, or with the echo. */
export type Order =
  /** Keeps buffers open, so that their memory stays mapped. */
  | { readonly keep: readonly DeviceBuffer[] }
  /** Closes what it keeps. */
  | { readonly drop: true }
  /** Whether it also closes the pool of each buffer. */
  | { readonly closePools: boolean }
  /** Sends a value back. */
  | { readonly echo: unknown }
  /** Compares all of the next buffer. */
  | { readonly compareNext: true };

/** What the copying child is sent: read the shared memory, through which of its two mappings. */
export type Copied = { readonly isPageLocked: boolean };

/** What the answering child is sent: the values to wait for and to signal. */
export interface Rounds {
  readonly first: number;
  readonly count: number;
  /** Whether it uses {@link RawWords} and the driver's calls alone. */
  readonly isRaw: boolean;
}

/** A page of two words in place of the two timelines, for the driver's calls alone. */
export class RawWords {
  readonly memory: PinnedBuffer;
  readonly #words: BigUint64Array;

  constructor(memory: PinnedBuffer) {
    this.memory = memory;
    this.#words = new BigUint64Array(memory.buffer, 0, 2);
  }

  /** Queues the store of a value. @returns the status */
  write({ handle }: Stream, side: 'ours' | 'theirs', value: number): number {
    return cu.cuStreamWriteValue64_v2(handle, this.#addressOf(side), value, 0);
  }

  /** Makes a stream wait for a value or a later one. @returns the status */
  wait({ handle }: Stream, side: 'ours' | 'theirs', value: number): number {
    return cu.cuStreamWaitValue64_v2(handle, this.#addressOf(side), value, WAIT_GEQ);
  }

  get answered(): number {
    return Number(Atomics.load(this.#words, 1));
  }

  #addressOf(side: 'ours' | 'theirs'): CUdeviceptr {
    return ((this.memory.devicePointer as number) + (side === 'ours' ? 0 : 8)) as CUdeviceptr;
  }
}
const WAIT_GEQ = 0;

/** What the consuming child is sent: a channel, how many slots to take ahead of which one, or which one to close. */
export type ReceivedChannelOrder =
  | {
      readonly channel: ChannelConsumer;
      readonly busyPollUs: number;
      readonly isAhead: boolean;
      /** Whether it copies a word of each slot to its host before it releases it. */
      readonly readsWord: boolean;
      /** How long the kernel takes that it queues for each slot. 0 for none. */
      readonly workUs: number;
    }
  | { readonly ahead: number; readonly count: number }
  | { readonly drop: number };

const START_TIMEOUT_MS = 60_000;

/** How a program is started. */
interface StartOptions {
  readonly program: string;
  readonly args: readonly string[];
  /** More descriptors, by their numbers in the child. */
  readonly fds?: Readonly<Record<number, number>>;
  /** This end polls its connection for so long before it sleeps. */
  readonly busyPollUs?: number;
}

/** Resolves when the program has opened the driver and its memory. */
async function start(
  driver: DriverChoice,
  { program, args, fds = {}, busyPollUs = 0 }: StartOptions,
): Promise<ChildPeer> {
  const stdio: (number | 'inherit' | 'ipc' | 'pipe')[] = ['inherit', 'inherit', 'inherit', 'ipc'];
  stdio[SOCKET_FD] = 'pipe';
  for (const [there, here] of Object.entries(fds)) stdio[Number(there)] = here;
  const env = { ...process.env, CUFFI_DRIVER: driver.name };
  const url = new URL(`../programs/${program}`, import.meta.url);
  const peer = program.endsWith('.py')
    ? spawnPython(url, { env, args, busyPollUs })
    : spawnPeer(url, { env, args: [...args], stdio, busyPollUs });
  // The exit reports a child that died.
  socketOf(peer)?.on('error', () => {});
  try {
    await peer.receive({ timeoutMs: START_TIMEOUT_MS });
  } catch (error) {
    await end(peer);
    throw error;
  }
  return peer;
}

/** Undefined for a child in Python. */
const socketOf = (peer: ChildPeer): Duplex | undefined =>
  (peer.process.stdio[SOCKET_FD] ?? undefined) as Duplex | undefined;

/** Kills a child; resolves when it has exited. */
async function end(peer: ChildPeer): Promise<void> {
  const { process: child } = peer;
  const isRunning = child.pid !== undefined && child.exitCode === null && child.signalCode === null;
  const exited = isRunning && once(child, 'exit');
  child.kill('SIGKILL');
  socketOf(peer)?.destroy();
  await exited;
  peer.close();
}

/** A process that reads the first word of each buffer that it is given, and returns that word. */
export class Receiver {
  readonly #peer: ChildPeer;
  #waiting: { resolve(answer: unknown): void; reject(error: Error): void } | undefined;

  private constructor(peer: ChildPeer) {
    this.#peer = peer;
    // One listener for all messages, so that the other ways are measured at their best.
    const answered = (answer: unknown): void => this.#waiting?.resolve(answer);
    socketOf(peer)?.on('data', answered);
    peer.process.on('message', answered);
    peer.process.once('exit', () =>
      this.#waiting?.reject(new Error('the child exited before it replied')),
    );
  }

  /** @param busyPollUs both ends poll the connection for so long before they sleep */
  static async start(driver: DriverChoice, busyPollUs = 0): Promise<Receiver> {
    const args = [String(busyPollUs)];
    return new Receiver(await start(driver, { program: 'receiver-child.ts', args, busyPollUs }));
  }

  /** A receiver in Python. @param busyPollUs this end polls the connection for so long before it sleeps */
  static async startPython(driver: DriverChoice, busyPollUs = 0): Promise<Receiver> {
    return new Receiver(
      await start(driver, { program: 'receiver.py', args: [String(busyPollUs)], busyPollUs }),
    );
  }

  /** Sends a buffer over the connection, after the work of a stream; returns the word. */
  async give(buffer: DeviceBuffer, stream?: Stream): Promise<unknown> {
    await this.#peer.send(buffer, stream && { stream });
    return this.#peer.receive();
  }

  /** Sends a descriptor by `process.send`; returns the word. */
  tell(descriptor: object): Promise<unknown> {
    return this.#answer(() => this.#peer.process.send(descriptor));
  }

  /** Sends an empty message over the connection and back. */
  async greet(): Promise<unknown> {
    await this.#peer.send(null);
    return this.#peer.receive();
  }

  /** Sends a value over the connection and back. */
  async exchange(value: unknown): Promise<unknown> {
    await this.#peer.send({ echo: value } satisfies Order);
    return this.#peer.receive();
  }

  /** Sends a value by `process.send` and back. */
  exchangeByProcessSend(value: object): Promise<unknown> {
    return this.tell({ echo: value });
  }

  /** Sends bytes through node:net and back. */
  echo(bytes: Uint8Array): Promise<unknown> {
    return this.#answer(() => (socketOf(this.#peer) as Duplex).write(bytes));
  }

  keep(...buffers: readonly DeviceBuffer[]): Promise<void> {
    return this.#order({ keep: buffers });
  }

  drop(): Promise<void> {
    return this.#order({ drop: true });
  }

  closePools(closePools: boolean): Promise<void> {
    return this.#order({ closePools });
  }

  /** The next buffer is compared as a whole; the receiver replies `COMPARED` if it is right. */
  compareNext(): Promise<void> {
    return this.#order({ compareNext: true });
  }

  end(): Promise<void> {
    return end(this.#peer);
  }

  async #order(order: Order): Promise<void> {
    await this.#peer.send(order);
    await this.#peer.receive();
  }

  #answer(ask: () => void): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      ask();
    });
  }
}

/** A process that copies bytes to its own device memory and returns the first word there. */
export class CopyingChild {
  readonly byteLength: number;
  readonly #peer: ChildPeer;
  readonly #memory: SharedMemory;
  #isEnded = false;

  private constructor(peer: ChildPeer, memory: SharedMemory, byteLength: number) {
    this.#peer = peer;
    this.#memory = memory;
    this.byteLength = byteLength;
  }

  static async start(driver: DriverChoice, byteLength: number): Promise<CopyingChild> {
    const fd = createMemfd('cuffi-bench', byteLength);
    const memory = new SharedMemory(fd, byteLength);
    const args = [String(byteLength)];
    const options = { program: 'copying-child.ts', args, fds: { [SHARED_FD]: fd } };
    try {
      return new CopyingChild(await start(driver, options), memory, byteLength);
    } catch (error) {
      memory.close();
      throw error;
    } finally {
      closeFd(fd);
    }
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }

  /** The memory to write before {@link share}. */
  memory({ isPageLocked }: Copied): Uint8Array {
    return isPageLocked ? this.#memory.pageLocked : this.#memory.pageable;
  }

  /** The child copies the shared memory to its device. */
  share(copied: Copied): Promise<unknown> {
    return this.#ask(copied);
  }

  /** Sends the bytes through the socket. */
  send(bytes: Uint8Array): Promise<unknown> {
    (socketOf(this.#peer) as Duplex).write(bytes);
    return this.#peer.receive();
  }

  async compareNext(): Promise<void> {
    await this.#ask(null);
  }

  /** May be called twice. */
  async end(): Promise<void> {
    if (this.#isEnded) return;
    this.#isEnded = true;
    await end(this.#peer);
    this.#memory.close();
  }

  async #ask(value: Copied | null): Promise<unknown> {
    await this.#peer.send(value);
    return this.#peer.receive();
  }
}

/** A process whose stream waits for each value of a timeline, and signals it on its own. */
export class Answering {
  readonly isEmulated: boolean;
  readonly stream: Stream;
  readonly ours: Timeline;
  readonly theirs: Timeline;
  readonly #peer: ChildPeer;
  #words: RawWords | undefined;
  #last = 0;

  private constructor(
    driver: DriverChoice,
    peer: ChildPeer,
    objects: { readonly stream: Stream; readonly ours: Timeline; readonly theirs: Timeline },
  ) {
    this.isEmulated = driver.emulated;
    this.#peer = peer;
    this.stream = objects.stream;
    this.ours = objects.ours;
    this.theirs = objects.theirs;
  }

  static async start(driver: DriverChoice): Promise<Answering> {
    const peer = await start(driver, { program: 'answering-child.ts', args: [] });
    const stream = Stream.create({ nonBlocking: true });
    const ours = Timeline.create();
    await peer.send(ours, { stream });
    const theirs = (await peer.receive({ stream })) as Timeline;
    return new Answering(driver, peer, { stream, ours, theirs });
  }

  /** The child queues so many further rounds. Returns the first value. */
  async queue(count: number, isRaw = false): Promise<number> {
    const first = this.#last + 1;
    this.#last += count;
    await this.#ask({ first, count, isRaw });
    return first;
  }

  /** The words for rounds by the driver's calls alone. */
  async words(): Promise<RawWords> {
    if (this.#words) return this.#words;
    const memory = PinnedBuffer.allocate(4096, { shareable: true, mapped: true });
    await this.#ask(memory);
    this.#words = new RawWords(memory);
    return this.#words;
  }

  async #ask(order: Rounds | PinnedBuffer): Promise<void> {
    await this.#peer.send(order, { stream: this.stream });
    await this.#peer.receive();
  }

  async end(): Promise<void> {
    await end(this.#peer);
    this.#words?.memory.close();
    for (const resource of [this.theirs, this.ours, this.stream]) resource.close();
  }
}

/** A process that consumes channels. */
export class ConsumingChild {
  readonly isEmulated: boolean;
  readonly #peer: ChildPeer;
  readonly #stream = Stream.create({ nonBlocking: true });
  #channels = 0;
  #made = 0;

  private constructor(driver: DriverChoice, peer: ChildPeer) {
    this.isEmulated = driver.emulated;
    this.#peer = peer;
  }

  /** @param program also channel.py, in Python */
  static async start(driver: DriverChoice, program = 'channel-child.ts'): Promise<ConsumingChild> {
    return new ConsumingChild(driver, await start(driver, { program, args: [] }));
  }

  /** Sends a channel; returns its number for {@link queueAhead} and {@link drop}. */
  async give(
    channel: Channel,
    { isAhead = false, readsWord = false, workUs = 0 } = {},
  ): Promise<number> {
    const { busyPollUs } = channel;
    await this.#ask({ channel, busyPollUs, isAhead, readsWord, workUs });
    this.#channels += 1;
    return this.#channels - 1;
  }

  /** The child closes a channel that it was sent, after this process has. Its memory would stay. */
  async drop(channel: number): Promise<void> {
    await this.#ask({ drop: channel });
  }

  /** Python makes a channel whose slots streams wait for; returns it with its number for {@link publish}. */
  async make(
    slots: number,
    byteLength: number,
    busyPollUs: number,
  ): Promise<{ readonly channel: ChannelConsumer; readonly number: number }> {
    const channel = (await this.#ask({ make: slots, byteLength, busyPollUs })) as ChannelConsumer;
    this.#made += 1;
    return { channel, number: this.#made - 1 };
  }

  /** Python publishes so many slots; returns the nanoseconds until all were released. */
  publish(channel: number, count: number): Promise<unknown> {
    return this.#ask({ publish: channel, count });
  }

  async closeMade(channel: number): Promise<void> {
    await this.#ask({ close: channel });
  }

  /** The child's stream waits for so many slots, and releases them. */
  async queueAhead(channel: number, count: number): Promise<void> {
    await this.#ask({ ahead: channel, count });
  }

  async end(): Promise<void> {
    await end(this.#peer);
    this.#stream.close();
  }

  async #ask(order: object): Promise<unknown> {
    const stream = this.#stream;
    await this.#peer.send(order as { readonly ahead: number }, { stream });
    return this.#peer.receive({ stream });
  }
}

/** Memory of both processes, mapped twice here: once pageable, once page-locked. */
class SharedMemory {
  readonly pageable: Uint8Array;
  readonly pageLocked: Uint8Array;
  readonly close: () => void;

  constructor(fd: number, byteLength: number) {
    const mappings = [mapShared(fd, byteLength), mapShared(fd, byteLength)];
    [this.pageable, this.pageLocked] = mappings.map((each) => new Uint8Array(each.view())) as [
      Uint8Array,
      Uint8Array,
    ];
    const lock = pin(this.pageLocked);
    this.close = () => {
      lock.close();
      for (const mapping of mappings) mapping.unmap();
    };
  }
}

/** Longer than a reply takes, so that neither end sleeps. */
const BUSY_POLL_US = 200;

/** The children of a pass: a receiver for all cases, which stays warm, and others. */
export class Children {
  readonly #driver: DriverChoice;
  #receiver: Receiver | undefined;
  #polling: Receiver | undefined;
  #python: Receiver | undefined;
  #pollingPython: Receiver | undefined;
  #copying: CopyingChild | undefined;
  #answering: Answering | undefined;
  #consuming: ConsumingChild | undefined;
  #pythonChannels: ConsumingChild | undefined;
  readonly #known = new Set<object>();

  constructor(driver: DriverChoice) {
    this.#driver = driver;
  }

  async receiver(): Promise<Receiver> {
    this.#receiver ??= await Receiver.start(this.#driver);
    return this.#receiver;
  }

  /** A receiver that polls its connection before it sleeps, as this end does. */
  async pollingReceiver(): Promise<Receiver> {
    this.#polling ??= await Receiver.start(this.#driver, BUSY_POLL_US);
    return this.#polling;
  }

  /** A receiver in Python. */
  async pythonReceiver(): Promise<Receiver> {
    this.#python ??= await Receiver.startPython(this.#driver);
    return this.#python;
  }

  /** The same; this end polls its connection before it sleeps. */
  async pollingPythonReceiver(): Promise<Receiver> {
    this.#pollingPython ??= await Receiver.startPython(this.#driver, BUSY_POLL_US);
    return this.#pollingPython;
  }

  async answering(): Promise<Answering> {
    this.#answering ??= await Answering.start(this.#driver);
    return this.#answering;
  }

  async consuming(): Promise<ConsumingChild> {
    this.#consuming ??= await ConsumingChild.start(this.#driver);
    return this.#consuming;
  }

  /** A process in Python that consumes channels, and produces into its own. */
  async pythonChannels(): Promise<ConsumingChild> {
    this.#pythonChannels ??= await ConsumingChild.start(this.#driver, 'channel.py');
    return this.#pythonChannels;
  }

  /** A new one is started if the size differs. */
  async copyingChild(byteLength: number): Promise<CopyingChild> {
    const { isEnded = true } = this.#copying ?? {};
    if (!isEnded && this.#copying?.byteLength === byteLength) return this.#copying;
    await this.#copying?.end();
    this.#copying = await CopyingChild.start(this.#driver, byteLength);
    return this.#copying;
  }

  /** True the first time that the receiver meets a way. */
  isNew(way: object): boolean {
    const isNew = !this.#known.has(way);
    this.#known.add(way);
    return isNew;
  }

  /** Ends all; they are started again when they are needed. */
  async end(): Promise<void> {
    const ended = [
      this.#receiver,
      this.#polling,
      this.#python,
      this.#pollingPython,
      this.#copying,
      this.#answering,
      this.#consuming,
      this.#pythonChannels,
    ];
    this.#pythonChannels = undefined;
    this.#python = undefined;
    this.#pollingPython = undefined;
    this.#consuming = undefined;
    this.#receiver = undefined;
    this.#polling = undefined;
    this.#answering = undefined;
    this.#known.clear();
    await Promise.all(ended.map((child) => child?.end()));
  }
}
