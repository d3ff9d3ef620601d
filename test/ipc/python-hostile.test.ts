/** What other processes, threads and time can do to the companion for Python, and one like it to Node. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { dirname } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { companionFile } from '../../src/python/companion.ts';
import { onHardware } from '../support/driver.ts';
import { iterations } from '../support/iterations.ts';
import { startProcess } from '../support/program.ts';
import { noPython } from '../support/python.ts';

const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const options = {
  skip: onHardware ? 'the fake ends share the memory of the emulated driver' : noPython,
  timeout: iterations(120_000, 1_200_000),
};

/** Runs a program of fixtures/ beside the companion. Returns its exit code and the end of what it says. */
async function runPython(
  program: string,
  args: readonly string[] = [],
): Promise<[unknown, string]> {
  const child = startProcess('python3', ['-B', `${fixtures}/${program}`, ...args], {
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: options.timeout,
    env: { ...process.env, PYTHONPATH: `${dirname(companionFile())}:${fixtures}` },
  });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  const [code] = await once(child, 'close');
  return [code, said.slice(-8000)];
}

describe('the companion for Python under attack', options, () => {
  test(
    'survives what an end, other threads and its own ends do, and leaves nothing',
    options,
    async () => {
      const [code, said] = await runPython('python-faults.py');
      assert.equal(code, 0, said);
      assert.match(said, /^Ran \d\d tests in/m);
    },
  );
});
