/** What is open when a kernel ends the context, of this process and of another one. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { Device } from '../../src/index.ts';
import { ipcSupport } from '../../src/ipc/index.ts';
import { programFile } from '../support/program.ts';

const { memory, events, pools, virtualMemory } = ipcSupport(Device.get());
const missing = [memory, events, pools, virtualMemory].find(({ supported }) => !supported);

for (const [mode, claim] of [
  ['told', 'the end of a scope does not hide the error that a wait has thrown'],
  ['untold', 'the end of a scope throws the error itself where nobody else found out'],
] as const)
  test(`in a lost context ${claim}`, {
    skip: missing?.reason ?? false,
    timeout: 60_000,
  }, async () => {
    const { path, execArgv } = programFile(new URL('./fixtures/lost.ts', import.meta.url));
    const child = spawn(process.execPath, [...execArgv, path, mode], {
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
