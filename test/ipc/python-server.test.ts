/** docs/examples/42-model-server, pasted into an empty folder: under load, and with clients that leave. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { onHardware } from '../support/driver.ts';
import { type Answer, ExampleServer } from '../support/example-server.ts';
import { iterations, until } from '../support/iterations.ts';
import { PackageFolder, writeCompiled } from '../support/page-programs.ts';
import { isRunning } from '../support/program.ts';
import { noPython } from '../support/python.ts';

const example = (ending: string): URL =>
  new URL(`../../docs/examples/42-model-server.${ending}`, import.meta.url);

// torch takes its time to start.
const timeout = iterations(onHardware ? 300_000 : 60_000, 900_000);
const options = { skip: noPython, timeout };

const start = (folder: string): Promise<ExampleServer> =>
  ExampleServer.start(folder, '42-model-server.mjs', timeout);

/** A model that prints what it is given, once there is a file `go`. */
const patientModel = `
import os, time
import cuffi

def score(batch):
    with batch:
        rows = memoryview(batch.copy_to_host()).cast('f', batch.shape).tolist()
    while not os.path.exists('go'):
        time.sleep(0.002)
    print('batch', [int(row[0]) for row in rows], flush=True)
    scores = cuffi.empty((len(rows), 1))
    scores.copy_from_host(memoryview(bytes(4 * len(rows))))
    return scores

cuffi.parent().serve(score)
`;

/** The workers so far, oldest first. */
const workersOf = ({ printed }: ExampleServer): number[] =>
  [...printed.matchAll(/^worker (\d+) starts$/gm)].map(([, pid]) => Number(pid));

describe('docs/examples/42-model-server, pasted into an empty folder', options, () => {
  let folder: PackageFolder;
  const paste = (name: string): string => {
    const made = folder.make(name);
    for (const ending of ['ts', 'py'])
      writeCompiled(join(made, `42-model-server.${ending}`), readFileSync(example(ending), 'utf8'));
    return made;
  };

  before(() => {
    folder = new PackageFolder();
    // The compiler keeps a thread from its first use.
    writeCompiled(join(folder.make('first'), 'first.ts'), '');
  });
  after(() => folder[Symbol.dispose]());

  test('both files have fewer than 120 lines together', () => {
    const lines = ['ts', 'py'].map((ending) => readFileSync(example(ending), 'utf8').split('\n'));
    assert.ok(lines.flat().length - 2 < 120);
  });

  test('answers or refuses each request once, while its worker is killed', options, async (t) => {
    await using server = await start(paste('load'));
    assert.deepEqual(await server.ask('[1, 2, 3, 4]'), { status: 200, text: '10' });
    assert.deepEqual(await server.ask('[1, 2]'), { status: 400, text: 'not 4 numbers' });
    const [total, kills] = [iterations(60, 5000), iterations(2, 20)];
    const answers: (Answer | undefined)[] = Array(total).fill(undefined);
    const before = server.descriptors;
    let [sent, done, dead] = [0, 0, 0];
    const killOften = async (): Promise<void> => {
      // A worker dies once: the next one must be running.
      if (dead >= kills || dead >= workersOf(server).length) return;
      if (done < ((dead + 1) * total) / (kills + 2)) return;
      const pid = workersOf(server).at(-1) as number;
      dead += 1;
      // Every second one has requests that it has not answered.
      if (dead % 2 === 0) {
        process.kill(pid, 'SIGSTOP');
        for (let at = 0; at < 3; at += 1) await server.ask('[]');
      }
      process.kill(pid, 'SIGKILL');
    };
    const client = async (): Promise<void> => {
      while (sent < total) {
        const at = sent++;
        const answer = await server.ask(`[${at}, 1, 0, 0.5]`);
        assert.equal(answers[at], undefined);
        answers[at] = answer;
        done += 1;
        await killOften();
      }
    };
    await Promise.all(Array.from({ length: 16 }, client));
    assert.equal(dead, kills);
    let refused = 0;
    for (const [at, answer] of answers.entries()) {
      if (answer?.status === 200) assert.equal(Number(answer.text), at + 1.5);
      else {
        refused += 1;
        assert.equal(answer?.status, 503);
        assert.match(answer.text, /^process \d+ (has|was) .*SIGKILL/);
      }
    }
    t.diagnostic(`${refused} of ${total} requests were refused, ${kills} workers killed`);
    // One that has seen fewer crashes than it may is always tried again.
    if (kills < 3) assert.equal(refused, 0);
    assert.deepEqual(await server.ask('[1, 2, 3, 4]'), { status: 200, text: '10' });
    assert.equal(workersOf(server).length, kills + 1);
    assert.ok(
      workersOf(server)
        .slice(0, -1)
        .every((pid) => !isRunning(pid)),
    );
    // The driver and Node keep a few, whatever the number of workers.
    await until(() => server.descriptors <= before + 4);
  });

  test('does not ask its model what clients have left', options, async () => {
    const made = paste('leave');
    writeFileSync(join(made, '42-model-server.py'), patientModel);
    await using server = await start(made);
    const first = server.ask('[1, 0, 0, 0]');
    // The answer to a later request shows that the server has read the earlier ones.
    const isRead = async (): Promise<void> => {
      for (let at = 0; at < 3; at += 1) assert.equal((await server.ask('[]')).status, 400);
    };
    await isRead();
    const leave = await server.begin('[2, 0, 0, 0]');
    const third = server.ask('[3, 0, 0, 0]');
    await isRead();
    leave();
    await isRead();
    writeFileSync(join(made, 'go'), '');
    assert.deepEqual([(await first).status, (await third).status], [200, 200]);
    // A batch whose last client leaves is aborted. The worker may have begun it.
    const [pid] = workersOf(server) as [number];
    process.kill(pid, 'SIGSTOP');
    const leaveNow = await server.begin('[4, 0, 0, 0]');
    await isRead();
    leaveNow();
    await isRead();
    const fifth = server.ask('[5, 0, 0, 0]');
    await isRead();
    process.kill(pid, 'SIGCONT');
    assert.equal((await fifth).status, 200);
    await until(() => server.printed.includes('[5]'));
    const batches = [...server.printed.matchAll(/^batch (.*)$/gm)].map(([, rows]) => rows);
    assert.deepEqual(
      batches.filter((rows) => rows !== '[4]'),
      ['[1]', '[3]', '[5]'],
    );
  });
});
