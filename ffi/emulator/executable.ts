/** A graph that is ready to be launched, and the memory that it has of its own. */
import type { Capture, GraphNode } from './capture.ts';
import type { Context } from './context.ts';
import type { Work } from './queues.ts';

/** Memory that graphs allocate and free; given back when nothing uses it any more. */
export class GraphMemory {
  readonly #free: () => void;
  #references = 0;

  constructor(giveBack: () => void) {
    this.#free = giveBack;
  }

  addReference(): void {
    this.#references += 1;
  }

  removeReference(): void {
    this.#references -= 1;
    if (this.#references === 0) this.#free();
  }

  /** Gives it back, whoever used it: their context has ended. */
  free(): void {
    if (this.#references > 0) this.#free();
    this.#references = Number.NEGATIVE_INFINITY;
  }
}

/** What a graph is made ready as. */
export class ExecutableGraph {
  readonly #nodes: GraphNode[];
  /** The nodes of the graph that it was made of, by which later calls name its own. */
  readonly #handles: readonly number[];
  readonly memory: GraphMemory;
  readonly context: Context;
  /** Launches that are queued, the oldest first: one runs when those before it are done. */
  readonly #launches: object[] = [];

  constructor(graph: Capture, memory: GraphMemory) {
    this.context = graph.origin.context;
    this.#nodes = [...graph.nodes];
    this.#handles = graph.nodes.map(({ handle }) => handle);
    this.memory = memory;
    memory.addReference();
  }

  /** What a stream does for one launch, with the nodes as they are now. */
  launch(): Work {
    const launch = {};
    const works = this.#nodes.map(({ work }) => work());
    this.#launches.push(launch);
    this.memory.addReference();
    let done = 0;
    return () => {
      if (this.#launches[0] !== launch) return false;
      for (; done < works.length; done += 1) if (!(works[done] as Work)()) return false;
      this.#launches.shift();
      this.memory.removeReference();
      return true;
    };
  }

  node(handle: number): GraphNode | undefined {
    return this.#nodes[this.#handles.indexOf(handle)];
  }

  /** Has a node do other work in later launches. */
  replace(handle: number, work: () => Work): void {
    const at = this.#handles.indexOf(handle);
    this.#nodes[at] = { ...(this.#nodes[at] as GraphNode), work };
  }

  /** Takes over the work of another graph; false, with nothing done, where it is of other kinds. */
  update({ nodes }: Capture): boolean {
    const isSame =
      nodes.length === this.#nodes.length &&
      nodes.every(({ kind }, at) => kind === this.#nodes[at]?.kind && isUpdatable(kind));
    if (isSame) this.#nodes.splice(0, nodes.length, ...nodes);
    return isSame;
  }

  destroy(): void {
    this.memory.removeReference();
  }
}

const isUpdatable = (kind: GraphNode['kind']): boolean => kind !== 'allocate' && kind !== 'free';
