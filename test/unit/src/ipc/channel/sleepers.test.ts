import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Sleepers } from '../../../../../src/ipc/channel/sleepers.ts';
import { until } from '../../../../support/iterations.ts';

describe('Sleepers', () => {
  test('the other end hears that this one sleeps, and that it has woken up', async () => {
    const told: boolean[] = [];
    const sleepers = new Sleepers((isAsleep) => told.push(isAsleep));
    let isReady = false;
    const first = sleepers.wait(() => isReady, {});
    const controller = new AbortController();
    const second = sleepers.wait(() => isReady, { signal: controller.signal });
    await until(() => told.length === 1);
    controller.abort();
    await assert.rejects(second, { name: 'AbortError' });
    assert.deepEqual(told, [true]);
    isReady = true;
    sleepers.wake();
    await first;
    assert.deepEqual(told, [true, false]);
    // Nobody sleeps now.
    sleepers.wake();
  });

  test('what came while the other end was told is not slept over', async () => {
    const told: boolean[] = [];
    let isReady = false;
    const sleepers = new Sleepers((isAsleep) => {
      told.push(isAsleep);
      isReady = true;
    });
    const waited = sleepers.wait(() => isReady, {});
    await until(() => told.length > 0);
    assert.deepEqual(told, [true, false]);
    await waited;
  });

  test('what a poll has taken is not lost to a signal that aborts at the same time', async () => {
    const controller = new AbortController();
    const told: boolean[] = [];
    const sleepers = new Sleepers((isAsleep) => {
      told.push(isAsleep);
      if (isAsleep) controller.abort();
    });
    await sleepers.wait(() => told.length > 0, { signal: controller.signal });
    assert.deepEqual(told, [true, false]);
  });

  test('a wait that polls busily polls many times in a turn of the event loop', async (t) => {
    const sleepers = new Sleepers(() => {});
    sleepers.busyPollUs = 1_000_000;
    // However long the other processes of the machine take: each look at the clock is a microsecond.
    let now = performance.now();
    t.mock.method(performance, 'now', () => {
      now += 0.001;
      return now;
    });
    let turns = 0;
    const count = (): void => {
      turns += 1;
      next = setImmediate(count);
    };
    let next = setImmediate(count);
    let polls = 0;
    await sleepers.wait(() => {
      polls += 1;
      return polls === 1000;
    }, {});
    clearImmediate(next);
    assert.ok(turns < 100, `${turns} turns`);
    const controller = new AbortController();
    const aborted = sleepers.wait(() => false, { signal: controller.signal });
    controller.abort(new Error('enough'));
    await assert.rejects(aborted, /enough/);
  });

  test('an error of a poll rejects, busily polling or not', async () => {
    for (const busyPollUs of [0, 1000]) {
      const sleepers = new Sleepers(() => {});
      sleepers.busyPollUs = busyPollUs;
      let polls = 0;
      const waited = sleepers.wait(() => {
        polls += 1;
        if (polls > 5) throw new Error('over');
        return false;
      }, {});
      await assert.rejects(waited, /over/);
    }
  });
});
