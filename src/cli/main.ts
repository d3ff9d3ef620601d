#!/usr/bin/env node
/** The `cuffi` command as a program: its output, its exit code, and the compile cache. */
import { homedir } from 'node:os';
import { dirname, isAbsolute, join } from 'node:path';

/** Of `node:module` from Node 22.1 on, which the declarations of Node 20 lack. */
interface CompileCache {
  enableCompileCache?(folder: string): { readonly directory?: string };
}

/**
 * Keeps what V8 compiles for the next command and for the children of this one. In a folder of this user, because
 * V8 trusts what it finds there. Does nothing before Node 22.1, and where that folder cannot be written.
 */
function keepCompiledCode(): void {
  // Beside the folder of compiled kernels.
  const { XDG_CACHE_HOME: given = '' } = process.env;
  const caches = isAbsolute(given) ? given : join(homedir(), '.cache');
  const { enableCompileCache } = process.getBuiltinModule('node:module') as CompileCache;
  const { directory } = enableCompileCache?.(join(caches, 'cuffi', 'node')) ?? {};
  // Node has added a folder for its version.
  if (directory !== undefined) process.env['NODE_COMPILE_CACHE'] ??= dirname(directory);
}

/** 128 plus the number of SIGPIPE, which Node ignores: the exit code for a closed pipe. */
const READER_GONE = 141;

process.stdout.on('error', async (error: NodeJS.ErrnoException) => {
  // The reader, such as `head`, has read enough.
  if (error.code === 'EPIPE') process.exit(READER_GONE);
  const { printError } = await import('./output.ts');
  printError([`cuffi: the output cannot be written: ${error.message}`]);
  process.exit(1);
});
// Nobody reads errors any longer; the exit code remains.
process.stderr.on('error', () => {});

// Set only at the end: an event loop that runs empty before has failed.
process.exitCode = 1;
keepCompiledCode();
// Not by a declaration: that would be compiled before.
void import('./commands.ts')
  .then(({ runCommandLine }) => runCommandLine(process.argv.slice(2)))
  .then((code) => {
    process.exitCode = code;
  });
