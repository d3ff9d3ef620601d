import { copyFileSync } from 'node:fs';
import { join } from 'node:path';
import { companionFile } from '../python/companion.ts';
import { type Command, parseCommand, refuseArguments } from './command.ts';
import { print, printError } from './output.ts';

/** Prints where the companion for Python is, or copies it. */
export const pythonCommand: Command = {
  summary: 'prints the path of the companion for Python, or copies it',
  usage: `usage: cuffi python [options]

Prints the path of cuffi.py, the companion for Python: put its folder on PYTHONPATH, or copy it.

  --copy FOLDER   copies it into a folder, over an earlier copy`,
  run(argv) {
    const copyTo = parse(argv);
    const file = companionFile();
    if (file === undefined) {
      printError(['cuffi: the companion for Python is missing: install cuffi again']);
      return false;
    }
    if (copyTo === undefined) {
      print([file]);
      return true;
    }
    const target = join(copyTo, 'cuffi.py');
    try {
      copyFileSync(file, target);
    } catch (error) {
      printError([`cuffi: ${target} cannot be written: ${(error as Error).message}`]);
      return false;
    }
    print([target]);
    return true;
  },
};

/** @throws UsageError */
function parse(argv: readonly string[]): string | undefined {
  const { values, positionals } = parseCommand(argv, { copy: { type: 'string' } });
  refuseArguments('python', positionals);
  return values.copy;
}
