/** A pass, from the side of the run. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { Pass } from '../passes.ts';
import type { PassMessage } from './pass-messages.ts';

const PROGRAM = fileURLToPath(new URL('./pass-child.ts', import.meta.url));

/**
 * Runs one pass in a process of its own; `tell` hears of what it came to. Answers how it ended: undefined
 * where it went through.
 *
 * @param args those of the run
 * @param signal lets it end what it has started, and end
 */
export async function runPass(
  pass: Pass,
  args: readonly string[],
  tell: (message: PassMessage) => void,
  signal: AbortSignal,
): Promise<string | undefined> {
  signal.throwIfAborted();
  // Advanced: a median of no samples is no number, which JSON does not know.
  const child: ChildProcess = fork(PROGRAM, [`${pass.index}`, `${pass.of}`, ...args], {
    serialization: 'advanced',
  });
  // By the channel: a signal may have come to both.
  const stop = (): void => {
    if (child.connected) child.disconnect();
  };
  signal.addEventListener('abort', stop, { once: true });
  child.on('message', tell);
  // Both: what it told is heard before its channel ends, which may be after it.
  const [[code, killer]] = (await Promise.all([
    once(child, 'exit'),
    once(child, 'disconnect'),
  ])) as [[number | null, string | null], unknown];
  signal.removeEventListener('abort', stop);
  signal.throwIfAborted();
  if (code === 0) return undefined;
  return killer === null ? `code ${code}` : killer;
}
