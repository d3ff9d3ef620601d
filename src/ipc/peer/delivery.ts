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

  /** @param reached called when what the host had to wait for is done */
  constructor(session: Session, reached: () => void) {
    this.#session = session;
    this.#reached = reached;
  }

  /**
   * Answers false where the host must wait: then it is not given out yet.
   *
   * @param again called then when it can be
   */
  give({ value, objects, points }: ReceivedValue, to: Recipient, again?: () => void): boolean {
    try {
      if (points.length === 0 || this.#comesBehind(points, objects, to.stream)) {
        to.resolve(value);
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
