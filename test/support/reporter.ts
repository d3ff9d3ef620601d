/**
 * What a run of the tests prints: how far it is, each failure with all its details, and a summary.
 * What tests print themselves is shown only for files with a failure. The last lines are those of
 * node's own reporter: `.ci/run` reads them.
 */
import { relative } from 'node:path';
import type { run } from 'node:test';
import { inspect } from 'node:util';

/** Where a reporter writes: `process.stdout`. */
export interface Output {
  write(text: string): unknown;
  readonly isTTY?: boolean;
  readonly columns?: number;
}

/** The least that a file or test has in all events and versions of node. */
interface TestEvent {
  readonly name: string;
  readonly file?: string | undefined;
  readonly line?: number | undefined;
  readonly column?: number | undefined;
  readonly skip?: string | boolean | undefined;
  readonly todo?: string | boolean | undefined;
  readonly details: {
    readonly duration_ms: number;
    readonly passed?: boolean | undefined;
    readonly error?: unknown;
  };
}

/** How often there is a line where none can be rewritten. */
const INTERVAL_MS = 10_000;
/** Runs with fewer files need no line for each tenth of them. */
const FEW_FILES = 20;
const LONGEST = 10;
/** Node prints the line where an error was thrown, which is the whole program where that is minified. */
const LONG_LINE = /^(.{500}).+/gm;

export class Reporter {
  readonly #output: Output;
  readonly #filesOf: ReadonlyMap<string, readonly string[]>;
  readonly #total: number;
  readonly #began = performance.now();
  /** The paths that run now, in the order in which they were started. */
  readonly #running = new Set<string>();
  readonly #seconds: (readonly [string, number])[] = [];
  readonly #skips = new Map<string, number>();
  readonly #failures: string[] = [];
  readonly #failedPaths = new Set<string>();
  /** What files have printed that have no failure yet. */
  readonly #kept = new Map<string, string[]>();
  /** The paths whose output is no longer kept. */
  readonly #shown = new Set<string>();
  /** The last lines of node's own reporter. */
  readonly #counts: string[] = [];
  #done = 0;
  #lastLine = 0;
  #lastTenth = 0;
  #rewritable = '';

  /** @param filesOf the test files that each path runs */
  constructor(output: Output, filesOf: ReadonlyMap<string, readonly string[]>) {
    this.#output = output;
    this.#filesOf = filesOf;
    this.#total = [...filesOf.values()].reduce((sum, files) => sum + files.length, 0);
  }

