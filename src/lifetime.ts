/** How resources are opened and closed: one `close()`, `closed`, `using` and finalizer for every resource. */

import { inspect } from 'node:util';
import { isTracing } from '../ffi/settings.ts';
import { ClosedError, CuffiError } from './errors.ts';
import { closedWord, type Details, describeObject } from './inspect.ts';
import { beginRelease, endRelease, shouldReport } from './lost-context.ts';
import { classNameOf, withArticle } from './validate.ts';

/** The keys of a resource's state and token in its object: copies and JSON leave symbols out. */
export const stateKey = Symbol('state');
export const tokenKey = Symbol('token');

/** How a {@link Resource} is opened. */
export interface ResourceInit {
  /** The owner's scope: closing the owner closes this resource. */
  readonly owner?: Scope | undefined;
  /**
   * Releases the resource to the driver; must not refer to the resource's object. Borrowed resources
   * have no release: closing forgets them.
   */
  readonly release?: Release | undefined;
}

/**
 * Releases what a resource had, and never refers to its object. A hot path passes an object that
 * knows what to release: a closure would cost one more allocation.
 */
export type Release = (() => void) | { release(): void };

/** Something that is opened once and closed once. */
export abstract class Resource implements Disposable {
  /** @internal */
  readonly [stateKey]: ResourceState;
  /** @internal */
  [tokenKey]: FinalizerToken | undefined;
  readonly #kind: string;

  protected constructor(kind: string, { owner, release }: ResourceInit) {
    this.#kind = kind;
    const trace = isTracing ? `opened at\n${callers(3)}` : undefined;
    const state = newResourceState(kind, owner, release, trace);
    this[stateKey] = state;
    // A resource without a release owns nothing: its owner need not close it.
    if (release) owner?.add(state);
    this[tokenKey] = release && FinalizerToken.take(state);
  }

  /** Whether it was closed, by itself or through its owner. */
  get closed(): boolean {
    return isClosed(this[stateKey]);
  }

  /** Whether `value` is a resource of that kind. Needs no import of its class. */
  static is(value: unknown, kind: string): boolean {
    return typeof value === 'object' && value !== null && #kind in value && value.#kind === kind;
  }

  /**
   * @internal Postpones the release until the returned function is called. The resource can still be
   * closed, and then counts as closed.
   *
   * @param name who needs the resource, in words
   * @param onClosed called when it is closed, for a user who may need nothing afterwards
   * @throws ClosedError
   */
  addKeepalive(name = 'a handle that is open', onClosed?: () => void): () => void {
    this.assertOpen();
    const state = this[stateKey];
    const keepalive = { name, onClosed };
    state.keepalives ??= new Set();
    state.keepalives.add(keepalive);
    return () => removeKeepalive(state, keepalive);
  }

  /** @internal Who postpones the release, in words: each name once. */
  get keepaliveNames(): string[] {
    const needing = [...(this[stateKey].keepalives ?? [])].filter(({ onClosed }) => !onClosed);
    return [...new Set(needing.map(({ name }) => name))];
  }

  /**
   * Returns what another object needs to own what this one owns. This one then counts as closed, and
   * releases nothing.
   *
   * @param reason the reason that later uses of this object report
   * @throws CuffiError while a keepalive exists, ClosedError
   */
  protected transferOwnership(reason: string): ResourceInit {
    this.assertOpen();
    const state = this[stateKey];
    if (hasKeepalives(state))
      throw new CuffiError(
        `this ${this.#kind} is in use by ${this.keepaliveNames.join(', ')}, which must release it first`,
      );
    const { owner, release } = state;
    this.#recycleToken();
    if (release) owner?.delete(state);
    state.closed = true;
    state.reason = reason;
    return { owner, release };
  }

  /** Releases the resource; the second call does nothing. */
  close(): void {
    this.#close();
  }

  /** @internal As {@link close}, with a reason that later uses report. */
  invalidate(reason: string): void {
    this.#close(reason);
  }

