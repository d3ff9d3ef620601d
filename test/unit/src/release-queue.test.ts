import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { Fence } from '../../../src/fence.ts';
import { isTurnDue } from '../../../src/poller.ts';
import { type ReleaseOptions, ReleaseQueue, releaseLimits } from '../../../src/release-queue.ts';
import { turns, until } from '../../support/iterations.ts';

/** A queue whose work the test decides, and what was released so far. */
describe('ReleaseQueue', () => {
  const used: { idle: boolean }[] = [];
  afterEach(() => {
    // A queue is looked at until it is empty.
    for (const state of used.splice(0)) state.idle = true;
  });

  function held(limits: Partial<{ count: number; byteLength: number }> = {}) {
    const state = {
      idle: false,
      fences: [] as { done: boolean }[],
      asked: 0,
      /** How often the queue asked whether nothing runs. */
      looked: 0,
      released: [] as string[],
    };
    used.push(state);
    const fence = (): Fence => {
      const made = { done: false };
      state.fences.push(made);
      const isIdle = (): boolean => {
        state.asked += 1;
        return made.done;
      };
      return new Fence([{ events: [], isDone: isIdle, isReset: () => false, releaseEvent() {} }]);
    };
    const queue = new ReleaseQueue(
      {
        isIdle() {
          state.looked += 1;
          return state.idle;
        },
        fence,
      },
      { count: limits.count ?? 10, byteLength: () => limits.byteLength ?? 1000 },
    );
    const submit = (name: string, options?: ReleaseOptions): void =>
      queue.enqueue(() => state.released.push(name), options);
    const early = (name: string, byteLength = 0): void =>
      submit(`${name} when idle`, {
        byteLength,
        nonBlockingRelease: () => state.released.push(`${name} early`),
      });
    return { state, queue, submit, early };
  }

  test('a release runs at once if it cannot block', () => {
    const { state, queue, submit } = held();
    state.idle = true;
    submit('a');
    assert.deepEqual(state.released, ['a']);
    assert.equal(queue.size, 0);
  });

  test('releases that may block are queued, and run in order when the context is idle', async () => {
    const { state, queue, submit } = held();
    submit('a');
    submit('b');
    assert.equal(queue.size, 2);
    assert.equal(queue.drainReady(), false);
    assert.deepEqual(state.released, []);
    state.idle = true;
    await until(() => queue.size === 0);
    assert.deepEqual(state.released, ['a', 'b']);
  });

  test('no release overtakes a pending one', () => {
    const { state, queue, submit } = held();
    submit('a');
    state.idle = true;
    submit('b');
    assert.deepEqual(state.released, []);
    assert.equal(queue.drainReady(), true);
    assert.deepEqual(state.released, ['a', 'b']);
  });

  test('flush() resolves when everything is released, and at once if nothing is pending', async () => {
    const { state, queue, submit } = held();
    await queue.flush();
    submit('a');
    let flushed = false;
    const flushing = queue.flush().then(() => {
      flushed = true;
    });
    await turns();
    assert.equal(flushed, false);
    state.idle = true;
    await flushing;
    assert.deepEqual(state.released, ['a']);
  });

  test('a queued release that fails is a warning, and the others still run', async () => {
    const { state, queue, submit } = held();
    submit('a');
    queue.enqueue(() => {
      throw new Error('no such memory');
    });
    submit('c');
    const warned = once(process, 'warning') as Promise<[Error & { code?: string }]>;
    state.idle = true;
    await queue.flush();
    assert.deepEqual(state.released, ['a', 'c']);
    const [warning] = await warned;
    assert.match(warning.message, /no such memory/);
  });

  test('the warning of a queued release that fails has the code CUFFI_RELEASE', async () => {
    const { state, queue } = held();
    queue.enqueue(() => {
      throw new Error('no such memory');
    });
    const warned = once(process, 'warning') as Promise<[Error & { code?: string }]>;
    state.idle = true;
    await queue.flush();
    const [warning] = await warned;
    assert.equal(warning.code, 'CUFFI_RELEASE');
  });

  test('cleared releases never run, and the queue goes on working', async () => {
    const { state, queue, submit } = held();
    submit('a');
    queue.clear();
    assert.equal(queue.size, 0);
    submit('b');
    state.idle = true;
    await until(() => queue.size === 0);
    assert.deepEqual(state.released, ['b']);
  });

  test('cleared releases do not count, and are not drained', () => {
    const { state, queue, early } = held({ byteLength: 1000 });
    early('a', 999);
    queue.drainReady();
    early('b', 1);
    queue.clear();
    assert.deepEqual([queue.size, queue.byteLength], [0, 0]);
    assert.equal(queue.drainReady(true), true);
    for (const fence of state.fences) fence.done = true;
    early('c', 2);
    assert.equal(queue.byteLength, 2);
    queue.drainReady();
    // There is room: what was cleared is not counted against it.
    assert.deepEqual(state.released, []);
  });

  test('a release that clears the queue stops all pending releases', () => {
    for (const isIdle of [true, false]) {
      const { state, queue, submit } = held();
      queue.enqueue(() => queue.clear(), { mayBlock: false });
      submit('of its batch', { mayBlock: false, byteLength: 5 });
      queue.drainReady();
      submit('of the next', { mayBlock: false });
      queue.drainReady();
      submit('of none yet');
      state.idle = isIdle;
      for (const fence of state.fences) fence.done = true;
      assert.equal(queue.drainReady(), true);
      assert.deepEqual(state.released, []);
      assert.deepEqual([queue.size, queue.byteLength], [0, 0]);
      state.idle = true;
      submit('later');
      assert.deepEqual(state.released, ['later']);
    }
  });

  test('a release that drains the queue loses no release, and none overtakes another', () => {
    const { state, queue, submit } = held();
    let inner: boolean | undefined;
    queue.enqueue(
      () => {
        state.released.push('first');
        inner = queue.drainReady(true);
      },
      { mayBlock: false },
    );
    submit('second', { mayBlock: false });
    submit('when idle');
    queue.drainReady();
    submit('third', { mayBlock: false });
    queue.drainReady();
    for (const fence of state.fences) fence.done = true;
    assert.equal(queue.drainReady(), false);
    assert.equal(inner, false);
    assert.deepEqual(state.released, ['first', 'second', 'third']);
    state.idle = true;
    assert.equal(queue.drainReady(), true);
    assert.deepEqual(state.released, ['first', 'second', 'third', 'when idle']);
    // Also while all is released.
    state.idle = false;
    queue.enqueue(() => (inner = queue.drainReady()));
    submit('last');
    state.idle = true;
    assert.equal(queue.drainReady(), true);
    assert.equal(inner, false);
    assert.equal(state.released.at(-1), 'last');
    assert.deepEqual([queue.size, queue.byteLength], [0, 0]);
  });

  test('the queue is drained each time the limits are exceeded, not at each close', () => {
    for (const [limits, byteLength] of [
      [{ count: 10 }, 0],
      [{ count: 1000, byteLength: 1000 }, 100],
    ] as const) {
      const { state, queue, submit } = held(limits);
      // The first asks whether it may run at once.
      submit('0', { byteLength });
      state.looked = 0;
      for (let n = 1; n <= 110; n += 1) submit(String(n), { byteLength });
      assert.equal(state.looked, 10, JSON.stringify(limits));
      assert.equal(queue.size, 111);
    }
  });

  test('a release that is queued by another release is not lost', async () => {
    const { state, queue, submit } = held();
    queue.enqueue(() => {
      state.idle = false;
      submit('inner');
    });
    state.idle = true;
    queue.drainReady();
    assert.equal(queue.size, 1);
    state.idle = true;
    await until(() => queue.size === 0);
    assert.deepEqual(state.released, ['inner']);
  });

  test('a release that never blocks runs as soon as the work queued before it is done', () => {
    const { state, queue, submit } = held();
    submit('first', { mayBlock: false });
    submit('whole context');
    assert.equal(queue.drainReady(), false);
    submit('second', { mayBlock: false });
    queue.drainReady();
    const [first, second] = state.fences as [{ done: boolean }, { done: boolean }];
    second.done = true;
    queue.drainReady();
    assert.deepEqual(state.released, ['second']);
    first.done = true;
    queue.drainReady();
    assert.deepEqual(state.released, ['second', 'first']);
    assert.equal(queue.size, 1);
  });

  test('above the count limit, the non-blocking releases of finished work run, and no others', () => {
    const { state, queue, early } = held({ count: 2 });
    early('a');
    early('b');
    queue.drainReady();
    const [fence] = state.fences as [{ done: boolean }];
    fence.done = true;
    queue.drainReady();
    assert.deepEqual(state.released, []);
    early('c');
    assert.deepEqual(state.released, ['a early', 'b early']);
    assert.equal(queue.size, 1);
  });

  test('above the byte limit, the same happens, and pending bytes count', () => {
    const { state, queue, early } = held({ byteLength: 1000 });
    early('small', 999);
    assert.equal(queue.byteLength, 999);
    early('large', 2);
    (state.fences[0] as { done: boolean }).done = true;
    queue.drainReady();
    assert.deepEqual(state.released, ['small early', 'large early']);
    assert.equal(queue.byteLength, 0);
  });

  test('flush() runs non-blocking releases even below the limits', async () => {
    const { state, queue, early } = held();
    early('a');
    const flushing = queue.flush();
    (state.fences[0] as { done: boolean }).done = true;
    await flushing;
    assert.deepEqual(state.released, ['a early']);
  });

  test('flush() waits for no work that is queued after its call, though a turn of the event loop is due', async () => {
    const { state, queue, early } = held();
    early('a');
    while (!isTurnDue());
    const flushing = queue.flush();
    assert.equal(state.fences.length, 1);
    (state.fences[0] as { done: boolean }).done = true;
    await flushing;
    assert.deepEqual(state.released, ['a early']);
  });

  test('if the non-blocking release fails, the ordinary one runs when the context is idle', () => {
    const { state, queue, submit } = held({ count: 0 });
    submit('a', {
      nonBlockingRelease() {
        throw new Error('no stream to be had');
      },
    });
    (state.fences[0] as { done: boolean }).done = true;
    queue.drainReady();
    assert.deepEqual([queue.size, state.released], [1, []]);
    state.idle = true;
    queue.drainReady();
    assert.deepEqual([queue.size, state.released], [0, ['a']]);
  });

  test('flush() throws inside a scope of defer(), for whose end it would wait', async () => {
    const { state, queue, submit } = held();
    state.idle = true;
    using _ = queue.defer();
    await queue.flush();
    submit('a');
    await assert.rejects(queue.flush(), /deferCleanup\(\) holds back/);
  });

  test('a blocked stream does not make draining slower with every close', () => {
    const { state, queue, submit } = held({ count: 0 });
    for (let i = 0; i < 1000; i++) submit(String(i), { mayBlock: false });
    assert.equal(queue.size, 1000);
    state.asked = 0;
    queue.drainReady();
    assert.ok(state.asked < 100, `${state.asked}`);
    for (const fence of state.fences) fence.done = true;
    queue.drainReady();
    assert.equal(state.released.length, 1000);
  });

  test('a scope of defer() that ends twice ends no other scope', () => {
    const { queue } = held();
    using _outer = queue.defer();
    const inner = queue.defer();
    inner[Symbol.dispose]();
    inner[Symbol.dispose]();
    assert.equal(queue.isDeferred, true);
  });

  test('nothing is released inside a scope of defer(), nor in the outer scope after the inner one', async () => {
    const { state, queue, submit } = held();
    state.idle = true;
    const outer = queue.defer();
    assert.throws(() => {
      using _ = queue.defer();
      submit('a');
      throw new Error('within');
    }, /within/);
    submit('b');
    assert.equal(queue.drainReady(true), false);
    assert.deepEqual(state.released, []);
    outer[Symbol.dispose]();
    outer[Symbol.dispose]();
    await until(() => queue.size === 0);
    assert.deepEqual(state.released, ['a', 'b']);
  });
});

