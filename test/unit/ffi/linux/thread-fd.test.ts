import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { closeFd, createPipe, isOpenFd, libc } from '../../../../ffi/linux/libc.ts';
import { closeWithThread } from '../../../../ffi/linux/thread-fd.ts';
import { withAddress } from '../../../../ffi/native.ts';
import { until } from '../../../support/iterations.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { startWorker } from '../../../support/program.ts';

const F_GETFD = 1;
const FD_CLOEXEC = 1;
const fixture = new URL('../fixtures/owning-worker.ts', import.meta.url);

/** Whether all descriptors of the other end of a pipe are closed. */
function isOver(readEnd: number): boolean {
  const POLLHUP = 0x10;
  const ready = new Int32Array([readEnd, 0]);
  withAddress(ready, (at) => libc.poll(at, 1, 0));
  return (ready[1] as number) >> 16 === POLLHUP;
}

describe('closeWithThread', () => {
  test('a descriptor of a worker thread closes when the thread is terminated, or before', async () => {
    for (const how of ['terminated', 'told'] as const) {
      const before = openDescriptors();
      const [readEnd, writeEnd] = createPipe();
      const worker = startWorker(fixture, { fd: writeEnd });
      const [fd] = (await once(worker, 'message')) as [number];
      assert.equal(libc.fcntl(fd, F_GETFD, 0), FD_CLOEXEC);
      assert.equal(isOver(readEnd), false);
      if (how === 'told') {
        worker.postMessage('close');
        await once(worker, 'message');
        assert.equal(isOver(readEnd), true);
      }
      await worker.terminate();
      assert.equal(isOver(readEnd), true, how);
      closeFd(readEnd);
      await until(() => openDescriptors() === before);
    }
  });

  test('refuses what is not open', async () => {
    const worker = startWorker(fixture, { fd: 1 << 20 });
    const [error] = (await once(worker, 'error')) as [Error & { code?: string }];
    assert.match(String(error), /EBADF/);
    await worker.terminate();
  });

  test('a descriptor of the main thread keeps its number', () => {
    const [readEnd, writeEnd] = createPipe();
    const owned = closeWithThread(writeEnd, closeFd);
    assert.equal(owned.fd, writeEnd);
    owned.close();
    assert.equal(isOpenFd(writeEnd), false);
    closeFd(readEnd);
  });
});
