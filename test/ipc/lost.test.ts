/** What is open when a kernel ends the context, of this process and of another one. */
import assert from 'node:assert/strict';
import { text } from 'node:stream/consumers';
import { describe, test } from 'node:test';
import { Device } from '../../src/index.ts';
import { ipcSupport } from '../../src/ipc/index.ts';
import { startProgram } from '../support/program.ts';

const { memory, events, pools, virtualMemory } = ipcSupport(Device.get());
const missing = [memory, events, pools, virtualMemory].find(({ supported }) => !supported);

describe('a lost context', () => {
  for (const [mode, claim] of [
    ['told', 'the end of a scope does not hide the error that a wait has thrown'],
    ['untold', 'the end of a scope throws the error itself where nobody else found out'],
  ] as const)
    test(`in a lost context ${claim}`, {
      skip: missing?.reason ?? false,
      timeout: 60_000,
    }, async () => {
      const child = startProgram(new URL('./fixtures/lost.ts', import.meta.url), [mode], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      try {
        const { message, ...thrown } = JSON.parse(await text(child.stdout));
        assert.deepEqual(
          thrown,
          { isCuda: true, name: 'CudaError', sticky: true, status: 700, warnings: [] },
          message,
        );
      } finally {
        child.kill('SIGKILL');
      }
    });
});
