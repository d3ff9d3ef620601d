import { closeFd, SystemError } from '../../../ffi/linux/libc.ts';
import type { Stream } from '../../stream.ts';
import { ByteWriter } from '../bytes.ts';
import { forwardObjects } from '../lease/forward.ts';
import type { Lease } from '../lease/lease.ts';
import { type ControlBlock, type LeaseRange, writeControlBlock } from '../wire/control-block.ts';
import type { FramedSocket } from '../wire/framed-socket.ts';
import { FrameKind } from '../wire/frames.ts';
import { HEADER_BYTE_LENGTH, MAX_CONTROL_BYTE_LENGTH, MAX_VALUE_FDS } from '../wire/limits.ts';
import type { ControlSender } from './control.ts';
import type { PeerState } from './peer-state.ts';
import { type Encoded, encodeValue } from './value-encoder.ts';

/** The connection on which values are sent. */
interface SenderHost {
  /** @throws ClosedError, IpcError after the end */
  assertOpen(): void;
  /** Ends the connection after a socket error and returns the error to throw. */
  socketFailure(error: SystemError): unknown;
}

/** Sends values with leases for their objects and with points behind the work on these. */
export class ValueSender {
  readonly #state: PeerState;
  readonly #socket: FramedSocket;
  readonly #controlSender: ControlSender;
  readonly #host: SenderHost;

  constructor(
    state: PeerState,
    socket: FramedSocket,
    controlSender: ControlSender,
    host: SenderHost,
  ) {
    this.#state = state;
    this.#socket = socket;
    this.#controlSender = controlSender;
    this.#host = host;
  }

  /**
   * Sends a value at once (then returns undefined), or queues it until there is room.
   *
   * @throws TypeError, RangeError, IpcError as {@link encodeValue}; ClosedError after the end
   */
  send(
    value: unknown,
    stream?: Stream,
    kind: FrameKind = FrameKind.value,
  ): Promise<void> | undefined {
    this.#host.assertOpen();
    this.#socket.sendQueue.checkCapacity();
    return ByteWriter.use(HEADER_BYTE_LENGTH, (writer) =>
      encodeValue(writer, value, this.#state, (encoded) =>
        this.#sendEncoded(writer, encoded, stream, kind),
      ),
    );
  }

  #sendEncoded(
    writer: ByteWriter,
    { fds, objects }: Encoded,
    stream: Stream | undefined,
    kind: FrameKind,
  ): Promise<void> | undefined {
    // A getter in the value may have closed the connection.
    this.#host.assertOpen();
    const session = this.#state;
    const points = session.readyPoints(objects, stream);
    const { indices, links, acknowledged, releases } = forwardObjects(objects, session.process);
    let isLent = false;
    try {
      const all = links.length > 0 ? [...fds, ...links] : fds;
      checkFdCount(all.length);
      const leases = session.exports.add(objects, stream);
      isLent = true;
      for (const [at, which] of indices.entries()) (leases[which] as Lease).onEnd = releases[at];
      let news: ControlBlock | undefined;
      const drop = (): void => {
        session.exports.end(leases);
        if (news) session.restoreControl(news);
      };
      try {
        this.#controlSender.sendTimelinePage();
        writer.limit(MAX_CONTROL_BYTE_LENGTH);
        news = session.takeControl(points);
        writeControlBlock(writer, {
          ...news,
          linkedObjects: indices,
          leases: leaseRangeOf(leases),
        });
        return this.#socket.post(kind, writer.written, all, drop, acknowledged);
      } catch (error) {
        drop();
        throw error instanceof SystemError ? this.#host.socketFailure(error) : error;
      }
    } finally {
      links.forEach(closeFd);
      if (!isLent) for (const end of releases) end();
    }
  }
}

const leaseRangeOf = (leases: readonly Lease[]): LeaseRange | undefined =>
  leases[0] && { first: leases[0].id, count: leases.length };

function checkFdCount(count: number): void {
  if (count > MAX_VALUE_FDS)
    throw new RangeError(
      `the value has ${count} file descriptors, those included by which it is passed on: it may have ${MAX_VALUE_FDS}`,
    );
}
