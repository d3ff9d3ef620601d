#!/usr/bin/env node
/** The `cuffi` command as a program: its output and its exit code. */
import { runCommandLine } from './commands.ts';
import { printError } from './output.ts';

/** 128 plus the number of SIGPIPE, which Node ignores: the exit code for a closed pipe. */
const READER_GONE = 141;

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // The reader, such as `head`, has read enough.
  if (error.code === 'EPIPE') process.exit(READER_GONE);
  printError([`cuffi: the output cannot be written: ${error.message}`]);
  process.exit(1);
});
// Nobody reads errors any longer; the exit code remains.
process.stderr.on('error', () => {});

// Set only at the end: an event loop that runs empty before has failed.
process.exitCode = 1;
void runCommandLine(process.argv.slice(2)).then((code) => {
  process.exitCode = code;
});
