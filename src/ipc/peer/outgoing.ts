/** What a connection sends: a value becomes a message, and its GPU objects are leased to the peer. */

import { closeFd, isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { diagnostics, TrafficCounter } from '../../diagnostics.ts';
import { CuffiError, IpcError, prefixMessage } from '../../errors.ts';
import { orderedMemoryCount } from '../../memory/use-order.ts';
import type { Stream } from '../../stream.ts';
import { ByteWriter } from '../bytes.ts';
import type { Lease } from '../lease/export-table.ts';
import { type ForwardedObjects, forwardObjects } from '../lease/forward.ts';
import { HEADER_BYTE_LENGTH, PACKET_FDS } from '../protocol.ts';
import type { EncodedExport } from '../sharing/kind.ts';
import { bufferOf, isImported, labelOf, type Shareable } from '../sharing/kinds.ts';
import { exportForAnyPeer, prepareForPeer } from '../sharing/marshal.ts';
import { latest, type TimelinePoint } from '../timeline/words.ts';
import type { FramedSocket, MessageType } from '../wire/framed-socket.ts';
import { encodeValue, formatPath, type PlacedObject } from '../wire/value-encoder.ts';
import {
  type MessageSize,
  type ObjectEntry,
  queuedSize,
  typeOfMessage,
  writeObjectTable,
} from '../wire/value-message.ts';
import type { Control } from './control.ts';
import { sendable } from './sendable.ts';
import type { Session } from './session.ts';

const NONE: readonly never[] = [];

/** A message with a value. */
export interface OutgoingMessage extends MessageType {
  /** The stream whose work the receiver must wait for. Default: all known work. */
  readonly stream?: Stream | undefined;
  /** Called with the size of the message before it is sent. May throw. */
  readonly admit?: (size: MessageSize) => void;
}

/** The connection of an {@link Outgoing}. */
export interface OutgoingHost {
  /** Why nothing can be sent any longer. */
  readonly end: Error | undefined;
  /** Ends the connection. */
  fail(error: IpcError): void;
}

/** Objects that were leased to the peer, for the message that carries them. */
interface LeasedObjects {
  /** The file descriptors of the objects, and links. */
  readonly fds: readonly number[];
  /** Those of them that are closed once they are sent. The others remain their owners'. */
  readonly ownFds: readonly number[];
  /** Points behind the pending work on the objects. */
  readonly points: readonly TimelinePoint[];
  readonly leases: readonly Lease[];
  /** Pools that the peer gets with this message. */
  readonly newPools: readonly string[];
  /** What other processes own of the objects. */
  readonly forwarded: ForwardedObjects | undefined;
}

/** Sends values. */
export class Outgoing {
  readonly #session: Session;
  readonly #socket: FramedSocket;
  readonly #control: Control;
  readonly #host: OutgoingHost;
  /** All that was sent. */
  readonly traffic = new TrafficCounter();

  constructor(session: Session, socket: FramedSocket, control: Control, host: OutgoingHost) {
    this.#session = session;
    this.#socket = socket;
    this.#control = control;
    this.#host = host;
  }

  /**
   * Sends a value at once (then returns undefined), or queues it until there is room.
   *
   * @throws TypeError, RangeError as {@link encodeValue}; IpcError for GPU objects that cannot be
   * shared; ClosedError after the end
   */
  send(value: unknown, message: OutgoingMessage): Promise<void> | undefined {
    if (this.#host.end) throw this.#host.end;
    this.#socket.sendQueue.checkCapacity();
    return ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      // Getters of the value and memory managers run here. They may send on this connection, and
      // what they send goes out first. They may also close it.
      const placed = encodeValue(writer, value, sendable);
      const exported = placed.map(exportPlaced);
      if (this.#host.end) throw this.#host.end;
      const leased = placed.length > 0 ? this.#lease(writer, placed, exported, message) : undefined;
      try {
        return this.#post(writer, leased, message);
      } catch (error) {
        throw error instanceof SystemError ? this.#sendFailed(error) : error;
      }
    });
  }

  /** Writes a control block behind an encoded value, and posts both. */
  #post(
    writer: ByteWriter,
    leased: LeasedObjects | undefined,
    message: OutgoingMessage,
  ): Promise<void> | undefined {
    let restoreControl: (() => void) | undefined;
    const cancel = (): void => {
      if (leased) this.#cancel(leased);
      restoreControl?.();
    };
    try {
      restoreControl = this.#control.attach(writer, leased?.points);
      const fds = leased?.fds ?? NONE;
      const byteLength = writer.offset - HEADER_BYTE_LENGTH;
      const leases = leased?.leases ?? NONE;
      message.admit?.(queuedSize(byteLength, leases.length, fds.length));
      const acknowledged = leased?.forwarded?.acknowledged;
      const sending = this.#socket.post(message, writer.written, fds, cancel, acknowledged);
      this.#note(message, byteLength, leases);
      return sending;
    } catch (error) {
      cancel();
      throw error;
    } finally {
      leased?.ownFds.forEach(closeFd);
    }
  }

  #note({ kind }: OutgoingMessage, byteLength: number, leases: readonly Lease[]): void {
    this.traffic.add(byteLength, leases.length);
    if (!diagnostics.peerSend.isOn) return;
    diagnostics.peerSend.publish({
      pid: this.#session.process.pid,
      type: typeOfMessage(kind),
      byteLength,
      objects: leases.length,
      kinds: leases.map((lease) => labelOf(lease.kind)),
      sharedByteLength: leases.reduce((sum, lease) => sum + lease.byteLength, 0),
    });
  }

  /** Ends the connection after a failed send, and returns the error. */
  #sendFailed(error: SystemError): IpcError {
    const failure = new IpcError(`nothing can be sent to ${this.#session.peerName}`, error);
    this.#host.fail(failure);
    return failure;
  }

  // ---- Leases ----

  /** As {@link #leaseObjects}. A shortage of this process concerns only this value. */
  #lease(
    writer: ByteWriter,
    placed: readonly PlacedObject<Shareable>[],
    exported: readonly EncodedExport[],
    { stream }: OutgoingMessage,
  ): LeasedObjects {
    try {
      return this.#leaseObjects(writer, placed.map(objectOf), exported, stream);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      throw isShortage(error)
        ? new IpcError('the value cannot be sent', error, 'limit-exceeded')
        : this.#sendFailed(error);
    }
  }

  /**
   * Leases exported objects to the peer, and writes their table behind the value. The peer may
   * already have the pools of some objects, so nothing else may be exported to it before the
   * message is sent.
   *
   * @param exported what each object was exported as, for any process
   * @throws IpcError, RangeError, ClosedError, SystemError; then nothing is leased
   */
  #leaseObjects(
    writer: ByteWriter,
    objects: readonly Shareable[],
    exported: readonly EncodedExport[],
    stream: Stream | undefined,
  ): LeasedObjects {
    const { exports, process, sentPools } = this.#session;
    const sentBefore = sentPools.size;
    const forwarded = objects.some(isImported) ? forwardObjects(objects, process) : undefined;
    const ownFds: number[] = [...(forwarded?.links ?? NONE)];
    let leases: readonly Lease[] = NONE;
    try {
      leases = exports.add(objects, stream, exported);
      forwarded?.indices.forEach((index, at) => {
        (leases[index] as Lease).onEnd = forwarded.releases[at];
      });
      const fds: number[] = [];
      const entries: ObjectEntry[] = [];
      for (let at = 0; at < objects.length; at += 1) {
        const ready = prepareForPeer(
          this.#session,
          objects[at] as Shareable,
          exported[at] as EncodedExport,
        );
        const link = forwarded?.links[forwarded.indices.indexOf(at)];
        for (const fd of ready.fds) fds.push(fd);
        for (const fd of ready.ownFds ?? NONE) ownFds.push(fd);
        if (link !== undefined) fds.push(link);
        entries.push({
          bytes: ready.bytes,
          fdCount: ready.fds.length,
          hasLink: link !== undefined,
        });
      }
      checkFdCount(fds.length);
      const points = this.#readyPoints(objects, leases, stream);
      writeObjectTable(writer, { firstLease: (leases[0] as Lease).id, entries });
      return { fds, ownFds, points, leases, newPools: this.#poolsSentSince(sentBefore), forwarded };
    } catch (error) {
      ownFds.forEach(closeFd);
      if (leases.length > 0) exports.end(leases);
      else for (const release of forwarded?.releases ?? NONE) release();
      this.#forgetSentPools(this.#poolsSentSince(sentBefore));
      throw error;
    }
  }

  /** Ends leases whose message is never sent. */
  #cancel({ leases, newPools }: LeasedObjects): void {
    this.#session.exports.end(leases);
    this.#forgetSentPools(newPools);
  }

  /** The pools that were exported to this peer since there were so many. */
  #poolsSentSince(count: number): readonly string[] {
    const { sentPools } = this.#session;
    return sentPools.size > count ? [...sentPools.keys()].slice(count) : NONE;
  }

  /** Forgets pools that were exported for a message that is never sent. */
  #forgetSentPools(pools: readonly string[]): void {
    for (const pool of pools) {
      this.#session.sentPools.get(pool)?.();
      this.#session.sentPools.delete(pool);
    }
  }

  /** Returns points behind the pending work on objects. @throws CudaError, ClosedError */
  #readyPoints(
    objects: readonly Shareable[],
    leases: readonly Lease[],
    stream: Stream | undefined,
  ): TimelinePoint[] {
    const { timeline } = this.#session;
    if (stream) {
      if (orderedMemoryCount > 0) for (const object of objects) bufferOf(object)?.orderUse(stream);
      return timeline.pointsBehindStream(stream);
    }
    const points: TimelinePoint[] = [];
    const visited = new Set<object>();
    for (const [at, { workLocation }] of leases.entries()) {
      if (!workLocation) continue;
      const { context, stream: own } = workLocation;
      if (own && orderedMemoryCount > 0) bufferOf(objects[at] as Shareable)?.orderUse(own);
      if (visited.has(own ?? context)) continue;
      visited.add(own ?? context);
      if (own) points.push(...timeline.pointsBehindStream(own));
      else points.push(...timeline.pointsBehindContext(context));
    }
    return points.length > 1 ? latest(points) : points;
  }
}

const objectOf = ({ object }: PlacedObject<Shareable>): Shareable => object;

/** Exports an object for any process. @throws IpcError, ClosedError with its path in the value */
function exportPlaced({ object, path }: PlacedObject<Shareable>): EncodedExport {
  try {
    return exportForAnyPeer(object);
  } catch (error) {
    if (isShortage(error))
      throw new IpcError(`${formatPath(path)} cannot be sent`, error, 'limit-exceeded');
    if (error instanceof CuffiError) prefixMessage(error, formatPath(path));
    throw error;
  }
}

function checkFdCount(count: number): void {
  if (count > PACKET_FDS)
    throw new RangeError(
      `the value needs ${count} file descriptors (limit ${PACKET_FDS}): send fewer objects at a time`,
    );
}
