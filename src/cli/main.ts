#!/usr/bin/env node
/** The `cuffi` command. */
import { parseArgs } from 'node:util';
import { checkInteger } from '../arguments.ts';
import { chooseDriver } from './driver-choice.ts';
import { defaultKind, type KindName, kindNames, kinds } from './kinds.ts';
import { describeDriver, describeKind, describePlace, describeResult } from './report.ts';
import { placeOf, roundtrip } from './roundtrip.ts';

const USAGE = `usage: cuffi roundtrip [options]

Shares a GPU buffer with a child process and back, without copying it.

  --elements N   32-bit elements in the buffer (default 16777216: 64 MiB)
  --kind K       the memory: pool, legacy or virtual (default pool where the device can
                 share pools, else what it can)
  --device N     the device, by its ordinal (default 0)
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda where there is a GPU and emulated where there is none)
  --json         print one JSON object instead of sentences
  --help         print this`;

const CHILD_DEADLINE_MS = 30_000;

/** What was typed is wrong: said with the usage, exit code 2. */
class UsageError extends Error {}

function parse(argv: string[]) {
  try {
    return parseArgs({
      args: argv,
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
  try {
    return checkInteger(text.trim() === '' ? Number.NaN : Number(text), name, min, max);
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function kindOf(text: string | undefined): KindName | undefined {
  const found = kindNames.find((name) => name === text);
  if (text !== undefined && !found)
    throw new UsageError(`--kind must be ${kindNames.join(', ')}, not ${JSON.stringify(text)}`);
  return found;
}

/** Answers whether all went well. */
async function main(argv: string[]): Promise<boolean> {
  const { values, positionals } = parse(argv);
  if (values.help) {
    console.log(USAGE);
    return true;
  }
  if (positionals.length !== 1 || positionals[0] !== 'roundtrip')
    throw new UsageError(
      positionals.length === 0
        ? 'no command given'
        : `there is no command '${positionals.join(' ')}'`,
    );
  const elements = integer(values.elements, '--elements', 1, 2 ** 32);
  const ordinal = integer(values.device, '--device', 0, 1023);
  const wish = kindOf(values.kind);

  const driver = chooseDriver(values.driver);
  const say = (...lines: string[]): void => {
    if (!values.json) for (const line of lines) console.log(line);
  };
  say(describeDriver(driver));
  const place = placeOf(ordinal);
  say(...describePlace(place));
  const facts = {
    driver: driver.name,
    device: { ordinal, name: place.device.name, uuid: place.device.uuid },
    support: place.support,
  };
  const kind = wish ?? defaultKind(place.device, place.support);
  const { supported, reason } = place.support[kinds[kind].way];
  if (!supported) {
    say(`This device cannot share ${kind} memory between processes: ${reason}. Nothing to show.`);
    if (values.json) console.log(JSON.stringify({ ...facts, result: null }));
    return true;
  }
  say(describeKind(kind));
  const result = await roundtrip({
    elements,
    kind,
    device: ordinal,
    driver,
    deadlineMs: CHILD_DEADLINE_MS,
  });
  say(...describeResult(result));
  if (values.json) console.log(JSON.stringify({ ...facts, result }));
  return result.ok;
}

// Success is said at the end: a loop that runs empty before has failed.
process.exitCode = 1;
main(process.argv.slice(2)).then(
  (ok) => {
    if (ok) process.exitCode = 0;
  },
  (error: unknown) => {
    if (error instanceof UsageError) {
      console.error(`cuffi: ${error.message}\n\n${USAGE}`);
      process.exitCode = 2;
      return;
    }
    console.error(`cuffi: ${error instanceof Error ? error.message : String(error)}`);
    process.exitCode = 1;
  },
);
