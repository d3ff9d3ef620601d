import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { constants, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { closeFd, createPipe, duplicateFd, libc } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { END_OF_WAITS, TimelineWord } from '../../../../../src/ipc/protocol.ts';
import { TimelineCounter, WriteEnd } from '../../../../../src/ipc/timeline/counter.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { INVALID } from '../../../../../src/waits/read-word.ts';
import { until } from '../../../../support/iterations.ts';
import { openDescriptors } from '../../../../support/process-state.ts';

describe('TimelineCounter', () => {
  test('the host never sets it back', () => {
    const { counter, writeEnd } = TimelineCounter.create();
    counter.advanceTo(5);
    counter.advanceTo(3);
    assert.equal(counter.value, 5);
    writeEnd.close();
    counter.close();
  });

  test('a word that is not a value reaches nothing, and is not the end', () => {
    const { counter, writeEnd } = TimelineCounter.create();
    const words = new BigUint64Array(counter.words.bytes.buffer);
    for (const word of [2n ** 53n, END_OF_WAITS - 1n, END_OF_WAITS - 2n ** 32n, 2n ** 64n - 1n]) {
      words[TimelineWord.value] = word;
      assert.deepEqual(
        [counter.value, counter.isReached(1), counter.isEnded],
        [INVALID, false, false],
      );
    }
    writeEnd.close();
    counter.close();
  });

  test('whatever the pipe reports is reported once', async () => {
    for (const how of ['data', 'end'] as const) {
      const { counter, writeEnd } = TimelineCounter.create();
      const [lifeline, other] = createPipe();
      const copy = TimelineCounter.accept({ memory: duplicateFd(counter.fds.memory), lifeline });
      let calls = 0;
      copy.watchWriter(() => {
        calls += 1;
      });
      if (how === 'data') writeSync(other, 'data');
      else new WriteEnd(other).close();
      await until(() => calls > 0);
      for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
      assert.deepEqual([calls, copy.isEnded, counter.isEnded], [1, true, true]);
      if (how === 'data') new WriteEnd(other).close();
      writeEnd.close();
      for (const each of [counter, copy]) each.close();
    }
  });

  test('takes only a pipe to watch and a pipe to hold, with their access, and closes all others', async () => {
    const before = openDescriptors();
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-lifeline-'));
    const fifo = join(folder, 'fifo');
    execFileSync('mkfifo', [fifo]);
    const O_PATH = 0o1000_0000;
    const hold = openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK);
    const [readEnd, writeEnd] = createPipe();
    const refused: readonly (() => number)[] = [
      () => openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK),
      () => openSync(fifo, constants.O_WRONLY | constants.O_NONBLOCK),
      () => openSync(fifo, O_PATH),
      () => openSync(`/proc/self/fd/${readEnd}`, O_PATH),
      () => openSync(`/proc/self/fd/${readEnd}`, constants.O_RDWR),
      () => openSync(join(folder, 'file'), 'w+'),
      () => libc.eventfd(0, 0),
      () => libc.socket(1, 1, 0),
    ];
    const memory = (): number => createSealedMemfd('timeline', 4096);
    for (const make of [...refused, () => duplicateFd(writeEnd)])
      assert.throws(() => TimelineCounter.accept({ memory: memory(), lifeline: make() }), {
        name: 'IpcError',
        message: /without its pipe/,
      });
    for (const make of [...refused, () => duplicateFd(readEnd)])
      assert.throws(() => WriteEnd.accept(make()), {
        name: 'IpcError',
        message: /without its pipe/,
      });
    for (const fd of [hold, readEnd, writeEnd]) closeFd(fd);
    rmSync(folder, { recursive: true });
    assert.equal(openDescriptors(), before);
  });

  test('what a device stores after the end, behind a value that never came, counts for nobody', () => {
    const { counter, writeEnd } = TimelineCounter.create();
    const [early, late] = [0, 1].map(() => TimelineCounter.accept(counter.duplicateFds()));
    counter.advanceTo(4);
    counter.abandon();
    new BigUint64Array(counter.words.bytes.buffer)[0] = 6n;
    assert.deepEqual([early?.isReached(5), early?.value, early?.isAbandoned], [false, 4, true]);
    for (const each of [counter, early, late]) each?.markEnded();
    assert.deepEqual([late?.isReached(6), late?.value], [false, 4]);
    counter.advanceTo(7);
    assert.deepEqual([late?.value, late?.isEnded], [4, true]);
    writeEnd.close();
    for (const each of [counter, early, late]) each?.close();
  });

  test('the last value stays the highest, whichever process notes the end last', () => {
    const { counter, writeEnd } = TimelineCounter.create();
    const copy = TimelineCounter.accept(counter.duplicateFds());
    const words = new BigUint64Array(counter.words.bytes.buffer);
    counter.advanceTo(4);
    copy.markEnded();
    // Streams wait for this word.
    assert.equal(words[TimelineWord.value], END_OF_WAITS);
    // A device of the ended process wrote once more.
    words[TimelineWord.value] = 6n;
    counter.markEnded();
    copy.markEnded();
    assert.equal(words[TimelineWord.value], END_OF_WAITS);
    assert.deepEqual([counter.value, copy.value], [6, 6]);
    assert.deepEqual([copy.isReached(6), copy.isReached(7)], [true, false]);
    writeEnd.close();
    for (const each of [counter, copy]) each.close();
  });

  test('a value that an ended process had promised stays broken, in whichever order that is noted', () => {
    const endings = ['markEnded', 'abandon'] as const;
    for (const first of endings)
      for (const second of endings) {
        const { counter, writeEnd } = TimelineCounter.create();
        const copy = TimelineCounter.accept(counter.duplicateFds());
        counter.advanceTo(4);
        counter[first]();
        copy[second]();
        const isAbandoned = [first, second].includes('abandon');
        for (const each of [counter, copy])
          assert.deepEqual(
            [each.isAbandoned, each.isEnded, each.value],
            [isAbandoned, true, 4],
            `${first}, ${second}`,
          );
        writeEnd.close();
        for (const each of [counter, copy]) each.close();
      }
  });
});