describe('releaseLimits', () => {
  const COUNT = 'CUFFI_DEALLOCS_COUNT';
  const RATIO = 'CUFFI_DEALLOCS_RATIO';

  afterEach(() => {
    delete process.env[COUNT];
    delete process.env[RATIO];
  });

  test('the limits are ten releases and a fifth of the memory, as in numba', () => {
    const limits = releaseLimits(() => 1000);
    assert.equal(limits.count, 10);
    assert.equal(limits.byteLength(), 200);
  });

  test('the environment sets the limits, zero included', () => {
    process.env[COUNT] = '0';
    process.env[RATIO] = '0.5';
    const limits = releaseLimits(() => 1000);
    assert.equal(limits.count, 0);
    assert.equal(limits.byteLength(), 500);
  });

  test('an invalid count or ratio is rejected by name', () => {
    for (const wrong of ['many', '-1', '2.5', 'NaN']) {
      process.env[COUNT] = wrong;
      assert.throws(() => releaseLimits(() => 1000), /CUFFI_DEALLOCS_COUNT must be/);
    }
    delete process.env[COUNT];
    for (const wrong of ['half', '-0.1', '1.1']) {
      process.env[RATIO] = wrong;
      assert.throws(() => releaseLimits(() => 1000), /CUFFI_DEALLOCS_RATIO must be/);
    }
  });

  test('a memory size that the driver cannot return limits nothing, until it can', () => {
    let isLost = true;
    const limits = releaseLimits(() => {
      if (isLost) throw new Error('the device is lost');
      return 1000;
    });
    assert.equal(limits.byteLength(), Number.POSITIVE_INFINITY);
    isLost = false;
    assert.equal(limits.byteLength(), 200);
  });
});
