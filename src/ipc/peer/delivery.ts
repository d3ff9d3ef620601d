import type { Context } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import { contextOf } from '../lease/shared-object.ts';
import type { Point } from '../points/point.ts';
import { closeObjects, type ReceivedValue } from './open.ts';
import type { Session } from './session.ts';

/** One who is to get a value. */
export interface Recipient {
  /** Where the objects of the value will be used. Default: the legacy default stream. */
  readonly stream: Stream | undefined;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/** Gives values out behind the work of the other end that they come after. */
export class Delivery {
  readonly #session: Session;
  readonly #reached: () => void;
  #isHeldUp = false;
  /** What is built between turns of the loop: the first value of those that wait. */
  #building: ReceivedValue['contents'] | undefined;

  /** @param reached called when what the host had to wait for is done, or a value is built */
  constructor(session: Session, reached: () => void) {
    this.#session = session;
    this.#reached = reached;
  }

  /**
   * Answers false where the host must wait, or the value takes longer to build: then it is not given
   * out yet.
   *
   * @param again called then when it can be
   */
  give({ contents, objects, points }: ReceivedValue, to: Recipient, again?: () => void): boolean {
    if (this.#building === contents) return false;
    try {
      if (!contents.build(objects)) {
        this.#buildOn(contents, objects);
        return false;
      }
      if (points.length === 0 || this.#comesBehind(points, objects, to.stream)) {
        to.resolve(contents.value);
        return true;
      }
      if (!this.#session.isGone) {
        this.#wait(points, again);
        return false;
      }
      to.reject(this.#session.goneError());
    } catch (error) {
      to.reject(error);
    }
    closeObjects(objects);
    return true;
  }

  /** Nobody takes what is being built. */
  stop(): void {
    this.#building = undefined;
  }

  #buildOn(contents: ReceivedValue['contents'], objects: readonly object[]): void {
    this.#building = contents;
    setImmediate(() => {
      if (this.#building !== contents) return;
      if (!isBuilt(contents, objects)) {
        this.#buildOn(contents, objects);
        return;
      }
      this.#building = undefined;
      this.#reached();
    });
  }

  #comesBehind(
    points: readonly Point[],
    objects: readonly object[],
    stream: Stream | undefined,
  ): boolean {
    const { ordering, isGone } = this.#session;
    if (ordering.isReached(points)) return true;
    if (isGone) return false;
    if (stream) return ordering.wait(points, stream.context, stream);
    const contexts = new Set<Context>();
    for (const object of objects) {
      const context = contextOf(object);
      if (context) contexts.add(context);
    }
    return [...contexts].every((context) => ordering.wait(points, context, undefined));
  }

  #wait(points: readonly Point[], again: (() => void) | undefined): void {
    const reached = this.#session.reached(points);
    if (again) void reached.then(again);
    // The first value of those that wait: those behind it wait with it.
    else if (!this.#isHeldUp) {
      this.#isHeldUp = true;
      void reached.then(() => {
        this.#isHeldUp = false;
        this.#reached();
      });
    }
  }
}

/** Whether nothing is left to build; who takes it is told of what cannot be built. */
function isBuilt(contents: ReceivedValue['contents'], objects: readonly object[]): boolean {
  try {
    return contents.build(objects);
  } catch {
    return true;
  }
}
