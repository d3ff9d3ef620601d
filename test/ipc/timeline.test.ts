/** Timelines between real processes: the order holds, however either side ends. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { createMemfd, isOpenFd, libc } from '../../ffi/linux/libc.ts';
import { Stream } from '../../src/index.ts';
import { Timeline } from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { iterations, spinUntil, turns } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { killed } from '../support/program.ts';
import { placements, StepProcess, shareSteps } from './fixtures/steps.ts';
import type { Step } from './fixtures/timelines.ts';

if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const options = { timeout: 60_000 + iterations(0, 1_200_000) };
const program = new URL('./fixtures/timelines.ts', import.meta.url);
const O_CLOEXEC = 0x8_0000;

/** A child that waits for `timeline`, and signals the one that is returned. */
class Other extends StepProcess<Step> {
  constructor(device = 0) {
    super(program, device);
  }

  /** Exchanges timelines: sends one, and returns the child's. */
  take(timeline: Timeline): Promise<Timeline> {
    return this.ask({ do: 'take', timeline });
  }
}

const shared = shareSteps(3, () => new Other());

describe('a timeline between processes', () => {
  for (const [here, there] of placements())
    test(
      `devices ${here} and ${there}: the order holds while both streams wait`,
      options,
      async () => {
        await using apart = there === 0 ? undefined : new Other(there);
        const other = apart ?? shared.lend()[0];
        using timeline = Timeline.create();
        using theirs = await other.take(timeline);
        using producer = Stream.create({ device: here, nonBlocking: true });
        using consumer = Stream.create({ device: here, nonBlocking: true });
        for (let value = 1; value <= iterations(20, 1000); value += 1) {
          using latch = new Latch(producer.context);
          latch.hold(producer);
          // All wait before anything was signaled; then the signal is queued behind the latch.
          await other.ask({ do: 'echo', value });
          theirs.wait(value, { stream: consumer });
          timeline.signal(value, { stream: producer });
          assert.equal(await other.ask({ do: 'isDone' }), false);
          assert.deepEqual([consumer.done, theirs.value], [false, value - 1]);
          latch.open();
          await consumer.synchronize();
          assert.deepEqual([timeline.value, theirs.value], [value, value]);
          assert.equal(await other.ask({ do: 'value' }), value);
        }
      },
    );

  test('three processes wait for one, in streams and in hosts', options, async () => {
    const others = shared.lend(3);
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    for (const other of others) (await other.take(timeline)).close();
    const reached = others.map((other) => other.ask({ do: 'reached', value: 2 }));
    for (const other of others) await other.ask({ do: 'wait', value: 2 });
    timeline.signal(1, { stream });
    await timeline.reached(1);
    for (const other of others) assert.equal(await other.ask({ do: 'isDone' }), false);
    timeline.signal(2, { stream });
    assert.deepEqual(await Promise.all(reached), ['reached', 'reached', 'reached']);
    for (const other of others) while (!(await other.ask({ do: 'isDone' })));
  });

  test(
    'the signaler is handed to another process, behind what is queued here',
    options,
    async () => {
      await using other = new Other();
      using timeline = Timeline.create();
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(stream);
      timeline.signal(1, { stream });
      const signaler: unknown = timeline.signaler();
      (await other.ask<Timeline>({ do: 'take', timeline: signaler as Timeline })).close();
      await other.ask({ do: 'signalGiven', value: 2 });
      assert.deepEqual([await other.ask({ do: 'isDone' }), timeline.value], [false, 0]);
      latch.open();
      await timeline.reached(2);
      await killed(other.child.process);
      await assert.rejects(timeline.reached(3), {
        name: 'PeerGoneError',
        message: /after value 2/,
      });
    },
  );

  for (const dies of ['maker', 'middle'] as const)
    test(
      `a signaler that was handed on twice: the end of the ${dies} before the last value ends the timeline`,
      options,
      async () => {
        await using maker = new Other();
        await using middle = new Other();
        const [third] = shared.lend();
        await maker.ask({ do: 'hold' });
        await maker.ask({ do: 'signal', value: 5 });
        const given = await maker.ask<Timeline>({ do: 'signaler' });
        // This process keeps nothing of it, and goes on watching the maker.
        const passed = given.signaler();
        given.close();
        (await middle.ask<Timeline>({ do: 'take', timeline: passed as never })).close();
        using timeline = await middle.ask<Timeline>({ do: 'handOn' });
        (await third.take(timeline)).close();
        using stream = Stream.create({ nonBlocking: true });
        timeline.signal(6, { stream });
        await third.ask({ do: 'wait', value: 5 });
        const reached = third.ask({ do: 'reached', value: 5 });
        assert.deepEqual([stream.done, await third.ask({ do: 'isDone' })], [false, false]);
        const { process: ended } = dies === 'maker' ? maker.child : middle.child;
        ended.kill('SIGKILL');
        await stream.synchronize();
        assert.equal(await reached, 'PeerGoneError');
        while (!(await third.ask({ do: 'isDone' })));
        await assert.rejects(timeline.reached(5), {
          name: 'PeerGoneError',
          abandonedWaits: 1,
          message: /has ended after value 0, before the values that it had signaled were reached/,
        });
        assert.throws(() => timeline.signal(7, { stream }), { name: 'PeerGoneError' });
        assert.equal(await third.ask({ do: 'reached', value: 6 }), 'PeerGoneError');
      },
    );

  test(
    'what was queued before the hand-over comes from a process that has closed its connection',
    options,
    async () => {
      await using maker = new Other();
      await maker.ask({ do: 'hold' });
      await maker.ask({ do: 'signal', value: 1 });
      using timeline = await maker.ask<Timeline>({ do: 'signaler' });
      using stream = Stream.create({ nonBlocking: true });
      timeline.signal(2, { stream });
      await maker.ask({ do: 'releaseLater' });
      maker.child.close();
      await timeline.reached(2);
      assert.equal(timeline.value, 2);
      await stream.synchronize();
    },
  );

  test(
    'a host that is blocked by its waiting stream goes on when the signaler closes',
    options,
    async () => {
      const [other] = shared.lend();
      for (const how of ['close', 'signaler'] as const) {
        using timeline = Timeline.create();
        using theirs = await other.take(timeline);
        using stream = Stream.create({ nonBlocking: true });
        theirs.wait(1, { stream });
        assert.equal(stream.done, false);
        const closed = other.ask({ do: 'closeOwn', signaler: how === 'signaler' });
        // As a call of the driver that waits for the stream: the event loop does not turn.
        spinUntil(() => stream.done);
        assert.equal(stream.done, true);
        await closed;
        assert.throws(() => theirs.value, { name: 'PeerGoneError', message: /after value 0/ });
      }
    },
  );

  test(
    'a killed signaler frees the streams of a closed timeline, which closes nothing twice',
    options,
    async () => {
      await using other = new Other();
      using timeline = Timeline.create();
      const theirs = await other.take(timeline);
      using stream = Stream.create({ nonBlocking: true });
      theirs.wait(1, { stream });
      const { memory } = theirs.fds;
      theirs.close();
      assert.equal(isOpenFd(memory), false);
      // Something else gets the number.
      const taken = createMemfd('taken', 4096);
      if (taken !== memory) libc.dup3(taken, memory, O_CLOEXEC);
      assert.equal(stream.done, false);
      await killed(other.child.process);
      await stream.synchronize();
      await turns();
      assert.equal(isOpenFd(memory), true);
      for (const fd of new Set([memory, taken])) libc.close(fd);
    },
  );

  test('a killed signaler frees the streams and hosts that wait for it', options, async () => {
    for (let round = 0; round < iterations(2, 100); round += 1) {
      await using other = new Other();
      const [third] = shared.lend();
      using timeline = Timeline.create();
      using theirs = await other.take(timeline);
      (await third.take(theirs)).close();
      using stream = Stream.create({ nonBlocking: true });
      await other.ask({ do: 'signal', value: 1 });
      await theirs.reached(1);
      theirs.wait(3, { stream });
      await third.ask({ do: 'wait', value: 3 });
      const reached = theirs.reached(2);
      const thirdReached = third.ask({ do: 'reached', value: 2 });
      assert.equal(stream.done, false);
      if (round % 2 === 1) await other.ask({ do: 'hold' });
      if (round % 2 === 1) await other.ask({ do: 'signal', value: 2 });
      other.child.process.kill('SIGKILL');
      await assert.rejects(reached, { name: 'PeerGoneError', message: /after value 1/ });
      assert.equal(await thirdReached, 'PeerGoneError');
      await stream.synchronize();
      while (!(await third.ask({ do: 'isDone' })));
      assert.throws(() => theirs.value, { name: 'PeerGoneError' });
    }
  });

  test('a process that is killed while it waits disturbs no other', options, async () => {
    for (let round = 0; round < iterations(1, 100); round += 1) {
      await using other = new Other();
      const [third] = shared.lend();
      using timeline = Timeline.create();
      using stream = Stream.create({ nonBlocking: true });
      (await other.take(timeline)).close();
      (await third.take(timeline)).close();
      await other.ask({ do: 'wait', value: 1 });
      await third.ask({ do: 'wait', value: 1 });
      await killed(other.child.process);
      assert.deepEqual([timeline.value, await third.ask({ do: 'isDone' })], [0, false]);
      timeline.signal(1, { stream });
      await timeline.reached(1);
      while (!(await third.ask({ do: 'isDone' })));
    }
  });

  test(
    'a process whose stream waits exits by itself, and the others wait on',
    options,
    async () => {
      await using other = new Other();
      using timeline = Timeline.create();
      using waiting = Stream.create({ nonBlocking: true });
      (await other.take(timeline)).close();
      timeline.wait(1, { stream: waiting });
      const exited = once(other.child.process, 'exit');
      await other.ask({ do: 'exit', value: 1 }).catch(() => {});
      assert.deepEqual(await exited, [7, null]);
      assert.deepEqual([timeline.value, waiting.done], [0, false]);
      using stream = Stream.create({ nonBlocking: true });
      timeline.signal(1, { stream });
      await waiting.synchronize();
    },
  );
});
