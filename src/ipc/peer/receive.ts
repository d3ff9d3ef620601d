import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { Context } from '../../context.ts';
import { ClosedError, CuffiError, IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import type { Stream } from '../../stream.ts';
import { contextOf, discardImported } from '../sharing/kinds.ts';
import { importFromPeer } from '../sharing/marshal.ts';
import type { TimelinePoint } from '../timeline/point.ts';
import type { Contents, ScannedValue } from '../wire/value-decoder.ts';
import type { PeerState } from './peer-state.ts';

/** The caller that gets a value. */
export interface Recipient {
  /** The stream that will use the objects of the value. Default: the legacy default stream. */
  readonly stream: Stream | undefined;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/** Delivers values once their objects may be used, that is behind the peer's work on them. */
export class ValueReceiver {
  readonly #state: PeerState;
  readonly #onReady: () => void;
  #isWaiting = false;
  /** The value that is being built over several turns of the event loop: the first in the queue. */
  #building: ReceivedValue['contents'] | undefined;

  /** @param onReady called when the awaited work is done, or the value is built */
  constructor(state: PeerState, onReady: () => void) {
    this.#state = state;
    this.#onReady = onReady;
  }

  /**
   * Delivers a value. Returns false if the host must wait, or building takes longer: then the value
   * is not delivered yet.
   *
   * @param retry called once the value can be delivered
   */
  deliver(
    { contents, objects, points }: ReceivedValue,
    to: Recipient,
    retry?: () => void,
  ): boolean {
    if (this.#building === contents) return false;
    try {
      if (!contents.build(objects)) {
        this.#continueBuilding(contents, objects);
        return false;
      }
      if (points.length === 0 || this.#orderBehind(points, objects, to.stream)) {
        to.resolve(contents.value);
        return true;
      }
      if (!this.#state.isGone) {
        this.#wait(points, retry);
        return false;
      }
      to.reject(this.#state.goneError());
    } catch (error) {
      to.reject(error);
    }
    closeObjects(objects);
    return true;
  }

  /** Stops building, as nobody takes the value. */
  stop(): void {
    this.#building = undefined;
  }

  #continueBuilding(contents: ReceivedValue['contents'], objects: readonly object[]): void {
    this.#building = contents;
    setImmediate(() => {
      if (this.#building !== contents) return;
      if (!isBuilt(contents, objects)) {
        this.#continueBuilding(contents, objects);
        return;
      }
      this.#building = undefined;
      this.#onReady();
    });
  }

  #orderBehind(
    points: readonly TimelinePoint[],
    objects: readonly object[],
    stream: Stream | undefined,
  ): boolean {
    const { timeline, isGone } = this.#state;
    if (timeline.isReached(points)) return true;
    if (isGone) return false;
    if (stream) return timeline.wait(points, stream.context, stream);
    const contexts = new Set<Context>();
    for (const object of objects) {
      const context = contextOf(object);
      if (context) contexts.add(context);
    }
    return [...contexts].every((context) => timeline.wait(points, context, undefined));
  }

  #wait(points: readonly TimelinePoint[], retry: (() => void) | undefined): void {
    const reached = this.#state.whenReached(points);
    if (retry) void reached.then(retry);
    // This is the first value in the queue; later ones wait with it.
    else if (!this.#isWaiting) {
      this.#isWaiting = true;
      void reached.then(() => {
        this.#isWaiting = false;
        this.#onReady();
      });
    }
  }
}

/**
 * Whether nothing is left to build. The caller that takes the value gets the error of a failed
 * build.
 */
function isBuilt(contents: ReceivedValue['contents'], objects: readonly object[]): boolean {
  try {
    return contents.build(objects);
  } catch {
    return true;
  }
}

/** A value with its GPU objects. The caller that takes it owns them. */
export interface ReceivedValue {
  /** The value, whose plain data is built when it is taken. */
  readonly contents: Pick<Contents, 'build' | 'value'>;
  readonly objects: readonly object[];
  /** Points of the peer's work that must be reached before the objects are used. */
  readonly points: readonly TimelinePoint[];
}

/** A received value, or the error in its place. */
export type Arrival = ReceivedValue | { readonly error: unknown };

/**
 * As {@link openValue}, but returns the error: it concerns the caller that takes the value, not the
 * connection.
 *
 * @param refusalError the reason to open nothing, which is then returned
 */
export function openArrival(
  scanned: ScannedValue,
  fds: readonly number[],
  state: PeerState,
  refusalError?: IpcError,
): Arrival {
  try {
    return openValue(scanned, fds, state, refusalError);
  } catch (error) {
    return { error };
  }
}

/** As {@link openArrival}. The error tells which object of the value could not be opened. */
export function openValueArrival(
  scanned: ScannedValue,
  fds: readonly number[],
  state: PeerState,
): Arrival {
  let failed = 0;
  try {
    return openValue(scanned, fds, state, undefined, (at) => {
      failed = at;
    });
  } catch (error) {
    return { error: withPath(error, scanned, failed) };
  }
}

/**
 * Opens the GPU objects of a value. Takes ownership of the file descriptors in every case, and
 * releases what is not opened.
 *
 * @param onFailed called before the error is thrown, with the index of the object that failed
 * @throws IpcError for the first object that cannot be opened; then none is open
 */
function openValue(
  { contents, encodedObjects, control }: ScannedValue,
  fds: readonly number[],
  state: PeerState,
  refusalError: IpcError | undefined,
  onFailed?: (at: number) => void,
): ReceivedValue {
  const { imports } = state;
  // The leases were added when the value arrived.
  const first = control.leases?.first ?? 0;
  // Done before anything can fail: releasing a lease closes its link.
  const ownCount = fds.length - control.linkedObjects.length;
  for (const [at, slot] of control.linkedObjects.entries())
    imports.addLink(first + slot, fds[ownCount + at] as number);
  const objectFds = ownCount === fds.length ? fds : fds.slice(0, ownCount);
  const objects: object[] = [];
  let used = 0;
  try {
    if (refusalError) throw refusalError;
    for (const { descriptor, fdCount } of encodedObjects) {
      if (descriptor instanceof IpcError) throw descriptor;
      const own = fdCount === objectFds.length ? objectFds : objectFds.slice(used, used + fdCount);
      used += fdCount;
      const id = first + objects.length;
      const object = importFromPeer(descriptor, own, state, imports.importLease(id));
      imports.setOpened(id, object);
      objects.push(object);
    }
  } catch (error) {
    discardFds(objectFds.slice(used));
    closeObjects(objects);
    for (let at = objects.length; at < encodedObjects.length; at++) imports.release(first + at);
    onFailed?.(objects.length);
    throw error;
  }
  return { contents, objects, points: control.points };
}

/** Adds to the error which object of the value could not be opened. */
function withPath(error: unknown, { contents, encodedObjects }: ScannedValue, at: number): unknown {
  if (!(error instanceof CuffiError)) return error;
  const place = pathOf(contents, at, encodedObjects.length);
  if (error instanceof ClosedError)
    return new IpcError(
      `${place} is an object of this process, which came back after it was closed here`,
      error,
    );
  error.message = `${place}: ${error.message}`;
  return error;
}

/** The value is built only for the error message, so not if it is long. */
const MAX_SEARCHED_BYTE_LENGTH = 1 << 16;

/** Returns the path of an object in a value, e.g. `value.model.layers[3]`. */
function pathOf(contents: Contents, at: number, count: number): string {
  const unknown = `object ${at} of the value`;
  if (contents.byteLength > MAX_SEARCHED_BYTE_LENGTH) return unknown;
  const places = Array.from({ length: count }, () => ({}));
  try {
    return pathTo(places[at] as object, contents.buildAll(places), 'value') ?? unknown;
  } catch {
    // A name occurs twice. That error needs no report, as the value is refused already.
    return unknown;
  }
}

function pathTo(wanted: object, part: unknown, path: string): string | undefined {
  if (part === wanted) return path;
  if (typeof part !== 'object' || part === null || ArrayBuffer.isView(part)) return undefined;
  for (const [name, inner] of Object.entries(part)) {
    const found = pathTo(
      wanted,
      inner,
      Array.isArray(part) ? `${path}[${name}]` : `${path}.${name}`,
    );
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Closes objects that nobody takes. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects) releaseOrWarn(() => discardImported(object));
}
