/** `cuffi bench`: its options, and what it prints and draws. */
import { accessSync, constants, statSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { Device } from '../device.ts';
import { type BenchResult, bench } from './bench.ts';
import type { Figures } from './bench-figures.ts';
import { drawFigures } from './bench-plot.ts';
import {
  CannotRunError,
  type Command,
  deviceOption,
  driverOption,
  InterruptedError,
  parseCommand,
  refuseArguments,
  UsageError,
} from './command.ts';
import { chooseDriver, describeDriver } from './driver-choice.ts';
import { print, printedWidth, printJson, showProgress } from './output.ts';
import { columns, heading, shortBytes, shortTime } from './table.ts';
import type { Line } from './text.ts';

export const benchCommand: Command = {
  summary: 'measures hand-overs of GPU memory to another process, by sharing and by copying',
  usage: `usage: cuffi bench [options]

Hands GPU buffers of several sizes to a second process, which reads a word of each on the
device: by sharing them (over a connection, through a channel) and by copying them (through
a socket, shared memory, page-locked memory). A time is that of the way there and back: from
when the data is ready until the other process has read the word and this one knows. It
takes less than a minute, and three times the largest size of GPU memory and of the host's; four
times with --python.

  --size S       a size, such as 64KiB, 1MiB or 1GiB, or several with commas between
                 them; may be repeated (default: six from 4 KiB to 1 GiB; with the
                 emulated driver four, to 16 MiB)
  --python       also share them with a process in Python, by the companion of this package:
                 CUFFI_PYTHON, the virtual environment's, or python3
  --svg FILE     also draw the medians, with logarithmic axes
  --device N     the device, by its ordinal (default 0)
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of a table
  --help         print this

Exit code: 0; 1 if nothing could be measured; 2 for wrong use; 130 after Ctrl-C.`,
  run,
};

// ---- The options ----

const KIB = 1 << 10;
const MIB = 1 << 20;
const DEFAULT_SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB];
const EMULATED_SIZES = DEFAULT_SIZES.slice(0, 4);
const UNITS: Readonly<Record<string, number>> = { '': 1, k: KIB, m: MIB, g: 1024 * MIB };
const [MIN_SIZE, MAX_SIZE] = [4, 2048 * MIB];

/** The parsed options. */
interface BenchCommandOptions {
  /** Ascending; undefined for those of the driver. */
  readonly sizes: readonly number[] | undefined;
  readonly svg: string | undefined;
  readonly python: boolean;
  readonly device: number;
  readonly driver: string | undefined;
  readonly json: boolean;
}

/** Parses and checks the options. @throws UsageError */
export function readOptions(argv: readonly string[]): BenchCommandOptions {
  const { values, positionals } = parseCommand(argv, {
    size: { type: 'string', multiple: true },
    python: { type: 'boolean', default: false },
    svg: { type: 'string' },
    device: { type: 'string', default: '0' },
    driver: { type: 'string' },
    json: { type: 'boolean', default: false },
  });
  refuseArguments('bench', positionals);
  const sizes = values.size?.flatMap((list) => list.split(',')).map(sizeOf);
  return {
    sizes: sizes && [...new Set(sizes)].sort((a, b) => a - b),
    svg: fileOf(values.svg),
    python: values.python,
    device: deviceOption(values.device),
    driver: driverOption(values.driver),
    json: values.json,
  };
}

function sizeOf(text: string): number {
  const [, number, unit = ''] = /^(\d{1,12})\s*(?:([kmg])(?:i?b)?|b)?$/i.exec(text.trim()) ?? [];
  const byteLength = Number(number) * (UNITS[unit.toLowerCase()] as number);
  if (!(byteLength >= MIN_SIZE && byteLength <= MAX_SIZE && byteLength % 4 === 0))
    throw new UsageError(
      `--size must be a size such as 64KiB, 1MiB or 1GiB, a multiple of 4 bytes up to ` +
        `${shortBytes(MAX_SIZE)}, not ${JSON.stringify(text)}`,
    );
  return byteLength;
}

function fileOf(path: string | undefined): string | undefined {
  if (path === '') throw new UsageError('--svg must be the path of a file, not ""');
  return path;
}

