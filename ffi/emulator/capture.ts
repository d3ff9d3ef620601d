/** Work of streams that is written down in place of being done: what a graph is made of. */
import type { Stream, Work } from './queues.ts';

/** What kinds of work there are: an update must find the same ones. */
export type NodeKind =
  | 'kernel'
  | 'copy'
  | 'fill'
  | 'value'
  | 'host'
  | 'allocate'
  | 'free'
  | 'graph'
  | 'other';

/** One piece of work of a graph. */
export interface GraphNode {
  readonly handle: number;
  readonly kind: NodeKind;
  /** As {@link Work}, of one launch: made anew for each, so that it can be begun again. */
  readonly work: () => Work;
}

/** A place in a capture: all that comes before it, and what new work there depends on. */
export interface Place {
  readonly before: ReadonlySet<GraphNode>;
  readonly tails: ReadonlySet<GraphNode>;
}

const START: Place = { before: new Set(), tails: new Set() };

/** A capture that is open, or the graph that came of it. */
export class Capture {
  readonly id: number;
  readonly origin: Stream;
  /** Whether calls that are not of its streams can end it, too. */
  readonly isRelaxed: boolean;
  /** In the order in which they were captured, which is one that they can be done in. */
  readonly nodes: GraphNode[] = [];
  /** Whether something was asked that no capture survives. */
  isInvalid = false;
  readonly #places = new Map<Stream, Place>();

  constructor(id: number, origin: Stream, isRelaxed: boolean) {
    this.id = id;
    this.origin = origin;
    this.isRelaxed = isRelaxed;
    this.join(origin, START);
  }

  /** Whether a stream of a kind is captured. */
  has(isOfKind: (stream: Stream) => boolean): boolean {
    return [...this.#places.keys()].some(isOfKind);
  }

  add(stream: Stream, node: GraphNode): void {
    const { before } = this.placeOf(stream);
    this.nodes.push(node);
    this.#places.set(stream, {
      before: new Set([...before, node]),
      tails: new Set([node]),
    });
  }

  placeOf(stream: Stream): Place {
    return this.#places.get(stream) ?? START;
  }

  /** Has later work of a stream come after a place, too; the stream is captured from then on. */
  join(stream: Stream, { before, tails }: Place): void {
    const own = this.placeOf(stream);
    stream.capture = this;
    this.#places.set(stream, {
      before: new Set([...own.before, ...before]),
      tails: new Set([
        ...[...own.tails].filter((node) => !before.has(node) || tails.has(node)),
        ...[...tails].filter((node) => !own.before.has(node)),
      ]),
    });
  }

  /** Ends it; answers whether the origin comes after all that was captured. */
  end(): boolean {
    const isJoined = this.placeOf(this.origin).before.size === this.nodes.length;
    for (const stream of this.#places.keys()) stream.capture = undefined;
    return isJoined;
  }
}
