/**
 * The libraries' own interfaces beside cuffi, without the companion: the programs of docs/python-without-companion.md that
 * need a library of Python. On real GPUs only.
 */
import { spawnSync } from 'node:child_process';
import { after, before, describe, test } from 'node:test';
import { onHardware } from '../support/driver.ts';
import { PackageFolder, runPageProgram } from '../support/page-programs.ts';
import { programsOf } from '../support/pages.ts';
import { noPython } from '../support/python.ts';

const deadlineMs = 120_000;

/** Prints what is missing. */
const findMissing = `
import importlib, sys

for need in sys.argv[1:]:
    name, _, least = need.partition('>=')
    try:
        module = importlib.import_module(name)
    except Exception as error:
        sys.exit(f'{name} cannot be imported: {error}')
    found = getattr(module, '__version__', '0.0')
    if least and [int(part) for part in found.split('.')[:2]] < [int(part) for part in least.split('.')]:
        sys.exit(f'{name} is {found}: it must be {least} or later')
`;

/** Why a program that needs these libraries cannot run here; false if it can. */
function whyNot(needs: readonly string[]): string | false {
  if (!onHardware) return 'the libraries need a GPU';
  if (noPython) return noPython;
  const args = ['-c', findMissing, ...needs];
  const { status, stderr } = spawnSync('python3', args, { encoding: 'utf8' });
  return status === 0 ? false : stderr.trim().split('\n').at(-1) || 'a library is missing';
}

describe("docs/python-without-companion.md: the libraries' own interfaces", () => {
  let folder: PackageFolder;
  before(() => {
    folder = new PackageFolder();
  });
  after(() => folder[Symbol.dispose]());

  for (const program of programsOf('docs/python-without-companion.md', 'needs libraries')) {
    const needs = program.blocks.flatMap((block) => block.needs);
    const options = { skip: whyNot(needs), timeout: deadlineMs };
    test(`${program.name}: prints what the page shows`, options, () =>
      runPageProgram(program, folder, { timeout: deadlineMs, mayComplain: true }),
    );
  }
});
