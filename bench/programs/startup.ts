/** A process that is started to be measured, from its parent's side. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { DriverChoice } from '../driver.ts';

const PROGRAM = fileURLToPath(new URL('./startup-child.mjs', import.meta.url));

/** What is started. */
export interface Startup {
  readonly what: 'cuffi' | 'import' | 'nothing';
  /** Node's own arguments. */
  readonly execArgv: readonly string[];
}

/** The nanoseconds of a start. */
export interface StartupTimes {
  /** From before the process is made until it says that it is done. */
  readonly process: number;
  /** Inside it: of the import, and of the import with the first allocation. */
  readonly imported: number;
  readonly allocated: number;
}

/** Starts a process and waits for its end. @throws Error for one that fails */
export async function startUp(
  { what, execArgv }: Startup,
  driver: DriverChoice,
): Promise<StartupTimes> {
  const env = { ...process.env, CUFFI_DRIVER: driver.name };
  const start = process.hrtime.bigint();
  const child = spawn(process.execPath, [...execArgv, PROGRAM, what], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const [answer] = (await Promise.race([once(child.stdout, 'data'), exitedEarly(child)])) as [
    Buffer,
  ];
  const end = process.hrtime.bigint();
  await exited;
  const [imported = Number.NaN, allocated = Number.NaN] = answer.toString().split(' ').map(Number);
  return { process: Number(end - start), imported, allocated };
}

async function exitedEarly(child: ChildProcess): Promise<never> {
  const [code, signal] = await once(child, 'close');
  throw new Error(`the started process ended by ${signal ?? `code ${code}`} before it answered`);
}
