import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { contiguousStrides } from '../../array/layout.ts';
import { sizeOf } from '../../array/shape.ts';
import { IpcError } from '../../errors.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { formatBytes } from '../../validate.ts';
import { Channel } from '../channel/channel.ts';
import { ChannelConsumer } from '../channel/channel-consumer.ts';
import { checkLayout } from '../channel/message.ts';
import { Ring, Seat } from '../channel/ring.ts';
import { WakeSockets } from '../channel/wake-sockets.ts';
import {
  type AnyExported,
  type DescriptorFields,
  type HostFields,
  type IpcLayout,
  readLayout,
} from '../descriptor.ts';
import { ChannelFlag, MAX_SLOTS } from '../protocol.ts';
import { type Kind, type OpenOptions, OwnedFds, type ReceivedFds, type Sender } from './kind.ts';
import { openDescriptor } from './open.ts';
import { exportVirtual, virtual } from './virtual.ts';

/** Channels. */
export const channel: Kind<Channel, HostFields<'channel'>> = {
  name: 'channel',
  includes: (object) => object instanceof Channel,
  check: checkChannel,
  isConstant: () => true,
  export: exportChannel,
  forPeer(object, encoded) {
    const seat = object.exported.takeSeatFds();
    return { ...encoded, fds: [...seat, ...encoded.fds], ownFds: seat };
  },
  publish: ({ memory }, fields) => virtual.publish?.(memory, fields.memory),
  keep: (object, name) => object.exported.addSeat(name),
  ownerOf: ({ memory }) => memory,
  byteLengthOf: ({ memory }) => memory.mappedByteLength,
  deviceOf: ({ device }) => device,
  // Others have its memory by the channel only.
  rangeOf: ({ memory: { buffer } }) => ({
    begin: buffer.readableAddress,
    end: buffer.readableAddress + buffer.byteLength,
    access: buffer.access,
  }),
  import: openChannel,
};

/** The descriptors of a seat, before those of the slots. */
const SEAT_FDS = 4;

/** @throws IpcError for slots beyond the memory, or messages beyond their slots */
function checkChannel(fields: HostFields<'channel'>): void {
  const { slots, stride, byteLength, memory, layout } = fields;
  const refuse = (why: string): never => {
    throw new IpcError(
      `the channel of process ${memory.pid} is invalid: ${why}`,
      undefined,
      'invalid-descriptor',
    );
  };
  if (slots > MAX_SLOTS) refuse(`it has ${slots} slots: at most ${MAX_SLOTS} are allowed`);
  if (slots * stride > memory.byteLength || byteLength > stride || memory.byteOffset > 0)
    refuse('its slots lie outside of its memory');
  if (layout === undefined) refuse('it has no layout');
  const { dtype } = readLayout(layout as IpcLayout, memory.pid);
  const needed = sizeOf((layout as IpcLayout).shape) * dtype.itemsize;
  if (needed > byteLength)
    refuse(`an array of ${formatBytes(needed)} does not fit into a slot of ${byteLength}`);
}

/** Exports a channel without a seat, which each process gets of its own. @throws IpcError */
function exportChannel(object: Channel): AnyExported {
  const { ring, memory, layout, stride, byteLength, deliver, isAhead, isReadOnly } =
    object.exported;
  const buffer = isReadOnly ? memory.buffer.readOnly() : memory.buffer;
  const { descriptor, fds } = exportVirtual(buffer, memory);
  return {
    descriptor: {
      kind: 'channel',
      slots: ring.slots,
      stride,
      byteLength,
      layout: {
        dtype: layout.dtype.name,
        shape: layout.shape,
        strides: contiguousStrides(layout.shape, layout.dtype.itemsize),
      },
      flags: (deliver === 'one' ? ChannelFlag.toOne : 0) | (isAhead ? ChannelFlag.ahead : 0),
      memory: descriptor,
    },
    fds,
  };
}

/** Opens a channel that another process has sent, and whose fields are consistent. @throws IpcError */
function openChannel(
  descriptor: HostFields<'channel'>,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender?: Sender,
): ChannelConsumer {
  if (fds.numbers.length <= SEAT_FDS)
    throw new IpcError(
      `a channel needs more than ${SEAT_FDS} file descriptors, but ${fds.numbers.length} came with it`,
      undefined,
      'no-file-descriptor',
    );
  const { slots, stride, byteLength, flags } = descriptor;
  const layout = checkLayout(descriptor.layout as IpcLayout, byteLength);
  const isAhead = (flags & ChannelFlag.ahead) !== 0;
  const [ringFd, seatFd, receiveEnd, sendEnd, ...slotFds] = fds.take() as SeatFds;
  const left = new Set([ringFd, seatFd, receiveEnd, sendEnd]);
  const taken = (fd: number): number => {
    left.delete(fd);
    return fd;
  };
  const opened: Disposable[] = [];
  try {
    const memory = openSlots(descriptor.memory, slotFds, options, sender);
    opened.push(memory);
    const ring = Ring.accept(taken(ringFd), { slots, hasRecords: !isAhead });
    opened.push(ring.words);
    const seat = Seat.accept(taken(seatFd), slots, isAhead);
    opened.push(seat.words);
    const lease = sender?.lease;
    return new ChannelConsumer({
      ring,
      seat,
      memory,
      layout,
      byteLength,
      stride,
      deliver: (flags & ChannelFlag.toOne) === 0 ? 'all' : 'one',
      isAhead,
      openSockets: (onWake) =>
        WakeSockets.accept({ receiveEnd: taken(receiveEnd), sendEnd: taken(sendEnd) }, onWake),
      onReleased: lease && (() => lease.released()),
    });
  } catch (error) {
    for (const part of opened) part[Symbol.dispose]();
    throw error;
  } finally {
    discardFds([...left]);
  }
}

type SeatFds = [
  ring: number,
  seat: number,
  receiveEnd: number,
  sendEnd: number,
  ...slots: number[],
];

/** Opens the memory of the slots. Owns the descriptors in every case. @throws IpcError */
function openSlots(
  descriptor: DescriptorFields<'virtual'>,
  fds: readonly number[],
  options: Omit<OpenOptions, 'fds'>,
  sender: Sender | undefined,
): DeviceBuffer {
  using owned = new OwnedFds(fds, false);
  // The lease is on the whole channel.
  const from = sender && { ...sender, lease: undefined };
  const memory = openDescriptor(virtual, descriptor, owned, options, from);
  if (memory instanceof DeviceBuffer) return memory;
  throw new IpcError('received a channel whose slots are not memory');
}
