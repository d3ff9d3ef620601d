/** Timelines, channels and page-locked memory between Node and the companion for Python. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Context, Stream } from '../../src/index.ts';
import { leases, Timeline } from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { killed } from '../support/program.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const options = { skip: noPython, timeout: 60_000 + iterations(0, 1_200_000) };
const program = new URL('./fixtures/python-channels.py', import.meta.url);

/** A process in Python. */
class Python extends PythonWorker {
  constructor() {
    super('serve', {}, program);
  }

  evaluate(source: string): Promise<string> {
    return this.ask<unknown>('evaluate', { source }).then(String);
  }
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await condition()); tries += 1) {
    if (tries > 5000) throw new Error(`still not: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

async function nothingIsLent(python: Python): Promise<void> {
  await Context.primary().flush();
  await until(async () => {
    const { lent, held } = await python.ask<{ lent: number; held: number }>('counts');
    return lent + held + leases.stats().leases.length === 0;
  });
}

describe('timelines between Node and Python', options, () => {
  test('the order holds while the streams of both wait', options, async () => {
    await using python = new Python();
    using timeline = Timeline.create();
    using theirs = await python.ask<Timeline>('make_timeline', { name: 'back' });
    await python.ask('keep', { name: 'given', thing: timeline });
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    for (let value = 1; value <= iterations(10, 1000); value += 1) {
      using latch = new Latch(producer.context);
      latch.hold(producer);
      await python.ask('echo', { name: 'given', back: 'back', value });
      theirs.wait(value, { stream: consumer });
      timeline.signal(value, { stream: producer });
      assert.deepEqual(
        [await python.ask('is_done'), consumer.done, theirs.value],
        [false, false, value - 1],
      );
      latch.open();
      await consumer.synchronize();
      assert.deepEqual([timeline.value, theirs.value], [value, value]);
      assert.equal(await python.ask('value_of', { name: 'given' }), value);
    }
    for (const name of ['given', 'back']) await python.ask('close', { name });
    await assert.rejects(theirs.reached(2 ** 40), { name: 'PeerGoneError' });
    theirs.close();
    await nothingIsLent(python);
  });

  test('hosts wait for values of the other, and for its end', options, async () => {
    await using python = new Python();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    await python.ask('keep', { name: 'given', thing: timeline });
    assert.match(
      await python.evaluate("kept['given'].reached(1, 0.01)"),
      /^TimeoutError : waiting for value 1/,
    );
    await python.ask('begin_reached', { name: 'given', value: 2 });
    timeline.signal(2, { stream });
    assert.equal(await python.ask('result', { name: 'reached' }), 'done');
    await python.ask('begin_reached', { name: 'given', value: 3 });
    timeline.close();
    assert.match(
      await python.ask('result', { name: 'reached' }),
      new RegExp(
        `^PeerGoneError peer-gone: process ${process.pid} has ended or closed the timeline after value 2: value 3`,
      ),
    );
    using theirs = await python.ask<Timeline>('make_timeline', { name: 'own' });
    const reached = theirs.reached(1);
    await python.ask('signal_value', { name: 'own', value: 1 });
    await reached;
    await python.ask('close', { name: 'own' });
    await assert.rejects(theirs.reached(2), { name: 'PeerGoneError', message: /after value 1/ });
  });

  test('the signaler goes from one to the other, behind what is queued', options, async () => {
    await using python = new Python();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    {
      using latch = new Latch();
      latch.hold(stream);
      timeline.signal(1, { stream });
      await python.ask('keep', { name: 'given', thing: timeline.signaler() });
      await python.ask('signal_value', { name: 'given', value: 2 });
      assert.deepEqual([await python.ask('is_done'), timeline.value], [false, 0]);
      latch.open();
    }
    await timeline.reached(2);
    await python.ask('hold');
    await python.ask('signal_value', { name: 'given', value: 3 });
    const back = await python.ask<Timeline>('signaler', { name: 'given' });
    assert.match(
      await python.evaluate("kept['given'].signal(4)"),
      /^CuffiError invalid-state: this process does not signal/,
    );
    back.signal(4, { stream });
    assert.deepEqual([back.isSignaler, stream.done, back.value], [true, false, 2]);
    await python.ask('open_latch');
    await timeline.reached(4);
    assert.equal(await python.evaluate("kept['given'].value"), '4');
    await python.ask('close', { name: 'given' });
    back.close();
    await assert.rejects(timeline.reached(5), { name: 'PeerGoneError', message: /after value 4/ });
  });

  test('a killed signaler frees the streams and hosts that wait for it', options, async () => {
    for (let round = 0; round < iterations(1, 50); round += 1) {
      await using one = new Python();
      await using two = new Python();
      using theirs = await one.ask<Timeline>('make_timeline', { name: 'own' });
      // Python hears of the end of another process in Python, and Node too.
      await two.ask('keep', { name: 'given', thing: theirs });
      using stream = Stream.create({ nonBlocking: true });
      await one.ask('signal_value', { name: 'own', value: 1 });
      await theirs.reached(1);
      theirs.wait(3, { stream });
      await two.ask('wait', { name: 'given', value: 3 });
      await two.ask('begin_reached', { name: 'given', value: 2 });
      assert.deepEqual([stream.done, await two.ask('is_done')], [false, false]);
      if (round % 2 === 1) await one.ask('hold');
      if (round % 2 === 1) await one.ask('signal_value', { name: 'own', value: 2 });
      one.peer.process.kill('SIGKILL');
      await stream.synchronize();
      assert.match(await two.ask('result', { name: 'reached' }), /^PeerGoneError .*after value 1/);
      await until(async () => (await two.ask('is_done')) === true);
      assert.match(await two.evaluate("kept['given'].wait(3, stream)"), /^PeerGoneError/);
    }
  });

  test('a process whose streams wait may be closed, and killed', options, async () => {
    await using python = new Python();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    await python.ask('keep', { name: 'given', thing: timeline });
    await python.ask('wait', { name: 'given', value: 1 });
    await python.ask('close', { name: 'given' });
    await python.ask('drop', { name: 'given' });
    assert.deepEqual([await python.ask('is_done'), leases.stats().leases.length], [false, 1]);
    timeline.signal(1, { stream });
    await nothingIsLent(python);
    await python.ask('keep', { name: 'given', thing: timeline });
    await python.ask('wait', { name: 'given', value: 2 });
    await killed(python.peer.process);
    timeline.signal(2, { stream });
    await timeline.reached(2);
  });

  test('no more streams wait than the driver takes', options, async () => {
    await using python = new Python();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    await python.ask('keep', { name: 'given', thing: timeline });
    await python.evaluate("[kept['given'].wait(value, stream) for value in range(1, 321)]");
    const full = /^CuffiError invalid-state: too many streams of this process wait already/;
    assert.match(await python.evaluate("kept['given'].wait(321, stream)"), full);
    assert.match(
      await python.evaluate("[kept['given'].wait(1, new_stream()) for _ in range(6)]"),
      full,
    );
    timeline.signal(400, { stream });
    await until(async () => (await python.ask('is_done')) === true);
    assert.equal(await python.evaluate("kept['given'].wait(401, stream)"), 'null');
    timeline.signal(401, { stream });
  });
});
