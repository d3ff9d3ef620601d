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
export interface CapturePosition {
  readonly predecessors: ReadonlySet<GraphNode>;
  readonly dependencies: ReadonlySet<GraphNode>;
}

const START_POSITION: CapturePosition = { predecessors: new Set(), dependencies: new Set() };

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
  readonly #positions = new Map<Stream, CapturePosition>();

  constructor(id: number, origin: Stream, isRelaxed: boolean) {
    this.id = id;
    this.origin = origin;
    this.isRelaxed = isRelaxed;
    this.join(origin, START_POSITION);
  }

  /** Whether a stream of a kind is captured. */
  includesStream(isOfKind: (stream: Stream) => boolean): boolean {
    return [...this.#positions.keys()].some(isOfKind);
  }

  add(stream: Stream, node: GraphNode): void {
    const { predecessors } = this.positionOf(stream);
    this.nodes.push(node);
    this.#positions.set(stream, {
      predecessors: new Set([...predecessors, node]),
      dependencies: new Set([node]),
    });
  }

  positionOf(stream: Stream): CapturePosition {
    return this.#positions.get(stream) ?? START_POSITION;
  }

  /** Has later work of a stream come after a place, too; the stream is captured from then on. */
  join(stream: Stream, { predecessors, dependencies }: CapturePosition): void {
    const own = this.positionOf(stream);
    stream.capture = this;
    this.#positions.set(stream, {
      predecessors: new Set([...own.predecessors, ...predecessors]),
      dependencies: new Set([
        ...[...own.dependencies].filter(
          (node) => !predecessors.has(node) || dependencies.has(node),
        ),
        ...[...dependencies].filter((node) => !own.predecessors.has(node)),
      ]),
    });
  }

  /** Ends it; answers whether the origin comes after all that was captured. */
  end(): boolean {
    const isJoined = this.positionOf(this.origin).predecessors.size === this.nodes.length;
    for (const stream of this.#positions.keys()) stream.capture = undefined;
    return isJoined;
  }
}
