/** Requests to a process that only loops, values to one that only serves, in Node and in Python. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type ChildPeer, spawnPeer, spawnPython } from '../../src/ipc/index.ts';
import { killed, programFile } from '../support/program.ts';
import { noPython } from '../support/python.ts';

const options = { timeout: 120_000 };
const script = fileURLToPath(new URL('./fixtures/readiness.py', import.meta.url));
const program = programFile(new URL('./fixtures/readiness.ts', import.meta.url)).path;

const ends = [
  { name: 'Node', skip: false, start: (mode: string) => spawnPeer(program, { args: [mode] }) },
  {
    name: 'Python',
    skip: noPython,
    start: (mode: string) => spawnPython(script, { args: [mode] }),
  },
] as const;

async function ended(child: ChildPeer): Promise<void> {
  child.close();
  await killed(child.process);
}

for (const { name, skip, start } of ends)
  describe(`a process of ${name}`, { ...options, skip }, () => {
    for (const mode of name === 'Node' ? ['loop'] : ['loop', 'loop-async'])
      test(`that only loops (${mode}) refuses requests, and goes on`, options, async () => {
        const child = start(mode);
        const refused = { name: 'IpcError', code: 'not-served' };
        await assert.rejects(child.request(1), refused);
        await child.send('a');
        assert.equal(await child.receive({ timeoutMs: 30_000 }), 'a');
        await assert.rejects(child.request(2, { timeoutMs: 30_000 }), refused);
        await ended(child);
      });

    for (const mode of name === 'Node' ? ['serve'] : ['serve', 'serve-async'])
      test(`that only serves (${mode}) refuses values, and goes on`, options, async () => {
        const child = start(mode);
        const refused = { name: 'IpcError', code: 'not-received' };
        assert.equal(await child.request(1), 1);
        await assert.rejects(child.send('a'), refused);
        assert.equal(await child.request(2), 2);
        await assert.rejects(child.send('b', { timeoutMs: 30_000 }), refused);
        await ended(child);
      });

    test('that receives first and serves later answers', options, async () => {
      const child = start('receive-then-serve');
      const first = child.request('x', { timeoutMs: 30_000 });
      await child.send('settings');
      assert.equal(await first, 'settings x');
      assert.equal(await child.request('y'), 'settings y');
      await ended(child);
    });
  });
