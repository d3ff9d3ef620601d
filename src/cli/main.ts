#!/usr/bin/env node
/** The `cuffi` command. */
import { readCommandLine, USAGE, UsageError } from './command-line.ts';
import { chooseDriver } from './driver-choice.ts';
import { defaultKind, kinds } from './kinds.ts';
import { describeDriver, describeKind, describePlace, describeResult } from './report.ts';
import { placeOf, roundtrip } from './roundtrip.ts';

const CHILD_DEADLINE_MS = 30_000;

/** Answers whether all went well. */
async function main(argv: string[]): Promise<boolean> {
  const asked = readCommandLine(argv);
  if (!asked) {
    console.log(USAGE);
    return true;
  }
  const { elements, device: ordinal, json } = asked;
  const driver = chooseDriver(asked.driver);
  const say = (...lines: string[]): void => {
    if (!json) for (const line of lines) console.log(line);
  };
  say(describeDriver(driver));
  const place = placeOf(ordinal);
  say(...describePlace(place));
  const facts = {
    driver: driver.name,
    device: { ordinal, name: place.device.name, uuid: place.device.uuid },
    support: place.support,
  };
  const kind = asked.kind ?? defaultKind(place.device, place.support);
  const { supported, reason } = place.support[kinds[kind].way];
  if (!supported) {
    say(`This device cannot share ${kind} memory between processes: ${reason}. Nothing to show.`);
    if (json) console.log(JSON.stringify({ ...facts, result: null }));
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
  if (json) console.log(JSON.stringify({ ...facts, result }));
  return result.ok;
}

/** 128 and the number of SIGPIPE, which Node ignores: how a shell tells that a reader has gone. */
const READER_GONE = 141;

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // As head does, which has read enough: the user has what they want.
  if (error.code === 'EPIPE') process.exit(READER_GONE);
  console.error(`cuffi: the output cannot be written: ${error.message}`);
  process.exit(1);
});
// Nobody is left to be told; the exit code says it.
process.stderr.on('error', () => {});

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
