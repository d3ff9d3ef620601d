/**
 * The second process of `cuffi bench`: `bench-child.ts DEVICE BYTES`. It reads the last word of each
 * buffer on the device, which a copy writes last, and replies with that word. A reply that is a string
 * says what failed.
 */
import { Socket } from 'node:net';
import { mapShared } from '../../ffi/linux/libc.ts';
import { Context } from '../context.ts';
import type { ChannelConsumer } from '../ipc/channel/channel-consumer.ts';
import { parentPeer } from '../ipc/peer/spawn.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import type { PinnedBuffer } from '../memory/pinned.ts';
import { Stream } from '../stream.ts';
import { MEMORY_FD, type Order, SOCKET_FD } from './bench-messages.ts';
import { serveParent } from './serve-parent.ts';

const [deviceArgument, bytesArgument] = process.argv.slice(2);
const context = Context.primary(Number(deviceArgument));
const mostBytes = Number(bytesArgument);
const stream = Stream.create({ context, nonBlocking: true });
const shared = new Uint8Array(mapShared(MEMORY_FD, mostBytes).view());
const received = new Uint8Array(mostBytes);
const parent = parentPeer<DeviceBuffer | Order<ChannelConsumer>, number | null | string>();

let pinned: PinnedBuffer | undefined;
/** Kept, so that it stays mapped. */
let kept: DeviceBuffer | undefined;
/** Where copies end. */
let own: DeviceBuffer | undefined;
let channel: ChannelConsumer | undefined;
let consumed: Promise<void> | undefined;
/** The last word of the last message of the channel. */
let seenInChannel = 0;

const word = new Uint32Array(1);
function lastWordOf(buffer: DeviceBuffer): number {
  buffer.subarray(buffer.byteLength - 4).copyToHostSync(word);
  return word[0] as number;
}

/** Copies the beginning of host memory to the device. Returns the last word that arrived there. */
function copied(host: Uint8Array): number {
  if (!own) throw new Error('nothing is open');
  own.copyFromSync(host.subarray(0, own.byteLength));
  return lastWordOf(own);
}

function pageLocked(): Uint8Array {
  if (!pinned) throw new Error('no page-locked memory is open');
  return new Uint8Array(pinned.buffer);
}

async function consume(messages: ChannelConsumer): Promise<void> {
  for await (const slot of messages) {
    seenInChannel = lastWordOf(slot.buffer);
    slot.release({ stream });
  }
}

/** Closes what was opened for one size. The parent has already closed the channel. */
async function closeAll(): Promise<null> {
  await consumed;
  channel?.close();
  kept?.close();
  own?.close();
  [channel, consumed, kept, own] = [undefined, undefined, undefined, undefined];
  await context.flush();
  return null;
}

async function obey(order: Order<ChannelConsumer>): Promise<number | null> {
  switch (order.type) {
    case 'page-locked':
      pinned = order.pinned;
      return null;
    case 'open':
      own = DeviceBuffer.allocate(order.byteLength, { context });
      kept = order.buffer;
      channel = order.channel;
      consumed = channel && consume(channel);
      return null;
    case 'copied':
      return copied(order.isPinned ? pageLocked() : shared);
    case 'seen':
      return seenInChannel;
    case 'close':
      return closeAll();
  }
}

const socket = new Socket({ fd: SOCKET_FD, readable: true, writable: true });
let length = 0;
socket.on('data', (chunk: Uint8Array) => {
  received.set(chunk, length);
  length += chunk.byteLength;
  if (length !== own?.byteLength) return;
  length = 0;
  // The reply cannot be sent only if the parent has exited.
  void parent.send(copied(received)).catch(() => {});
});
socket.on('error', () => {});
// Ctrl-C and a hang-up reach all processes of a terminal: the parent ends this one, and says why.
for (const name of ['SIGINT', 'SIGHUP']) process.on(name, () => {});
// The default action of the signal would skip the cleanup at exit.
process.on('SIGTERM', () => process.exit());

async function serve(value: DeviceBuffer | Order<ChannelConsumer>): Promise<number | null> {
  if (!(value instanceof DeviceBuffer)) return obey(value);
  const seen = lastWordOf(value);
  value.close();
  return seen;
}

await serveParent(parent, null, serve, (message) => message);
process.exit();
