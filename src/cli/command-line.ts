/** The command line of `cuffi`. */
import { parseArgs } from 'node:util';
import { type KindName, kindNames } from './kinds.ts';

export const USAGE = `usage: cuffi roundtrip [options]

Shares a GPU buffer with a child process and back, without copying it.

  --elements N   32-bit elements in the buffer (default 16777216: 64 MiB)
  --kind K       the memory: pool, legacy or virtual (default pool where the device can
                 share pools, else what it can)
  --device N     the device, by its ordinal (default 0)
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of sentences
  --help         print this`;

/** An invalid command line: printed with the usage, exit code 2. */
export class UsageError extends Error {}

/** A parsed command line. */
export interface CommandLine {
  readonly elements: number;
  readonly device: number;
  readonly kind: KindName | undefined;
  readonly driver: string | undefined;
  readonly json: boolean;
}

/** Parses and checks the command line; returns undefined for `--help`. @throws UsageError */
export function readCommandLine(argv: readonly string[]): CommandLine | undefined {
  const { values, positionals } = parse(argv);
  if (values.help) return undefined;
  const [command, ...others] = positionals;
  if (command === undefined) throw new UsageError('no command given');
  if (command !== 'roundtrip') throw new UsageError(`there is no command '${command}'`);
  if (others.length > 0) throw new UsageError(`roundtrip takes no '${others.join(' ')}'`);
  return {
    elements: integer(values.elements, '--elements', 1, 2 ** 32),
    device: integer(values.device, '--device', 0, 1023),
    kind: kindOf(values.kind),
    driver: values.driver,
    json: values.json,
  };
}

function parse(argv: readonly string[]) {
  try {
    return parseArgs({
      args: [...argv],
      allowPositionals: true,
      options: {
        elements: { type: 'string', default: '16777216' },
        kind: { type: 'string' },
        device: { type: 'string', default: '0' },
        driver: { type: 'string' },
        json: { type: 'boolean', default: false },
        help: { type: 'boolean', default: false },
      },
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function integer(text: string, name: string, min: number, max: number): number {
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (!Number.isSafeInteger(value) || value < min || value > max)
    throw new UsageError(
      `${name} must be an integer from ${min} to ${max}, not ${JSON.stringify(text)}`,
    );
  return value;
}

function kindOf(text: string | undefined): KindName | undefined {
  const found = kindNames.find((name) => name === text);
  if (text !== undefined && !found)
    throw new UsageError(`--kind must be ${kindNames.join(' or ')}, not ${JSON.stringify(text)}`);
  return found;
}
