import assert from 'node:assert/strict';
import { closeSync, constants, openSync, readSync } from 'node:fs';
import { describe, test } from 'node:test';
import { closeFd, createPipe, isOpenFd, libc } from '../../../../../ffi/linux/libc.ts';
import { WakePipes } from '../../../../../src/ipc/channel/wake-pipes.ts';
import { until } from '../../../../support/iterations.ts';

describe('WakePipes', () => {
  test('each end wakes up the other, and sees its end', async () => {
    let wokenHere = 0;
    let wokenThere = 0;
    const { pipes, sent } = WakePipes.create(() => {
      wokenHere += 1;
    });
    const other = WakePipes.accept(sent, () => {
      wokenThere += 1;
    });
    closeFd(sent.readEnd);
    closeFd(sent.writeEnd);
    pipes.wake();
    pipes.wake();
    await until(() => wokenThere > 0);
    other.wake();
    await until(() => wokenHere === 1);
    assert.deepEqual([pipes.hasEnded, other.hasEnded], [false, false]);
    other.close();
    other.close();
    await until(() => pipes.hasEnded);
    pipes.wake();
    // The end is reported once.
    const woken = wokenHere;
    await new Promise((resolve) => setTimeout(resolve, 5));
    assert.equal(wokenHere, woken);
    pipes.close();
  });

  test('a process that never reads, or makes its end blocking, holds nobody up', () => {
    const { pipes, sent } = WakePipes.create(() => {});
    const F_SETFL = 4;
    libc.fcntl(sent.readEnd, F_SETFL, 0);
    for (let at = 0; at < 66_000; at += 1) pipes.wake();
    const own = openSync(
      `/proc/self/fd/${sent.readEnd}`,
      constants.O_RDONLY | constants.O_NONBLOCK,
    );
    assert.equal(readSync(own, new Uint8Array(1 << 20)), 65_536);
    closeSync(own);
    pipes.close();
    closeFd(sent.readEnd);
    closeFd(sent.writeEnd);
  });

  test('refuses anything but pipes, and leaves the descriptors to the caller', () => {
    const [readEnd, writeEnd] = createPipe();
    const file = openSync('/dev/null', 'r');
    for (const ends of [
      { readEnd, writeEnd: file },
      { readEnd: file, writeEnd },
      { readEnd, writeEnd: 12_345 },
    ])
      assert.throws(() => WakePipes.accept(ends, () => {}), { name: 'IpcError', message: /pipes/ });
    assert.deepEqual([readEnd, writeEnd, file].map(isOpenFd), [true, true, true]);
    for (const fd of [readEnd, writeEnd, file]) closeFd(fd);
  });

  test('sees the end of a process that ended before, and writes to nobody', async () => {
    const { pipes, sent } = WakePipes.create(() => {});
    closeFd(sent.readEnd);
    pipes.wake();
    closeFd(sent.writeEnd);
    await until(() => pipes.hasEnded);
    pipes.close();
  });
});
