/** docs/examples/44-pool-server, pasted into an empty folder: under load, while its workers are killed. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { emulated, onHardware } from '../support/driver.ts';
import { type Answer, ExampleServer } from '../support/example-server.ts';
import { iterations, until } from '../support/iterations.ts';
import { PackageFolder, writeCompiled } from '../support/page-programs.ts';
import { isRunning } from '../support/program.ts';
import { noPython } from '../support/python.ts';

// On hardware, as many as there are.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const timeout = iterations(onHardware ? 300_000 : 60_000, 900_000);
const options = { skip: noPython, timeout };

/** Replaces one line of a program, which must have it. */
function replaced(code: string, line: string, by: string): string {
  assert.equal(code.split(line).length, 2, line);
  return code.replace(line, () => by);
}

/** The worker in Python, with torch where that is. */
function withTorch(code: string): string {
  if (!onHardware || spawnSync('python3', ['-c', 'import torch']).status !== 0) return code;
  const read = (name: string): string => `memoryview(${name}.copy_to_host()).cast('f').tolist()`;
  const first = replaced(
    code,
    `weights = ${read('shared')}`,
    'weights = torch.from_dlpack(shared).clone()',
  );
  const second = replaced(
    first,
    `items = ${read('row')}`,
    'items = torch.from_dlpack(row).clone()',
  );
  return replaced(
    replaced(second, 'import os\n', 'import os\n\nimport torch\n'),
    'return sum(item * weight for item, weight in zip(items, weights))',
    'return torch.dot(items, weights).item()',
  );
}

describe('docs/examples/44-pool-server, pasted into an empty folder', options, () => {
  let packages: PackageFolder;
  before(() => {
    packages = new PackageFolder();
    // The compiler keeps a thread from its first use.
    writeCompiled(join(packages.make('first'), 'first.ts'), '');
  });
  after(() => packages[Symbol.dispose]());

  test('answers or refuses each request once, while its workers are killed', options, async (t) => {
    const folder = packages.make('load');
    const example = (ending: string): string =>
      readFileSync(
        new URL(`../../docs/examples/44-pool-server.${ending}`, import.meta.url),
        'utf8',
      );
    // Each worker writes down what it begins.
    writeCompiled(
      join(folder, '44-pool-server.ts'),
      replaced(
        example('ts'),
        'const items = await closeAfter(row).copyToHost();',
        `const items = await closeAfter(row).copyToHost();
         (await import('node:fs')).appendFileSync('begun', \`\${items[0]}\\n\`);`,
      ),
    );
    writeCompiled(
      join(folder, '44-pool-server.py'),
      replaced(
        withTorch(example('py')),
        '    if -1 in items:\n',
        "    with open('begun', 'a') as begun:\n        begun.write(f'{int(items[0])}\\n')\n    if -1 in items:\n",
      ),
    );
    await using server = await ExampleServer.start(folder, '44-pool-server.mjs', timeout);
    await until(() => server.workers.length === 4);
    assert.deepEqual(await server.ask('[0, 1, 1, 1]'), { status: 200, text: '9' });
    const before = server.descriptors;
    const [total, kills] = [iterations(200, 20_000), iterations(3, 50)];
    const answers: (Answer | undefined)[] = Array(total).fill(undefined);
    const dead = new Set<number>();
    let [sent, done] = [0, 0];
    const killOften = (): void => {
      if (dead.size >= kills || done < ((dead.size + 1) * total) / (kills + 2)) return;
      const alive = server.workers.filter((pid) => !dead.has(pid));
      const pid = alive[dead.size % alive.length];
      if (pid === undefined) return;
      dead.add(pid);
      process.kill(pid, 'SIGKILL');
    };
    const client = async (): Promise<void> => {
      while (sent < total) {
        const at = sent++;
        const answer = await server.ask(`[${at + 1}, 1, 0, 0]`);
        assert.equal(answers[at], undefined);
        answers[at] = answer;
        done += 1;
        killOften();
      }
    };
    await Promise.all(Array.from({ length: 16 }, client));
    assert.equal(dead.size, kills);
    let refused = 0;
    for (const [at, answer] of answers.entries()) {
      if (answer?.status === 200) assert.equal(Number(answer.text), at + 3);
      else {
        refused += 1;
        assert.equal(answer?.status, 503);
        assert.match(answer.text, /^process \d+ .*SIGKILL/);
      }
    }
    t.diagnostic(`${refused} of ${total} requests were refused, ${kills} workers killed`);
    // A worker has one task at a time.
    assert.ok(refused <= kills);
    const begun = readFileSync(join(folder, 'begun'), 'utf8').trim().split('\n').map(Number);
    assert.equal(new Set(begun).size, begun.length, 'none has run twice');
    const burst = await Promise.all(Array.from({ length: 150 }, () => server.ask('[0, 0, 0, 0]')));
    for (const { status, text } of burst)
      if (status !== 200) {
        assert.equal(status, 503);
        assert.match(text, /^100 tasks wait for a process of the pool already/);
      }
    // All four serve again, and what the dead had is released.
    await until(() => server.workers.length === 4);
    assert.deepEqual(await server.ask('[1, 2, 3, 4]'), { status: 200, text: '30' });
    assert.ok([...dead].every((pid) => !isRunning(pid)));
    await until(() => server.descriptors <= before + 8);
  });
});
