/** A pass, from the side of the run. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { Pass } from '../passes.ts';
import type { Turn } from '../turns.ts';
import type { PassMessage, PassReady } from './pass-messages.ts';

const PROGRAM = fileURLToPath(new URL('./pass-child.ts', import.meta.url));

/** How a pass is run. */
export interface PassRun {
  /** What the run is called, where there are several; else ''. */
  readonly name: string;
  /** Those of the run. */
  readonly args: readonly string[];
  /** Lets it end what it has started, and end. */
  readonly signal: AbortSignal;
  /** It measures in its turns alone. Default: at once. */
  readonly turn?: Turn | undefined;
}

/**
 * Runs one pass in a process of its own; `tell` hears of what it came to. Answers how it ended: undefined
 * where it went through.
 */
export async function runPass(
  pass: Pass,
  { name, args, signal, turn }: PassRun,
  tell: (message: PassMessage) => void,
): Promise<string | undefined> {
  signal.throwIfAborted();
  // Advanced: a median of no samples is no number, which JSON does not know.
  const child: ChildProcess = fork(PROGRAM, [`${pass.index}`, `${pass.of}`, name, ...args], {
    serialization: 'advanced',
  });
  // By the channel: a signal may have come to both.
  const stop = (): void => {
    if (child.connected) child.disconnect();
  };
  signal.addEventListener('abort', stop, { once: true });
  child.on('message', (message: PassMessage | PassReady) => {
    if (message.type !== 'ready') tell(message);
    else void Promise.resolve(turn?.next()).then(() => child.connected && child.send('go on'));
  });
  // Both: what it told is heard before its channel ends, which may be after it.
  const [[code, killer]] = (await Promise.all([
    once(child, 'exit'),
    once(child, 'disconnect'),
  ])) as [[number | null, string | null], unknown];
  turn?.over();
  signal.removeEventListener('abort', stop);
  signal.throwIfAborted();
  if (code === 0) return undefined;
  return killer === null ? `code ${code}` : killer;
}
