/** What the companion makes of Python's values and of the tensors of its libraries: right, or refused. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { companionPath } from '../../src/python/companion.ts';
import { startProcess } from '../support/program.ts';
import { noPython } from '../support/python.ts';

const program = new URL('./fixtures/python-values.py', import.meta.url);
const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const options = { skip: noPython, timeout: 60_000 };

/** The test cases of python-values.py, and what they show. */
const cases: readonly (readonly [name: string, claim: string])[] = [
  ['Copies', 'what owns something is neither copied nor pickled; errors are'],
  ['Capsules', 'a tensor may be refused, or outlive the interpreter; no consumer gets one that it mistakes'],
];

describe('values and tensors of Python', options, () => {
  for (const [name, claim] of cases)
    test(claim, options, async () => {
      const child = startProcess('python3', ['-B', fileURLToPath(program), name], {
        stdio: ['ignore', 'ignore', 'pipe'],
        timeout: options.timeout,
        env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
      });
      let said = '';
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        said += text;
      });
      const [code, signal] = await once(child, 'close');
      assert.equal(code ?? signal, 0, said.slice(-8000));
      assert.match(said, /^Ran \d+ tests? in/m);
    });
});
