import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { contiguousStrides } from '../../array/layout.ts';
import { IpcError } from '../../errors.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import type { Channel } from '../channel/channel.ts';
import { ChannelConsumer } from '../channel/channel-consumer.ts';
import { checkLayout } from '../channel/message.ts';
import { Ring, Seat } from '../channel/ring.ts';
import { WakeSockets } from '../channel/wake-sockets.ts';
import type { AnyExported, DescriptorFields, HostFields } from '../descriptor.ts';
import { ChannelFlag } from '../protocol.ts';
import { OwnedFds, type ReceivedFds, type Sender } from './imported-object.ts';
import { type OpenOptions, openDescriptor } from './open.ts';
import { exportVirtual } from './virtual.ts';

/** The descriptors of a seat, before those of the slots. */
const SEAT_FDS = 4;

/** Exports a channel without a seat: {@link withSeat} adds that for each process. @throws IpcError */
export function exportChannel(channel: Channel): AnyExported {
  const { ring, memory, layout, stride, byteLength, deliver, isAhead, isReadOnly } =
    channel.exported;
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
export function openChannel(
  descriptor: HostFields<'channel'>,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender: Sender | undefined,
): ChannelConsumer {
  if (fds.numbers.length <= SEAT_FDS)
    throw new IpcError(
      `a channel needs more than ${SEAT_FDS} file descriptors, but ${fds.numbers.length} came with it`,
      undefined,
      'no-file-descriptor',
    );
  const { slots, stride, byteLength, flags } = descriptor;
  const layout = checkLayout(descriptor.layout, byteLength);
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
  const memory = openDescriptor(descriptor, owned, options, from);
  if (memory instanceof DeviceBuffer) return memory;
  throw new IpcError('received a channel whose slots are not memory');
}
