/**
 * Loads tsx for programs that are TypeScript, and not for compiled ones: it takes a third of a second. In
 * place of a program that the suite has compiled, what it was compiled to runs.
 */
import { existsSync } from 'node:fs';
import { register } from 'node:module';
import { join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const program = process.argv[1];
if (program?.endsWith('.ts')) {
  const place = relative(fileURLToPath(new URL('../..', import.meta.url)), program);
  // See program.ts, which a program in JavaScript cannot import.
  const folder = process.env.CUFFI_TEST_COMPILED;
  const compiled = folder && join(folder, place.replace(/\.ts$/, '.mjs'));
  if (compiled && existsSync(compiled)) {
    const hooks = `
      let from, to;
      export const initialize = (data) => { ({ from, to } = data); };
      export const resolve = (name, context, next) => next(name === from ? to : name, context);`;
    const data = { from: pathToFileURL(program).href, to: pathToFileURL(compiled).href };
    register(`data:text/javascript,${encodeURIComponent(hooks)}`, { data });
  } else await import('tsx');
}
