import { closeFd } from '../../../ffi/libc.ts';
import { processStartTime } from '../../../ffi/process.ts';
import { socketPair } from '../../../ffi/socket.ts';
import type { Shareable } from '../export.ts';
import type { Asked } from './adopting.ts';
import type { PeerProcess } from './peer-process.ts';
import { ownerOf } from './shared-object.ts';

/** Who has lent an object to this process: it is asked before that is passed on. */
export interface Lender {
  readonly process: PeerProcess;
  /**
   * Has it keep the object for another process too.
   *
   * @param link the lender's end, which is the callee's from now on
   * @param ours the other process's, which stays the caller's
   */
  adopt(pid: number, startTime: number, link: number, ours: number): Asked;
}

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const LENDER = Symbol('lender');

interface Borrowed {
  [LENDER]?: Lender;
}

/** Remembers who has lent what is open here. */
export function rememberLender(object: object, lender: Lender): void {
  (object as Borrowed)[LENDER] = lender;
}

const lenderOf = (object: Shareable): Lender | undefined => (ownerOf(object) as Borrowed)[LENDER];

/** Objects of others that go to a third process. */
export interface Passing {
  /** Which of the objects they are. */
  readonly kept: readonly number[];
  /** Of the link of each to its maker the end for the third process: whoever calls closes these. */
  readonly links: readonly number[];
  /** When all lenders keep it; undefined where there are none. */
  readonly agreed: Promise<unknown> | undefined;
  /** Of each: to be called, once, when the third process has given it back, or did not get it. */
  readonly over: readonly (() => void)[];
}

const nothing: Passing = { kept: [], links: [], agreed: undefined, over: [] };

/** Asks the lenders of what goes to a process. @throws SystemError */
export function passOn(objects: readonly Shareable[], to: PeerProcess): Passing {
  if (!objects.some(lenderOf)) return nothing;
  const lent = objects.map(lenderOf);
  // What goes back to its maker is its own.
  const kept = lent.flatMap((lender, at) => (lender && !isSame(lender.process, to) ? [at] : []));
  if (kept.length === 0) return nothing;
  const startTime = processStartTime(to.pid) ?? 0;
  const links: number[] = [];
  const asked: Asked[] = [];
  try {
    for (const at of kept) {
      const [theirs, ours] = socketPair();
      links.push(ours);
      asked.push((lent[at] as Lender).adopt(to.pid, startTime, theirs, ours));
    }
  } catch (error) {
    links.forEach(closeFd);
    for (const { over } of asked) over();
    throw error;
  }
  const agreed = Promise.all(asked.map(({ answered }) => answered));
  return { kept, links, agreed, over: asked.map(({ over }) => over) };
}

/** All processes of other pid namespaces have the pid 0 here: only one connection tells them apart. */
const isSame = (a: PeerProcess, b: PeerProcess): boolean =>
  a === b || (a.pid > 0 && a.pid === b.pid);
