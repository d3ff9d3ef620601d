import { cpSync, existsSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { companionPath } from '../python/companion.ts';
import { type Command, parseCommand, refuseArguments } from './command.ts';
import { print, printError } from './output.ts';

/** Prints where the companion for Python is, or copies it. */
export const pythonCommand: Command = {
  summary: 'prints the path of the companion for Python, or copies it',
  usage: `usage: cuffi python [options]

Prints the folder of the companion for Python. To install it: pip install "$(npx cuffi python)"

  --copy FOLDER   copies the Python package cuffi into a folder, over an earlier copy`,
  run(argv) {
    const copyTo = parse(argv);
    const path = companionPath();
    if (path === undefined) {
      printError(['cuffi: the companion for Python is missing: install cuffi again']);
      return false;
    }
    if (copyTo === undefined) {
      print([path]);
      return true;
    }
    const target = join(copyTo, 'cuffi');
    try {
      // An earlier copy may have files that this version has not.
      if (existsSync(join(target, '_protocol.py'))) rmSync(target, { recursive: true });
      cpSync(join(path, 'cuffi'), target, {
        recursive: true,
        filter: (each) => basename(each) !== '__pycache__',
      });
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
