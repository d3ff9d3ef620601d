import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { beforeEach, describe, type TestContext, test } from 'node:test';
import { isTurnDue, nextLoopIteration, pollInBackground, pollUntil } from '../../../src/poller.ts';
import { until } from '../../support/iterations.ts';
import { runProgram } from './emulate.ts';

/** Of what would wait for ever where it fails. */
const DEADLINE = { timeout: 20_000 };

describe('pollUntil with a wake-up', () => {
  /** Arranges wake-ups by hand. */
  class Waker {
    armed = 0;
    disarmed = 0;
    wake: (() => void) | undefined;
    readonly arm = (onWake: () => void): (() => void) => {
      this.armed += 1;
      this.wake = onWake;
      return () => {
        this.disarmed += 1;
      };
    };
  }

  test('the wait polls at its beginning, then not until it is woken up', DEADLINE, async () => {
    const waker = new Waker();
    let asked = 0;
    let open = false;
    const poll = (): boolean => {
      asked += 1;
      return open;
    };
    const waiting = pollUntil(poll, {}, undefined, waker.arm);
    await until(() => waker.armed === 1);
    const before = asked;
    assert.ok(before >= 100);
    const begin = performance.now();
    for (let turns = 0; turns < 20; turns += 1) await nextLoopIteration();
    if (performance.now() - begin < 50) assert.equal(asked, before);
    open = true;
    waker.wake?.();
    await waiting;
    // A wake-up that has come is not canceled.
    assert.equal(waker.disarmed, 0);
  });

  test('a wait that is woken up too early polls, and arranges another', DEADLINE, async () => {
    const waker = new Waker();
    let open = false;
    const waiting = pollUntil(() => open, {}, undefined, waker.arm);
    for (const times of [1, 2, 3]) {
      await until(() => waker.armed === times);
      waker.wake?.();
    }
    open = true;
    await waiting;
    // It polled in each turn after the last wake-up, or was about to sleep.
    assert.ok(waker.armed <= 4);
  });

  test('a wait that nobody wakes up ends all the same', DEADLINE, async () => {
    const waker = new Waker();
    let open = false;
    const waiting = pollUntil(() => open, {}, undefined, waker.arm);
    await until(() => waker.armed === 1);
    open = true;
    await waiting;
    assert.equal(waker.disarmed, 1);
  });

  test('a wait whose wake-up is refused polls, and asks again', DEADLINE, async () => {
    let asked = 0;
    let open = false;
    const refuse = (): undefined => {
      asked += 1;
      open = asked === 5;
    };
    await pollUntil(() => open, {}, undefined, refuse);
    assert.equal(asked, 5);
  });

  test(
    'an abort and a time-out cancel the wake-up, and come while the wait sleeps',
    DEADLINE,
    async () => {
      const waker = new Waker();
      const controller = new AbortController();
      const waiting = pollUntil(() => false, controller, undefined, waker.arm);
      await until(() => waker.armed === 1);
      controller.abort(new Error('enough'));
      await assert.rejects(waiting, /enough/);
      assert.equal(waker.disarmed, 1);
      // Late calls of it do nothing.
      waker.wake?.();
      // On a machine under load, the time may be over before the wait sleeps.
      while (waker.armed === 1) {
        const limit = { operation: 'waiting', timeoutMs: 30, until: performance.now() + 30 };
        await assert.rejects(
          pollUntil(() => false, { limit }, undefined, waker.arm),
          {
            name: 'TimeoutError',
          },
        );
      }
      assert.equal(waker.disarmed, 2);
    },
  );

  test('a wait that polls does not wake those that sleep', DEADLINE, async () => {
    const waker = new Waker();
    let asked = 0;
    let open = false;
    const poll = (): boolean => {
      asked += 1;
      return open;
    };
    const waiting = pollUntil(poll, {}, undefined, waker.arm);
    await until(() => waker.armed === 1);
    const before = asked;
    let others = 0;
    await pollUntil(() => {
      others += 1;
      return others === 130;
    });
    // The sweep may have come once or twice in 30 periods on a machine under load.
    assert.ok(asked - before < 10, `${asked - before} polls`);
    open = true;
    waker.wake?.();
    await waiting;
  });
});

describe('isTurnDue', () => {
  // What runs behind an immediate is in a later turn than the next one is.
  beforeEach(() => nextLoopIteration());

  test('returns true once the event loop has not turned for long, until it has', async () => {
    for (let round = 0; round < 3; round += 1) {
      const end = performance.now() + DEADLINE.timeout;
      while (!isTurnDue()) assert.ok(performance.now() < end, 'no turn was due');
      assert.equal(isTurnDue(), true);
      await nextLoopIteration();
      assert.equal(isTurnDue(), false);
    }
  });

  test('returns false where the loop turns in between, however long a turn takes', async () => {
    for (let turns = 0; turns < 20; turns += 1) {
      await nextLoopIteration();
      assert.equal(isTurnDue(), false);
      const begin = performance.now();
      while (performance.now() - begin < 2);
    }
  });
});

