import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { libc } from '../../../../ffi/linux/libc.ts';
import { fflushAddress, takeWakeFile, type WakeFile } from '../../../../ffi/linux/wake-file.ts';
import { nextLoopIteration } from '../../../../src/poller.ts';
import { until } from '../../../support/iterations.ts';
import { leaves } from '../../../support/left-open.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { startWorker } from '../../../support/program.ts';

const take = (onFlush: () => void): WakeFile => {
  const file = takeWakeFile(onFlush);
  assert.ok(file);
  return file;
};

describe('wake files', () => {
  test('a flush calls back once, on the event loop, and frees the file for the next use', async () => {
    let calls = 0;
    const count = (): void => {
      calls += 1;
    };
    const first = take(count);
    assert.notEqual(fflushAddress(), 0);
    libc.fflush(first.address);
    assert.equal(calls, 0);
    await until(() => calls === 1);
    for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
    assert.equal(calls, 1);
    const second = take(count);
    assert.equal(second.address, first.address);
    libc.fflush(second.address);
    await until(() => calls === 2);
  });

  test('files that are flushed together all call back, and those that are not do not', async () => {
    const flushed: number[] = [];
    const files = [0, 1, 2, 3].map((index) => take(() => flushed.push(index)));
    assert.equal(new Set(files.map(({ address }) => address)).size, 4);
    for (const index of [3, 1]) libc.fflush((files[index] as WakeFile).address);
    await until(() => flushed.length === 2);
    assert.deepEqual(flushed.sort(), [1, 3]);
    for (const index of [0, 2]) libc.fflush((files[index] as WakeFile).address);
    await until(() => flushed.length === 4);
  });

  test('a file that was given back calls nobody, and wakes its next user', async () => {
    const file = take(() => assert.fail('called'));
    file.release();
    let calls = 0;
    const again = take(() => {
      calls += 1;
    });
    assert.equal(again.address, file.address);
    libc.fflush(again.address);
    await until(() => calls === 1);
  });

  test('a thread has 60 files at a time, over one descriptor', async () => {
    take(() => {}).release();
    const before = openDescriptors();
    let flushed = 0;
    const files = Array.from({ length: 60 }, () =>
      take(() => {
        flushed += 1;
      }),
    );
    assert.equal(
      takeWakeFile(() => {}),
      undefined,
    );
    assert.equal(openDescriptors(), before);
    for (const { address } of files) libc.fflush(address);
    await until(() => flushed === 60);
    take(() => {}).release();
  });

  for (const [mode, left] of [
    ['flushed', 0],
    ['pending', 1],
  ] as const)
    test(`a worker thread whose file is ${mode} leaves ${left} eventfd at its end`, async () => {
      leaves('descriptor of anon_inode:[eventfd]', 'the driver may still write to it', left);
      const before = openDescriptors();
      const worker = startWorker(new URL('../fixtures/waking.ts', import.meta.url), mode);
      const [address] = await new Promise<[number]>((resolve, reject) => {
        worker.on('error', reject);
        worker.on('message', resolve);
      });
      const ended = new Promise((resolve) => worker.once('exit', resolve));
      worker.postMessage('end');
      await ended;
      await until(() => openDescriptors() === before + left);
      // The driver would call this now.
      if (mode === 'pending') assert.equal(libc.fflush(address), 0);
    });
});