  /** Reports a run until its end. */
  listen(events: ReturnType<typeof run>): void {
    const timer = setInterval(() => this.progress(), 1000);
    events.on('test:dequeue', (event) => {
      if (this.#filesOf.has(event.name)) this.#running.add(event.name);
    });
    events.on('test:complete', (event) => {
      if (this.#filesOf.has(event.name)) this.#ended(event);
    });
    events.on('test:pass', ({ skip }) => {
      if (skip === undefined) return;
      const reason = typeof skip === 'string' && skip !== '' ? skip : 'no reason is given';
      this.#skips.set(reason, (this.#skips.get(reason) ?? 0) + 1);
    });
    events.on('test:fail', (event) => this.#failed(event));
    events.on('test:stdout', (event) => this.#said(event));
    events.on('test:stderr', (event) => this.#said(event));
    events.on('test:diagnostic', ({ file, message }) => {
      if (file === undefined) this.#counts.push(`ℹ ${message}\n`);
    });
    events.on('end', () => {
      clearInterval(timer);
      this.#summary();
    });
    events.resume();
  }

  /** Says how far the run is, if it is time to. */
  progress(): void {
    const now = performance.now();
    const running = [...this.#running].map((path) => this.#nameOf(path));
    const failed = this.#failedPaths.size;
    const line =
      `${seconds(now - this.#began)}: ${this.#done} of ${this.#total} files` +
      `${failed > 0 ? `, ${failed} with failures` : ''}; ${running.join(', ')}`;
    if (this.#output.isTTY) {
      this.#erase();
      this.#rewritable = line.slice(0, (this.#output.columns ?? 80) - 1);
      this.#output.write(this.#rewritable);
      return;
    }
    const tenth = this.#total < FEW_FILES ? 0 : Math.floor((10 * this.#done) / this.#total);
    if (this.#done === this.#total) return;
    if (tenth === this.#lastTenth && now - Math.max(this.#lastLine, this.#began) < INTERVAL_MS)
      return;
    this.#lastTenth = tenth;
    this.#lastLine = now;
    this.#output.write(`${line}\n`);
  }

  #ended({ name, details }: TestEvent): void {
    const files = this.#filesOf.get(name) ?? [];
    this.#running.delete(name);
    this.#done += files.length;
    this.#seconds.push([this.#nameOf(name), details.duration_ms]);
    // Its failures come once the files before it have ended: node reports in order.
    if (details.passed === false) this.#failedPaths.add(name);
    this.progress();
  }

  #failed(event: TestEvent): void {
    const { name, file, line, column, todo, details } = event;
    const error = details.error as { cause?: unknown; failureType?: unknown } | undefined;
    // A suite, whose tests have said what failed.
    if (error?.failureType === 'subtestsFailed') return;
    const path = this.#filesOf.has(name) ? name : this.#pathOf(file);
    if (path !== undefined) this.#show(path);
    const title = `✖ ${name} (${Math.round(details.duration_ms)}ms)${todo === undefined ? '' : ' # TODO'}`;
    const place =
      path === name ? this.#nameOf(name) : `${relative('.', file ?? '')}:${line}:${column}`;
    this.#failures.push(`${title}\n  ${place}\n`);
    this.#print(`\n${title}\n  ${place}\n${indented(detailsOf(error))}\n\n`);
  }

  #said({ file, message: text }: { readonly file?: string; readonly message: string }): void {
    const message = text.replace(LONG_LINE, '$1 ...');
    const path = this.#pathOf(file) ?? '';
    const kept = this.#kept.get(path);
    if (this.#shown.has(path)) this.#print(message);
    else if (kept === undefined) this.#kept.set(path, [message]);
    else kept.push(message);
  }

  /** Shows what a file has printed so far, and from now on as it comes. */
  #show(path: string): void {
    if (this.#shown.has(path)) return;
    this.#shown.add(path);
    const kept = this.#kept.get(path);
    this.#kept.delete(path);
    if (kept !== undefined) this.#print(`\n${this.#nameOf(path)} has printed:\n${kept.join('')}`);
  }

  #summary(): void {
    this.#erase();
    const out: string[] = [];
    if (this.#failures.length > 0) out.push('\nFailures:\n', ...this.#failures);
    if (this.#skips.size > 0) out.push('\nSkipped:\n');
    for (const [reason, count] of descending(this.#skips))
      out.push(`${String(count).padStart(6)}  ${reason}\n`);
    const slow = descending(this.#seconds).slice(0, LONGEST);
    if (slow.length > 1) out.push('\nThe longest files:\n');
    if (slow.length > 1)
      for (const [name, ms] of slow) out.push(`${seconds(ms).padStart(6)}  ${name}\n`);
    const lines = [...this.#kept.values()].flat().join('').split('\n').length - 1;
    if (lines > 0)
      out.push(`\nLines printed by files that passed, hidden without --verbose: ${lines}\n`);
    out.push(
      `\n${this.#done} of ${this.#total} files in ${seconds(performance.now() - this.#began)}\n`,
    );
    this.#output.write([...out, ...this.#counts].join(''));
  }

  /** Writes above the line that is rewritten. */
  #print(text: string): void {
    this.#erase();
    this.#output.write(text);
  }

  #erase(): void {
    if (this.#rewritable !== '') this.#output.write('\r\x1b[K');
    this.#rewritable = '';
  }

  #nameOf(path: string): string {
    const files = this.#filesOf.get(path) ?? [path];
    return files.length === 1 ? (files[0] as string) : `${files[0]} and ${files.length - 1} others`;
  }

  /** Which path runs a file: what node names is the compiled file or its source. */
  #pathOf(file = ''): string | undefined {
    const place = relative('.', file);
    for (const [path, files] of this.#filesOf)
      if (relative('.', path) === place || files.includes(place)) return path;
    return undefined;
  }
}

const seconds = (ms: number): string => `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;

const descending = (counts: Iterable<readonly [string, number]>): (readonly [string, number])[] =>
  [...counts].sort(([, a], [, b]) => b - a);

const indented = (text: string): string => text.replaceAll(/^(?=.)/gm, '  ');

/** Node wraps what a test has thrown in an error of its own. */
function detailsOf(error: { readonly cause?: unknown } | undefined): string {
  const cause = error?.cause ?? error;
  return typeof cause === 'string' ? cause : inspect(cause, { depth: 8 });
}
