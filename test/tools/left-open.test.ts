/** Tests that leave something open, planted for the runner. */
import assert from 'node:assert/strict';
import { join, relative } from 'node:path';
import { describe, test } from 'node:test';
import { Planted, root, run } from './planted-tests.ts';

/** What a test leaves, and what the failure says of it. */
const leftovers: Readonly<Record<string, readonly [leaves: string, says: RegExp]>> = {
  'a listener': ["process.on('SIGUSR2', () => {});", /1 × listener of process for SIGUSR2/],
  'a timer': ['setInterval(tick, 1e6).unref();', /1 × timer that calls \(\) => \{/],
  'a child': [
    "const child = spawn('sleep', ['100'], { stdio: 'ignore' }); ends.push(() => child.kill());",
    /1 × child process/,
  ],
  'a descriptor': ["openSync('/dev/zero');", /1 × descriptor of \/dev\/zero/],
  'a watch': [
    'const ends = createPipe(); watchFd(ends[0], { readable: true }, tick).unref();',
    /1 × watch of pipe/,
  ],
  'a memfd': ["createMemfd('planted', 4096);", /1 × descriptor of planted/],
  'a mapping': [
    "const fd = createMemfd('planted', 4096); mapShared(fd, 4096); closeSync(fd);",
    /1 × mapping of planted/,
  ],
  'a stream': [
    'const stream = Stream.create(); ends.push(() => stream.close());',
    /1 × driver: stream\n {4}1 × open Stream/,
  ],
  'an entry of a table': [
    'let isOver = false; ends.push(() => { isOver = true; }); pollInBackground(() => isOver);',
    /1 × entry of src\/poller.ts pendingPolls/,
  ],
  'a listener of a context': [
    'Context.primary().onReset.add(() => {});',
    /1 × listener of a context for its reset/,
  ],
  'one more than it says': [
    "leaves('listener of process for SIGUSR1', 'planted'); process.on('SIGUSR1', tick); process.on('SIGUSR1', tick);",
    /1 × listener of process for SIGUSR1/,
  ],
};

/** What may be open after a test. */
const allowed: Readonly<Record<string, string>> = {
  'what a test says that it leaves':
    "leaves('listener of process for SIGUSR1', 'planted'); process.on('SIGUSR1', tick);",
  'what is closed some turns later':
    'const fd = openSync("/dev/zero"); setTimeout(() => closeSync(fd), 20);',
  'a watch of an eventfd that is closed later than others':
    'const fd = libc.eventfd(0, 0); const watch = watchFd(fd, { readable: true }, tick); setTimeout(() => { watch.close(); closeSync(fd); }, 20);',
  'the watch of the eventfd that cuffi keeps': 'takeWakeFile(tick).release();',
  'what is closed when it is collected': 'Stream.create({ context: Context.primary() });',
};

describe('a test that leaves something open', () => {
  test('fails, and says what; one that says so, or closes it later, passes', async () => {
    using planted = new Planted();
    const source = relative(planted.folder, root);
    const here = (path: string): string => join(source, path);
    planted.write(
      'leaving.test.ts',
      `
import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { after, before, describe } from 'node:test';
import { createMemfd, createPipe, libc, mapShared } from '${here('ffi/linux/libc.ts')}';
import { watchFd } from '${here('ffi/linux/poll.ts')}';
import { takeWakeFile } from '${here('ffi/linux/wake-file.ts')}';
import { Context, Stream } from '${here('src/index.ts')}';
import { pollInBackground } from '${here('src/poller.ts')}';
import { compareEachTest, leaves } from '${here('test/support/left-open.ts')}';
compareEachTest();
const tick = () => {};
const ends = [];
after(() => { for (const end of ends) end(); });
Context.primary().handle;
${Object.entries(leftovers)
  .map(([what, [code]]) => `test(${JSON.stringify(`leaves ${what}`)}, () => { ${code} });`)
  .join('\n')}
describe('shared', () => {
  let fd;
  before(() => { fd = openSync('/dev/zero'); });
  after(() => closeSync(fd));
  test('may use what its suite has opened', (t) => t.test('in a test within it', () => {}));
});
${Object.entries(allowed)
  .map(([what, code]) => `test(${JSON.stringify(what)}, () => { ${code} });`)
  .join('\n')}
`,
    );
    const { code, output } = await run(planted.name);
    assert.equal(code, 1, output);
    const failures = new Map(
      output
        .split(/^✖ /m)
        .slice(1)
        .map((text): [string, string] => [/^(.*?) \(\d+ms\)/.exec(text)?.[1] ?? '', text]),
    );
    for (const [what, [, says]] of Object.entries(leftovers)) {
      const said = output.split(`✖ leaves ${what} (`)[1] ?? '';
      assert.match(said.split('✖')[0] as string, says, what);
    }
    assert.deepEqual(
      [...failures.keys()].sort(),
      Object.keys(leftovers)
        .map((what) => `leaves ${what}`)
        .sort(),
    );
  });
});