  #close(reason?: string): void {
    const state = this[stateKey];
    if (isClosed(state)) return;
    this.#recycleToken();
    closeOpen(state, reason);
  }

  /** Closes it at the end of a `using` scope. */
  [Symbol.dispose](): void {
    const state = this[stateKey];
    // Before, because the release may tell others why: see `closedMessage`.
    if (!state.closed) state.reason = BY_SCOPE;
    try {
      this.close();
    } finally {
      if (!state.closed) state.reason = undefined;
    }
  }

  toString(): string {
    return describeObject(this.displayName(), () => [...this.describe(), closedWord(this)]);
  }

  /** @internal The name of its class. */
  protected displayName(): string {
    return this[stateKey].kind;
  }

  /** @internal What it is, for printing, besides whether it is closed. May throw. */
  protected describe(): Details {
    return [];
  }

  [inspect.custom](): string {
    return this.toString();
  }

  /**
   * Returns a short description, so that logs and the reports of test runners can have the object. To send
   * it to another process, use `peer.send()` of cuffi/ipc, or send what `getIpcHandle()` returns.
   */
  toJSON(): string | object {
    try {
      return this.toString();
    } catch {
      return `${classNameOf(this)}(cannot be read)`;
    }
  }

  /**
   * Describes the object in template literals and for `String()`.
   *
   * @throws TypeError where JavaScript needs a number, and for `+`: the description is not an operand
   */
  [Symbol.toPrimitive](hint: string): string {
    if (hint === 'string') return this.toString();
    const name = this.displayName();
    throw new TypeError(
      `${withArticle(name)} is neither a number nor text, so operators cannot use it: ` +
        `${this.operandAdvice()}. \`\${…}\` and String() describe it`,
    );
  }

  /** @internal What to do instead of using the object with an operator. */
  protected operandAdvice(): string {
    return 'use its properties and methods';
  }

  #recycleToken(): void {
    this[tokenKey]?.recycle();
    this[tokenKey] = undefined;
  }

  /** @internal @throws ClosedError after close */
  assertOpen(): void {
    if (this.closed) throw this.closedError();
  }

  protected closedError(): ClosedError {
    const { reason, state } = this.#whyClosed();
    return new ClosedError(closedMessage(this.#kind, state, reason));
  }

  /** @internal A resource whose end closes this one as well: that of its memory, for example. */
  protected get closedWith(): Resource | undefined {
    return undefined;
  }

  #whyClosed(): { readonly reason: string; readonly state: ResourceState } {
    const state = this[stateKey];
    const { closedWith } = this;
    if (isClosed(state) || !closedWith) return { reason: reasonOf(state), state };
    const why = closedWith.#whyClosed();
    return { ...why, reason: `its ${closedWith.#kind} is closed: ${why.reason}` };
  }

  /** @internal Makes a leak warning name what the user has made, of which this is a part. */
  nameAsPartOf(kind: string): void {
    this[stateKey].kind = kind;
  }
}

/** The open resources of one owner, in the order in which they were opened. */
export class Scope {
  readonly #parent: Scope | undefined;
  readonly #closesWithParent: boolean;
  readonly #isContextLost: () => boolean;
  /** Stands for this scope in the parent, while something is open here. */
  #stateInParent: ResourceState | undefined;
  #newest: ResourceState | undefined;
  #size = 0;
  #currentEpoch: Epoch = { number: 0, isOver: false, reason: undefined };

  /**
   * @param parent the scope that the owner itself is in: discarding the parent discards this one
   * @param closesWithParent whether closing the parent closes all resources here
   * @param isContextLost whether the context of these resources is known to be lost; by default the
   * parent knows
   */
  constructor(
    parent?: Scope,
    closesWithParent = false,
    isContextLost: () => boolean = () => parent?.isContextLost ?? false,
  ) {
    this.#parent = parent;
    this.#closesWithParent = closesWithParent;
    this.#isContextLost = isContextLost;
  }

  /** Whether the context of these resources is known to be lost. */
  get isContextLost(): boolean {
    return this.#isContextLost();
  }

  /** How many open resources it lists; borrowed ones are not listed. */
  get size(): number {
    return this.#size;
  }

