/** What no call of the companion may do to a connection: wait for the GPU in the wrong place, lose or repeat a message. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { companionPath } from '../../src/python/companion.ts';
import { onHardware } from '../support/driver.ts';
import { noPython } from '../support/python.ts';

const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const program = readFileSync(`${fixtures}/python-connections.py`, 'utf8');

describe('connections of Python', { skip: noPython, timeout: 120_000 }, () => {
  for (const [, name = ''] of program.matchAll(/^class (\w+)\(Case\):/gm))
    test(`${name}: hold what they promise`, {
      skip: onHardware ? 'they need streams of the emulated driver for Python' : false,
    }, () => {
      const { status, stderr } = spawnSync('python3', [`${fixtures}/python-connections.py`, name], {
        encoding: 'utf8',
        env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
      });
      assert.equal(status, 0, stderr.slice(-8000));
      assert.match(stderr, /^Ran \d+ tests? in/m);
    });
});