describe('pollUntil', () => {
  test('a wait polls after a turn of the event loop where one is due', async () => {
    const end = performance.now() + DEADLINE.timeout;
    while (!isTurnDue()) assert.ok(performance.now() < end, 'no turn was due');
    let asked = 0;
    let turns = 0;
    setImmediate(() => {
      turns += 1;
    });
    await pollUntil(() => {
      asked += 1;
      return true;
    });
    assert.deepEqual([asked, turns], [1, 1]);
  });

  test('a poll that succeeds at once is called once', async () => {
    let asked = 0;
    await pollUntil(() => {
      asked += 1;
      return true;
    });
    assert.equal(asked, 1);
  });

  test('a poll is called until it returns true, and not afterwards', async () => {
    let asked = 0;
    await pollUntil(() => {
      asked += 1;
      return asked === 150;
    });
    for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
    assert.equal(asked, 150);
  });

  test('the promise rejects with what the poll throws, at once or later', async () => {
    const error = new Error('lost');
    const thrower = (): boolean => {
      throw error;
    };
    await assert.rejects(pollUntil(thrower), (got) => got === error);
    let asked = 0;
    await assert.rejects(
      pollUntil(() => {
        asked += 1;
        return asked > 3 ? thrower() : false;
      }),
      (got) => got === error,
    );
  });

  test('a poll that fails leaves the others pending', async () => {
    let open = false;
    const waiting = Array.from({ length: 500 }, () => pollUntil(() => open));
    let asked = 0;
    await assert.rejects(
      pollUntil(() => {
        asked += 1;
        if (asked > 1) throw new Error('lost');
        return false;
      }),
      /lost/,
    );
    open = true;
    await Promise.all(waiting);
  });

  test('an aborted wait rejects with the reason, stops polling, and leaves no listener', async () => {
    const controller = new AbortController();
    const { signal } = controller;
    let asked = 0;
    const waiting = pollUntil(
      () => {
        asked += 1;
        return false;
      },
      { signal },
    );
    assert.equal(getEventListeners(signal, 'abort').length, 1);
    const reason = new Error('no longer needed');
    controller.abort(reason);
    await assert.rejects(waiting, (got) => got === reason);
    assert.equal(getEventListeners(signal, 'abort').length, 0);
    const before = asked;
    for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
    assert.equal(asked, before);
  });

  test('a wait that ends in another way leaves no listener either', async () => {
    const { signal } = new AbortController();
    await pollUntil(() => true, { signal });
    let asked = 0;
    await pollUntil(() => ++asked > 3, { signal });
    await assert.rejects(
      pollUntil(
        () => {
          if (++asked > 6) throw new Error('lost');
          return false;
        },
        { signal },
      ),
      /lost/,
    );
    assert.equal(getEventListeners(signal, 'abort').length, 0);
  });

  test('a signal that was aborted before rejects without a poll', async () => {
    const reason = new Error('too late');
    const signal = AbortSignal.abort(reason);
    await assert.rejects(
      pollUntil(() => assert.fail('asked'), { signal }),
      (got) => got === reason,
    );
    assert.equal(getEventListeners(signal, 'abort').length, 0);
  });

  test('a poll that aborts its own signal ends the wait', async () => {
    for (const nth of [1, 3]) {
      const controller = new AbortController();
      const { signal } = controller;
      const reason = new Error('enough');
      let asked = 0;
      const waiting = pollUntil(
        () => {
          asked += 1;
          if (asked === nth) controller.abort(reason);
          return false;
        },
        { signal },
      );
      await assert.rejects(waiting, (got) => got === reason);
      assert.equal(asked, nth);
      assert.equal(getEventListeners(signal, 'abort').length, 0);
    }
  });

  test('a background poll is called until it returns true', async () => {
    let asked = 0;
    pollInBackground(() => ++asked === 120);
    await until(() => asked === 120);
    for (let turns = 0; turns < 5; turns += 1) await nextLoopIteration();
    assert.equal(asked, 120);
  });

  const program = new URL('./fixtures/waits.ts', import.meta.url);

  test('a pending wait keeps the process alive until it is done', () => {
    const { code, stdout } = runProgram(program, ['awaited']);
    assert.deepEqual({ code, stdout }, { code: 0, stdout: 'done\n' });
  });

  test('a background poll does not keep the process alive, even besides a wait', () => {
    const { code, stdout } = runProgram(program, ['background']);
    assert.deepEqual({ code, stdout }, { code: 0, stdout: 'done\n' });
  });

  test('a pending release of a buffer does not keep the process alive', () => {
    const { code, stdout, stderr } = runProgram(program, ['release']);
    assert.deepEqual({ code, stdout, stderr }, { code: 0, stdout: 'closed\n', stderr: '' });
  });

  const asleep = new URL('./fixtures/asleep.ts', import.meta.url);

  for (const mode of [
    'poll',
    'poll beside a wait',
    'poll beside an aborted wait',
    'release',
    'told',
  ])
    test(`a background poll wakes a sleeping event loop: ${mode}`, () => {
      // Else V8 wakes the loop by itself, after some seconds, to collect garbage.
      const { code, stdout, stderr } = runProgram(asleep, [mode], {}, ['--no-memory-reducer']);
      assert.deepEqual({ code, stdout, stderr }, { code: 0, stdout: 'done\n', stderr: '' });
    });

  test('a long wait with an expected end is polled in each iteration until then', async () => {
    let turns = 0;
    let turning = true;
    const turn = (): void => {
      turns += 1;
      if (turning) setImmediate(turn);
    };
    turn();
    let asked = 0;
    await pollUntil(() => ++asked === 500, {}, { earliestMs: 0, latestMs: 60_000 });
    turning = false;
    assert.ok(turns < 600, `${turns} turns`);
  });

  test(
    'old waits are still polled while a new one is polled in each iteration',
    DEADLINE,
    async () => {
      let isOldDone = false;
      let isNewDone = false;
      let asked = 0;
      const old = pollUntil(() => {
        asked += 1;
        return isOldDone;
      });
      await until(() => asked > 150);
      const expected = { earliestMs: 0, latestMs: Number.POSITIVE_INFINITY };
      const eager = pollUntil(() => isNewDone, {}, expected);
      isOldDone = true;
      let isNewPolling = true;
      void eager.then(() => {
        isNewPolling = false;
      });
      await old;
      assert.ok(isNewPolling);
      isNewDone = true;
      await eager;
    },
  );

  test(
    'one immediate or one timer wakes the loop for all waits, however many begin',
    DEADLINE,
    async () => {
      const active = (kind: string): number =>
        process.getActiveResourcesInfo().filter((each) => each === kind).length;
      const before = [active('Immediate'), active('Timeout')];
      const beside = (): number[] => [
        active('Immediate') - (before[0] as number),
        active('Timeout') - (before[1] as number),
      ];
      let isDone = false;
      const begin = (): Promise<void>[] =>
        Array.from({ length: 50 }, () => pollUntil(() => isDone));
      const waiting = begin();
      assert.deepEqual(beside(), [1, 0]);
      // They grow old: a timer is set, which the next ones take back.
      while (beside()[1] === 0) await nextLoopIteration();
      waiting.push(...begin());
      assert.deepEqual(beside(), [1, 0]);
      isDone = true;
      await Promise.all(waiting);
      assert.deepEqual(beside(), [0, 0]);
    },
  );

  /**
   * A clock that a test sets on. It begins where that of an earlier test ended, as no clock goes back:
   * tests by the true one come before.
   */
  let furthest = 0;
  function mockClock(t: TestContext): { now: number } {
    const clock = { now: Math.ceil(Math.max(furthest, performance.now())) };
    t.mock.method(performance, 'now', () => {
      furthest = clock.now;
      return clock.now;
    });
    return clock;
  }

  test('a long background poll becomes less and less frequent, until there is more to wait for', async (t) => {
    const clock = mockClock(t);
    const periods = t.mock.method(globalThis, 'setTimeout', setTimeout);
    const last = (): unknown => periods.mock.calls.at(-1)?.arguments[1];
    let asked = 0;
    let isDone = false;
    const hurry = pollInBackground(() => {
      asked += 1;
      return isDone;
    });
    const askAgain = async (): Promise<void> => {
      const before = asked;
      await until(() => asked > before);
    };
    assert.equal(last(), 1);
    const seen: unknown[] = [];
    for (const waitedMs of [16, 320, 60_000]) {
      clock.now += waitedMs;
      // Asked too early by the mocked clock, the first time decides when the next is.
      await askAgain();
      await askAgain();
      seen.push(last());
    }
    assert.deepEqual(seen, [1, 21, 40]);
    hurry();
    assert.equal(last(), 1);
    isDone = true;
    await askAgain();
  });

  test(
    'a wait is polled in each iteration again when its expected end is near',
    DEADLINE,
    async (t) => {
      const clock = mockClock(t);
      let asked = 0;
      let isDone = false;
      const ask = (): boolean => {
        asked += 1;
        return isDone;
      };
      const waiting = pollUntil(ask, {}, { earliestMs: 30, latestMs: 40 });
      for (let turns = 0; turns < 200; turns += 1) await nextLoopIteration();
      const before = asked;
      // No time has passed: more are only asked by a wait that is near its end.
      for (let turns = 0; turns < 200; turns += 1) await nextLoopIteration();
      assert.equal(asked, before);
      const askedIn = async (turns: number): Promise<number> => {
        const start = asked;
        for (let n = 0; n < turns; n += 1) await nextLoopIteration();
        return asked - start;
      };
      // Its end is known to a period of the timer, which may itself be late by one: two before, no sooner.
      for (const [passedMs, isEager] of [
        [27.5, false],
        [1, true],
        [11, true],
        [1, false],
      ] as const) {
        clock.now += passedMs;
        const start = asked;
        // The timer that is set.
        await until(() => asked > start);
        assert.equal((await askedIn(200)) > 100, isEager, `${passedMs} ms`);
      }
      isDone = true;
      clock.now += 1;
      await waiting;
    },
  );
});
