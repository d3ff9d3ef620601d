/** A pass, from the side of the run. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Pass } from '../passes.ts';
import type { Turn } from '../turns.ts';
import { UsageError } from '../usage.ts';
import type { PassMessage, PassReady } from './pass-messages.ts';

const HERE = fileURLToPath(new URL('../..', import.meta.url));
const PROGRAM = 'bench/programs/pass-child.ts';
/** What a checkout needs for its passes to run. */
const NEEDED = [PROGRAM, 'package.json', 'node_modules', 'dist/src/index.js'];

/** Another checkout whose passes can be run. @throws UsageError for a folder that is not a built one */
export function builtCheckout(folder: string): string {
  const missing = NEEDED.find((file) => !existsSync(join(folder, file)));
  if (missing === undefined) return resolve(folder);
  throw new UsageError(
    `${folder} is not a built checkout of cuffi: it has no ${missing}. Run npm ci there, or link ` +
      'node_modules and run npm run build',
  );
}

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
  /** The {@link builtCheckout} that it measures, by the bench there. Default: this one. */
  readonly checkout?: string | undefined;
}

/**
 * Runs one pass in a process of its own; `tell` hears of what it came to. Answers how it ended: undefined
 * where it went through.
 */
export async function runPass(
  pass: Pass,
  { name, args, signal, turn, checkout }: PassRun,
  tell: (message: PassMessage) => void,
): Promise<string | undefined> {
  signal.throwIfAborted();
  // Advanced: a median of no samples is no number, which JSON does not know.
  const child: ChildProcess = fork(
    join(checkout ?? HERE, PROGRAM),
    [`${pass.index}`, `${pass.of}`, name, ...args],
    { serialization: 'advanced', ...(checkout !== undefined && inCheckout(checkout)) },
  );
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

/** How a program of another checkout is started: with the loader, settings and commit of that one. */
function inCheckout(folder: string): { cwd: string; env: NodeJS.ProcessEnv } {
  const { CUFFI_COMMIT: _here, ...env } = process.env;
  // A folder inside a clone, but not one itself, would take the commit of that.
  const isClone = existsSync(join(folder, '.git'));
  return { cwd: folder, env: isClone ? env : { ...env, CUFFI_COMMIT: 'unknown' } };
}
