/** What a child writes to stderr: passed on to that of this process, and its end kept for the error of the child. */
import type { ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';

const KEPT_BYTES = 4096;
/** How long the rest of the output may take after the exit: another process may hold the pipe. */
const REST_MS = 200;

/** Passes a child's stderr on, and keeps its end. */
export class ChildOutput {
  #kept: Buffer = Buffer.alloc(0);
  readonly #ended: Promise<unknown>;

  /** @param child its stderr is a pipe that nothing else reads */
  constructor({ stderr }: ChildProcess) {
    const stream = stderr as Readable;
    ignoreBrokenStderr();
    stream.on('data', (chunk: Buffer) => {
      // Where writing does not block (in a worker thread), the child waits for the reader of this process.
      if (!process.stderr.write(chunk)) {
        stream.pause();
        process.stderr.once('drain', () => stream.resume());
      }
      this.#kept = Buffer.concat([this.#kept, chunk]).subarray(-KEPT_BYTES);
    });
    this.#ended = new Promise((done) => {
      stream.once('close', done);
    });
    // The connection keeps this process alive, not the pipe.
    (stream as Readable & { unref?(): void }).unref?.();
  }

  /** Resolves with the end of the output, when it has ended. */
  async whenEnded(): Promise<string> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise((done) => {
      timer = setTimeout(done, REST_MS);
    });
    await Promise.race([this.#ended, late]);
    clearTimeout(timer);
    return this.#kept.toString();
  }
}

let isBrokenStderrIgnored = false;

/**
 * Keeps this process running if nobody reads its stderr any longer: a parent that passes on what its
 * children write, and a child whose parent has ended.
 */
export function ignoreBrokenStderr(): void {
  if (isBrokenStderrIgnored) return;
  isBrokenStderrIgnored = true;
  process.stderr.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
  });
}

/**
 * The line of a child's stderr that says why it has failed: the first line of the error that Node
 * printed last, else the last line, as Python prints it.
 */
export function lastWords(stderr: string): string | undefined {
  const lines = stderr.trimEnd().split('\n');
  const last = lines.at(-1) || undefined;
  if (!last?.startsWith('Node.js v')) return last;
  const error = lines.findLast((line) => /^\[?[\w$.]*(Error|Exception)\b[^:]*: \S/.test(line));
  return error ?? lines.slice(0, -1).findLast((line) => /^\S/.test(line));
}