  /** @internal The kinds of the open resources, newest first. */
  get kinds(): string[] {
    const kinds: string[] = [];
    for (let each = this.#newest; each; each = each.older) kinds.push(each.kind);
    return kinds;
  }

  /** The epoch of what is opened now; {@link discardAll} of the outermost scope ends it. */
  get currentEpoch(): Epoch {
    return this.#parent === undefined ? this.#currentEpoch : this.#parent.currentEpoch;
  }

  /** Counts the epochs: what was opened in an earlier epoch is gone. */
  get epoch(): number {
    return this.currentEpoch.number;
  }

  /** @internal */
  add(state: ResourceState): void {
    const newest = this.#newest;
    state.older = newest;
    if (newest) newest.newer = state;
    this.#newest = state;
    this.#size += 1;
    if (this.#closesWithParent && this.#size === 1) this.#addToParent();
  }

  /** @internal The state must be in this scope, and of its epoch. */
  delete(state: ResourceState): void {
    const { older, newer } = state;
    if (older) older.newer = newer;
    if (newer) newer.older = older;
    else this.#newest = older;
    state.older = undefined;
    state.newer = undefined;
    this.#size -= 1;
    if (this.#size === 0) this.#deleteFromParent();
  }

  /** Closes all, newest first; tries all, and then throws the first error. */
  closeAll(reason: string): void {
    const states: ResourceState[] = [];
    for (let each = this.#newest; each; each = each.older) states.push(each);
    runAll(states.map((each) => () => closeIfOpen(each, reason)));
  }

  #addToParent(): void {
    const closeAll = (): void => this.closeAll(inParent.reason ?? 'its owner was closed');
    const inParent = newResourceState('Scope', this.#parent, closeAll, undefined);
    this.#stateInParent = inParent;
    this.#parent?.add(inParent);
  }

  #deleteFromParent(): void {
    const inParent = this.#stateInParent;
    this.#stateInParent = undefined;
    if (inParent && !isClosed(inParent)) inParent.owner?.delete(inParent);
  }

  /** Marks all as closed and releases nothing, as the driver already has. */
  discardAll(reason: string): void {
    closeCount += 1;
    const isOutermost = this.#parent === undefined;
    // A state that somebody keeps must not keep its neighbors.
    for (let each = this.#newest; each; ) {
      const { older } = each;
      each.older = undefined;
      each.newer = undefined;
      if (!isOutermost) discard(each, reason);
      each = older;
    }
    this.#newest = undefined;
    this.#size = 0;
    this.#deleteFromParent();
    if (!isOutermost) return;
    this.#currentEpoch.isOver = true;
    this.#currentEpoch.reason = reason;
    this.#currentEpoch = {
      number: this.#currentEpoch.number + 1,
      isOver: false,
      reason: undefined,
    };
  }
}

/**
 * Runs a release whose error nobody can catch: the error becomes a warning, unless it only repeats
 * that a context is lost.
 *
 * @param isContextLost whether the context of what is released is known to be lost
 */
export function releaseOrWarn(release: () => void, isContextLost = false): void {
  beginRelease();
  try {
    release();
  } catch (error) {
    if (shouldReport(error, isContextLost))
      process.emitWarning(`a release failed: ${error}`, { code: 'CUFFI_RELEASE' });
  } finally {
    endRelease();
  }
}

/** Counts the users of something that ends with the last of them. */
export class ReferenceCount {
  #count = 0;

  get count(): number {
    return this.#count;
  }

  /** Whether it has a user. */
  get isUsed(): boolean {
    return this.#count > 0;
  }

  /** Adds a user. */
  add(): void {
    this.#count += 1;
  }

  /** Removes a user. Returns whether it was the last. */
  remove(): boolean {
    this.#count -= 1;
    return this.#count === 0;
  }
}

/** Runs each step in order, whatever fails; then throws the first error. */
export function runAll(steps: Iterable<() => void>): void {
  const errors: unknown[] = [];
  for (const step of steps) {
    try {
      step();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}

/**
 * How often something was closed. Code that calls the caller's code between checking objects and using
 * them (a getter may close one) checks them again if this number has changed.
 */
export let closeCount = 0;

// ---- The state of a resource, which outlives its object, and the finalizers ----

/** What outlives a resource's object: it knows how to release, and never refers to the object. */
export interface ResourceState {
  /** What its user has made: its class, or that of the object that it is a part of. */
  kind: string;
  /** Undefined for what is borrowed, or was discarded. */
  release: Release | undefined;
  readonly owner: Scope | undefined;
  /** The owner's epoch in which the resource was opened: it is gone when that is over. */
  readonly epoch: Epoch;
  /** Where the resource was opened, and then where it was closed, with CUFFI_TRACE=1. */
  trace: string | undefined;
  closed: boolean;
  /** Who postpones the release; the first keepalive makes the set. */
  keepalives: Set<Keepalive> | undefined;
  /** Why it was closed, unless by its own `close()`. */
  reason: string | undefined;
  /** Its neighbors in the owner's scope: the one opened before, and the one after. */
  older: ResourceState | undefined;
  newer: ResourceState | undefined;
}

/**
 * The time between two resets. All states of it share this object, so that whether one was closed is
 * two reads, however many resources a reset takes.
 */
interface Epoch {
  readonly number: number;
  isOver: boolean;
  /** Why it is over. */
  reason: string | undefined;
}

/** The epoch of resources without an owner. */
const endlessEpoch: Epoch = { number: 0, isOver: false, reason: undefined };

/** A user of a resource who postpones its release. */
interface Keepalive {
  /** Who it is, in words. */
  readonly name: string;
  /** Called when the resource is closed; may remove the keepalive at once. */
  readonly onClosed: (() => void) | undefined;
}

/** The state of a resource that is being opened; no scope lists it yet. */
const newResourceState = (
  kind: string,
  owner: Scope | undefined,
  release: Release | undefined,
  trace: string | undefined,
): ResourceState => ({
  kind,
  release,
  owner,
  epoch: owner?.currentEpoch ?? endlessEpoch,
  trace,
  closed: false,
  keepalives: undefined,
  reason: undefined,
  older: undefined,
  newer: undefined,
});

/** Whether the resource was closed, or is gone with its owner. */
export const isClosed = (state: ResourceState): boolean => state.closed || state.epoch.isOver;

/** Why a resource is closed, if a `using` scope has closed it. */
const BY_SCOPE = 'its using scope ended';

/** Why a closed resource is closed, in words. */
const reasonOf = ({ epoch, reason }: ResourceState): string =>
  (epoch.isOver ? epoch.reason : reason) ?? 'close() was called';

/**
 * The message of a ClosedError: what closed the resource, and where. For those who outlive a resource
 * and must not refer to its object.
 *
 * @param kind the class of the resource
 * @param state undefined if there never was a resource
 */
export const closedMessage = (
  kind: string,
  state: ResourceState | undefined,
  reason: string | undefined = state && reasonOf(state),
): string =>
  state
    ? `this ${kind} is closed: ${reason}\n${state.trace ?? 'CUFFI_TRACE=1 shows where it was opened and closed.'}`
    : `this ${kind} is closed`;

/** The callers of a function of this file as lines of a stack, without so many innermost ones. */
const callers = (skipped: number): string =>
  new Error('here').stack
    ?.split('\n')
    .slice(1 + skipped)
    .join('\n') ?? '';

/** Marks a state as closed, with nothing left to release. */
function discard(state: ResourceState, reason: string): void {
  state.closed = true;
  state.reason = reason;
  state.release = undefined;
}

function closeIfOpen(state: ResourceState, reason: string): void {
  if (!isClosed(state)) closeOpen(state, reason);
}

/** Closes an open resource; the last keepalive, if there is one, releases it. */
function closeOpen(state: ResourceState, reason?: string): void {
  closeCount += 1;
  state.closed = true;
  if (reason !== undefined) state.reason = reason;
  if (isTracing) state.trace += `\nclosed at\n${callers(2)}`;
  if (state.release === undefined) return;
  state.owner?.delete(state);
  if (hasKeepalives(state)) for (const { onClosed } of [...(state.keepalives ?? [])]) onClosed?.();
  else runRelease(state.release, state.owner);
}

const hasKeepalives = ({ keepalives }: ResourceState): boolean =>
  keepalives !== undefined && keepalives.size > 0;

/** Removes a keepalive; the last one of a closed resource releases it. */
function removeKeepalive(state: ResourceState, keepalive: Keepalive): void {
  if (!state.keepalives?.delete(keepalive) || hasKeepalives(state)) return;
  if (state.closed && state.release && !state.epoch.isOver) runRelease(state.release, state.owner);
}

/** Runs a release. If the context is known to be lost, it fails silently. */
function runRelease(release: Release, owner: Scope | undefined): void {
  beginRelease();
  try {
    if (typeof release === 'function') release();
    else release.release();
  } catch (error) {
    if (shouldReport(error, owner?.isContextLost ?? false)) throw error;
  } finally {
    endRelease();
  }
}

let warned = false;

// V8 chooses when a finalizer runs. So it only queues the release, which runs on the main thread
// between two callbacks, and pushes the context that it needs.
const finalizers = new FinalizationRegistry<Finalizable>(({ state }) => {
  if (state === undefined || isClosed(state)) return;
  if (isTracing || !warned) {
    warned = true;
    process.emitWarning(`a ${state.kind} was garbage collected without close()`, {
      code: 'CUFFI_LEAK',
      detail: state.trace ?? 'CUFFI_TRACE=1 shows where each was opened.',
    });
  }
  setImmediate(() => releaseOrWarn(() => closeIfOpen(state, 'it was garbage collected')));
});

/** What a finalizer receives: the state of the collected object, unless that was closed. */
interface Finalizable {
  state: ResourceState | undefined;
}

const spareTokens: FinalizerToken[] = [];
const MAX_SPARE_TOKENS = 1024;

/**
 * What only the resource's object refers to, so that both are collected together; the finalizer then
 * receives the state. Tokens of closed objects are used again: without, allocating from a pool and
 * closing costs a quarter more (`npm run bench -- memory --case pool.allocate`, emulated driver).
 */
class FinalizerToken {
  /** It must not refer to the token, as the finalizers keep it. */
  readonly #finalizable: Finalizable = { state: undefined };

  private constructor() {
    finalizers.register(this, this.#finalizable);
  }

  /** Returns a token for an object that was opened. */
  static take(state: ResourceState): FinalizerToken {
    const token = spareTokens.pop() ?? new FinalizerToken();
    token.#finalizable.state = state;
    return token;
  }

  /** Ends the use of a token, as its object was closed. */
  recycle(): void {
    this.#finalizable.state = undefined;
    if (spareTokens.length < MAX_SPARE_TOKENS) spareTokens.push(this);
  }
}