/** Finds out before the measurement what would prevent the picture. @throws CannotRunError */
function checkWritable(file: string): void {
  try {
    const isThere = statSync(file, { throwIfNoEntry: false });
    if (isThere?.isDirectory()) throw new Error('it is a folder');
    accessSync(isThere ? file : dirname(file), constants.W_OK);
  } catch (error) {
    throw new CannotRunError(`--svg ${file} cannot be written: ${(error as Error).message}`);
  }
}

// ---- What is printed ----

/** Ends each line of figures of the emulated driver. */
const NO_GPU = 'times mean nothing';

const speed = (bytesPerSecond: number | null): string =>
  bytesPerSecond === null ? '-' : (bytesPerSecond / 1e9).toPrecision(3);

/** The table: numbers to the right, in at most 80 columns. */
function describeFigures(figures: readonly Figures[], isEmulated: boolean): Line[] {
  const cells = figures.map(({ byteLength, way, rounds, medianMs, p95Ms, bytesPerSecond }) => [
    shortBytes(byteLength),
    way,
    shortTime(medianMs),
    shortTime(p95Ms),
    speed(bytesPerSecond),
    isEmulated ? NO_GPU : String(rounds),
  ]);
  const last = isEmulated ? 'NO GPU:' : 'ROUNDS';
  const head = heading('SIZE', 'WAY', 'MEDIAN', 'P95', 'GB/S', last);
  const isRight = (at: number): boolean => at !== 1 && !(at === 5 && isEmulated);
  return columns([head, ...cells], { isRight, width: printedWidth() });
}

const describeOmitted = ({ omitted }: BenchResult): string[] =>
  omitted.map(({ what, reason }) => `not measured: ${what}: ${reason}`);

// ---- The command ----

/** Approximate measuring and warm-up time for each way and size. The emulated driver only shows that it works. */
const GPU_TIME = { budgetMs: 500, warmUpMs: 100 };
const EMULATED_TIME = { budgetMs: 40, warmUpMs: 0 };

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Aborts `signal` when a signal ends the command. The second one, of any name, ends it at once, as without this. */
function interruption(): Disposable & { readonly signal: AbortSignal } {
  const controller = new AbortController();
  const stop = (): void => {
    for (const name of SIGNALS) process.off(name, listen);
  };
  const listen = (name: NodeJS.Signals): void => {
    stop();
    controller.abort(new InterruptedError(name));
  };
  for (const name of SIGNALS) process.on(name, listen);
  return { signal: controller.signal, [Symbol.dispose]: stop };
}

async function run(argv: readonly string[]): Promise<boolean> {
  const { sizes, svg, python, device: ordinal, driver: requested, json } = readOptions(argv);
  if (svg !== undefined) checkWritable(svg);
  const driver = chooseDriver(requested);
  const isEmulated = driver.name === 'emulated';
  const device = Device.get(ordinal);
  const lines = [`driver  ${describeDriver(driver)}`, `device  ${ordinal}: ${device.name}`];
  if (!json) print([...lines, '']);
  using interrupted = interruption();
  let result: BenchResult;
  try {
    result = await bench({
      sizes: sizes ?? (isEmulated ? EMULATED_SIZES : DEFAULT_SIZES),
      device: ordinal,
      driver,
      python,
      ...(isEmulated ? EMULATED_TIME : GPU_TIME),
      signal: interrupted.signal,
      onSize: (byteLength) => showProgress(`measuring ${shortBytes(byteLength)} ...`),
    });
  } finally {
    showProgress('');
  }
  const { figures } = result;
  if (json)
    printJson({
      driver: driver.name,
      // No number came from a GPU.
      isEmulated,
      device: { ordinal, name: device.name, uuid: device.uuid },
      ...result,
    });
  else
    print([
      ...(figures.length > 0 ? describeFigures(figures, isEmulated) : []),
      ...describeOmitted(result),
    ]);
  if (svg !== undefined && figures.length > 0)
    writeFileSync(svg, drawFigures(figures, { device: device.name, isEmulated }));
  return figures.length > 0;
}
