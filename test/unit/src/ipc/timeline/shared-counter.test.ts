import assert from 'node:assert/strict';
import { writeSync } from 'node:fs';
import { describe, test } from 'node:test';
import { createPipe, duplicateFd } from '../../../../../ffi/linux/libc.ts';
import { SharedCounter, WriteEnd } from '../../../../../src/ipc/timeline/shared-counter.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';

describe('SharedCounter', () => {
  test('the host never sets it back', () => {
    const { counter, writeEnd } = SharedCounter.create();
    counter.advanceTo(5);
    counter.advanceTo(3);
    assert.equal(counter.value, 5);
    writeEnd.close();
    counter.close();
  });

  test('whatever the pipe reports is reported once', async () => {
    for (const how of ['data', 'end'] as const) {
      const { counter, writeEnd } = SharedCounter.create();
      const [lifeline, other] = createPipe();
      const copy = SharedCounter.accept({ memory: duplicateFd(counter.fds.memory), lifeline });
      let calls = 0;
      copy.watchWriter(() => {
        calls += 1;
      });
      if (how === 'data') writeSync(other, 'data');
      else new WriteEnd(other).close();
      for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
      assert.deepEqual([calls, copy.isEnded, counter.isEnded], [1, true, true]);
      if (how === 'data') new WriteEnd(other).close();
      writeEnd.close();
      for (const each of [counter, copy]) each.close();
    }
  });

  test('the last value stays the highest, whichever process notes the end last', () => {
    const { counter, writeEnd } = SharedCounter.create();
    const copy = SharedCounter.accept(counter.duplicateFds());
    counter.advanceTo(4);
    copy.markEnded();
    // A device of the ended process wrote once more.
    new BigUint64Array(counter.page.view())[0] = 6n;
    counter.markEnded();
    copy.markEnded();
    assert.deepEqual([counter.value, copy.value], [6, 6]);
    assert.deepEqual([copy.isReached(6), copy.isReached(7)], [true, false]);
    writeEnd.close();
    for (const each of [counter, copy]) each.close();
  });
});
