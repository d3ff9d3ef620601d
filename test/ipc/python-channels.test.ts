/** Timelines, channels and page-locked memory between Node and the companion for Python. */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { libc } from '../../ffi/linux/libc.ts';
import {
  Context,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  PinnedBuffer,
  Stream,
} from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ConsumerSlot,
  leases,
  Timeline,
} from '../../src/ipc/index.ts';
import { iterations, seed, spinUntil } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { killed } from '../support/program.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const options = { skip: noPython, timeout: 60_000 + iterations(0, 1_200_000) };
const program = new URL('./fixtures/python-channels.py', import.meta.url);

/** A process in Python. Those that were not killed serve the next tests as well. */
class Python extends PythonWorker {
  static readonly idle: Python[] = [];
  #isWarm = false;

  /** Starts as many as most tests need, in place of those that the last one has ended. */
  static async startIdle(): Promise<void> {
    while (Python.idle.length < 2) {
      const python = new Python('serve', {}, program);
      Python.idle.push(python);
      await python.warmUp();
    }
  }

  static start(): Python {
    return Python.idle.pop() ?? new Python('serve', {}, program);
  }

  /** What a connection needs for work that runs on both sides, it keeps from then on. */
  async warmUp(): Promise<void> {
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const theirs = await this.ask<DeviceArray>('make_array', { name: 'warm' });
    using mine = deviceArray(16, 'uint32');
    latch.hold(stream);
    mine.fill(1, { stream });
    theirs.fill(1, { stream });
    const asked = this.peer.request({ do: 'fill', array: mine, value: 1 } as never, { stream });
    theirs.close({ stream });
    latch.open();
    await asked;
    await stream.synchronize();
    await this.ask('forget');
    this.#isWarm = true;
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    const isUsable = this.#isWarm && (await this.ask('forget').catch(() => false));
    if (isUsable) Python.idle.push(this);
    else await super[Symbol.asyncDispose]();
  }

  end(): Promise<void> {
    return super[Symbol.asyncDispose]();
  }

  evaluate(source: string): Promise<string> {
    return this.ask<unknown>('evaluate', { source }).then(String);
  }
}

before(Python.startIdle);
afterEach(Python.startIdle);
after(() => Promise.all(Python.idle.map((python) => python.end())));

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await condition()); tries += 1) {
    if (tries > 2000) throw new Error(`still not: ${condition}`);
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

describe('timelines between Node and Python', { skip: options.skip }, () => {
  test('the order holds while the streams of both wait', options, async () => {
    await using python = Python.start();
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
    await using python = Python.start();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    await python.ask('keep', { name: 'given', thing: timeline });
    assert.match(
      await python.evaluate("kept['given'].reached(1, timeout=0.01)"),
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
    await using python = Python.start();
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
      await using one = Python.start();
      await using two = Python.start();
      using theirs = await one.ask<Timeline>('make_timeline', { name: 'own' });
      // Python waits for a timeline that nobody else has: it hears of the end itself.
      await one.ask('make_privately');
      await passed(one, two, 'private');
      using stream = Stream.create({ nonBlocking: true });
      for (const name of ['own', 'private']) await one.ask('signal_value', { name, value: 1 });
      await theirs.reached(1);
      await until(async () => (await two.evaluate("kept['given'].value")) === '1');
      theirs.wait(3, { stream });
      await two.ask('wait', { name: 'given', value: 3 });
      await two.ask('begin_reached', { name: 'given', value: 2 });
      assert.deepEqual([stream.done, await two.ask('is_done')], [false, false]);
      if (round % 2 === 1) await one.ask('hold');
      if (round % 2 === 1)
        for (const name of ['own', 'private']) await one.ask('signal_value', { name, value: 2 });
      one.peer.process.kill('SIGKILL');
      await stream.synchronize();
      assert.match(await two.ask('result', { name: 'reached' }), /^PeerGoneError .*after value 1/);
      await until(async () => (await two.ask('is_done')) === true);
      assert.match(await two.evaluate("kept['given'].wait(3, stream)"), /^PeerGoneError/);
    }
  });

  test(
    'a signaler that was handed on: the end of its maker before the last value ends the timeline',
    options,
    async () => {
      for (const middle of ['Node', 'Python'] as const) {
        await using maker = Python.start();
        await using other = Python.start();
        await maker.ask('make_timeline', { name: 'own' });
        await maker.ask('hold');
        await maker.ask('signal_value', { name: 'own', value: 5 });
        const given = await maker.ask<Timeline>('signaler', { name: 'own' });
        await other.ask('keep', { name: 'given', thing: given.signaler() });
        given.close();
        using stream = Stream.create({ nonBlocking: true });
        const isDone = async (): Promise<boolean> =>
          middle === 'Node' ? (await other.ask('is_done')) === true : stream.done;
        let last: Timeline | undefined;
        if (middle === 'Node') await other.ask('signal_value', { name: 'given', value: 6 });
        else {
          last = await other.ask<Timeline>('hand_on', { name: 'given' });
          last.signal(6, { stream });
        }
        assert.equal(await isDone(), false);
        await killed(maker.peer.process);
        await until(isDone);
        const lost = /has ended after value 0, before the values that it had signaled were reached/;
        if (last) {
          await assert.rejects(last.reached(5), { name: 'PeerGoneError', message: lost });
          assert.throws(() => last?.signal(7, { stream }), { name: 'PeerGoneError' });
          last.close();
        } else
          for (const use of ['reached(5, timeout=20)', 'signal(7, stream)', 'signaler()', 'value'])
            assert.match(
              await other.evaluate(`kept['given'].${use}`),
              new RegExp(`PeerGoneError.*${lost.source}`),
            );
      }
    },
  );

  test(
    'the end of the process that handed over ends the timeline, also for Python as its heir',
    options,
    async () => {
      await using maker = Python.start();
      await using heir = Python.start();
      await maker.ask('make_privately');
      await maker.ask('hold');
      await maker.ask('signal_value', { name: 'private', value: 5 });
      await maker.evaluate("kept.update(right=kept['private'].signaler())");
      await passed(maker, heir, 'right');
      await heir.ask('signal_value', { name: 'given', value: 6 });
      // Neither the connection nor the timeline is open any more: the duty is.
      await heir.evaluate("kept['other'].close()");
      assert.equal(await heir.ask('is_done'), false);
      await killed(maker.peer.process);
      await until(async () => (await heir.ask('is_done')) === true);
      assert.match(
        await heir.evaluate("kept['given'].reached(5, timeout=20)"),
        new RegExp(
          `^PeerGoneError peer-gone: process ${maker.peer.process.pid} that had handed over`,
        ),
      );
      assert.match(await heir.evaluate("kept['given'].signal(7, stream)"), /^PeerGoneError/);
    },
  );

  test(
    'a host that is blocked by its waiting stream goes on when Python closes',
    options,
    async () => {
      await using python = Python.start();
      for (const unsent of [false, true]) {
        using timeline = await python.ask<Timeline>('make_timeline', { name: 'own' });
        using stream = Stream.create({ nonBlocking: true });
        timeline.wait(1, { stream });
        assert.equal(stream.done, false);
        const closed = python.ask('close_own', { name: 'own', unsent });
        spinUntil(() => stream.done);
        assert.equal(stream.done, true);
        await closed;
        assert.throws(() => timeline.value, { name: 'PeerGoneError', message: /after value 0/ });
      }
    },
  );

  test('a process whose streams wait may be closed, and killed', options, async () => {
    await using python = Python.start();
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
    await using python = Python.start();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    await python.ask('keep', { name: 'given', thing: timeline });
    await python.evaluate("[kept['given'].wait(value, stream) for value in range(1, 321)]");
    const full = /^CuffiError invalid-state: too many streams of this process already wait/;
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

const small = { slots: 4, shape: 16, dtype: 'uint32' } as const;

/** What a consumer has seen. */
interface Seen {
  readonly messages: readonly number[];
  readonly wrong: readonly number[];
  readonly redelivered: readonly number[];
  readonly end: string;
}

const range = (begin: number, end: number): number[] =>
  Array.from({ length: end - begin }, (_, at) => begin + at);
const all = (begin: number, end: number): Seen => ({
  messages: range(begin, end),
  wrong: [],
  redelivered: [],
  end: 'end',
});

async function produce(channel: Channel, stream: Stream, count: number): Promise<void> {
  for (let at = 0; at < count; at += 1) {
    const slot = await channel.acquire({ timeoutMs: 20_000 });
    slot.array.fill(slot.message, { stream });
    slot.publish({ stream });
  }
}

async function consume(channel: ChannelConsumer, stream: Stream): Promise<Seen> {
  const messages: number[] = [];
  const wrong: number[] = [];
  const redelivered: number[] = [];
  try {
    for await (const slot of channel) {
      messages.push(slot.message);
      if (slot.redelivered) redelivered.push(slot.message);
      const [value] = await slot.array.copyToHost(undefined, { stream });
      if (Number(value) !== slot.message) wrong.push(slot.message);
      slot.release({ stream });
    }
    return { messages, wrong, redelivered, end: 'end' };
  } catch (error) {
    return { messages, wrong, redelivered, end: (error as Error).name };
  }
}

/** A channel that Python produces into. */
const made = (python: Python, options: object): Promise<ChannelConsumer> =>
  python.ask('create', { name: 'own', options });

let names = 0;

/** Sends the channel that one process in Python produces to another, over a connection of their own. */
async function passed(producer: Python, consumer: Python, what = 'own'): Promise<void> {
  names += 1;
  const name = `@cuffi-test-${process.pid}-channel-${names}`;
  await consumer.evaluate(`kept.update(listener=cuffi.listen('${name}'))`);
  const taken = consumer.evaluate(
    "kept.update(other=kept['listener'].accept(timeout=20)) or kept.update(given=kept['other'].receive(timeout=20))",
  );
  const source = `kept.update(other=cuffi.connect('${name}', timeout=20)) or kept['other'].send(kept['${what}'])`;
  assert.deepEqual([await producer.evaluate(source), await taken], ['null', 'null']);
}

describe('channels between Node and Python', { skip: options.skip }, () => {
  for (const end of ['producer', 'consumer'] as const)
    test(
      `a host that is blocked by its waiting stream goes on when the ${end} in Python closes`,
      options,
      async () => {
        await using python = Python.start();
        using stream = Stream.create({ nonBlocking: true });
        let channel: Channel | ChannelConsumer;
        if (end === 'producer') {
          const fields = { ...small, deliver: 'all', ahead: true };
          channel = await python.ask<ChannelConsumer>('create', { name: 'own', options: fields });
          await channel.ahead(stream).next();
        } else {
          channel = Channel.create({ ...small, slots: 1, deliver: 'all', ahead: true });
          await python.ask('keep', { name: 'own', thing: channel });
          (await channel.acquire({ stream })).publish({ stream });
          await channel.acquire({ stream });
        }
        assert.equal(stream.done, false);
        const closed = python.ask('close', { name: 'own' });
        // As a call of the driver that waits for the stream: the event loop does not turn.
        spinUntil(() => stream.done);
        assert.equal(stream.done, true);
        await closed;
        channel.close();
      },
    );

  test('both ends count what they have done', options, async () => {
    await using python = Python.start();
    using mine = Channel.create({ ...small, deliver: 'all' });
    await python.ask('keep', { name: 'given', thing: mine });
    using theirs = await python.ask<ChannelConsumer>('create', {
      name: 'own',
      options: { ...small, deliver: 'all' },
    });
    const statsOf = async (name: string): Promise<unknown> =>
      JSON.parse((await python.evaluate(`str(list(kept['${name}'].stats()))`)) as string);
    for (let n = 0; n < 2; n += 1) {
      const slot = await mine.acquire();
      slot.array.fill(slot.message);
      slot.publish();
    }
    assert.equal(mine.stats().inUse, 2);
    await python.ask('consume', { name: 'given', count: 1, keeps: true });
    assert.deepEqual(await statsOf('given'), [1, 0, small.slots]);
    await python.ask('consume', { name: 'given', count: 1 });
    await python.ask('release_held');
    assert.deepEqual(await statsOf('given'), [2, 2, small.slots]);
    await until(async () => mine.stats().inUse === 0);
    await python.ask('produce', { name: 'own', count: 2 });
    assert.deepEqual(await statsOf('own'), [2, 1, small.slots, 2]);
    for (let n = 0; n < 2; n += 1) (await theirs.receive())?.release();
    assert.deepEqual(theirs.stats(), { received: 2, released: 2, slots: small.slots });
    await until(async () => isDeepStrictEqual(await statsOf('own'), [2, 1, small.slots, 0]));
  });

  for (const busy of [0, 500])
    test(`to all, polling for ${busy} us: each consumer sees each message`, options, async () => {
      const pythons = [Python.start(), Python.start()];
      using channel = Channel.create({ ...small, deliver: 'all', busyPollUs: busy });
      using stream = Stream.create({ nonBlocking: true });
      try {
        for (const python of pythons) {
          await python.ask('keep', { name: 'given', thing: channel });
          await python.evaluate(`setattr(kept['given'], 'busy_poll_us', ${busy})`);
          await python.ask('begin_consume', { name: 'given' });
        }
        assert.equal(channel.consumers, 2);
        const count = iterations(100, 100_000);
        await produce(channel, stream, count);
        await channel.drained({ timeoutMs: 20_000 });
        channel.close();
        for (const python of pythons) {
          assert.deepEqual(await python.ask('result', { name: 'consume' }), all(0, count));
          await python.ask('close', { name: 'given' });
        }
        for (const python of pythons) await nothingIsLent(python);
      } finally {
        for (const python of pythons) await python[Symbol.asyncDispose]();
      }
    });

  for (const deliver of ['all', 'one'] as const)
    test(`to ${deliver}: Node sees each message of Python`, options, async () => {
      await using python = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      const channel = await made(python, { ...small, deliver });
      const count = iterations(100, 100_000);
      const seen = consume(channel, stream);
      await python.peer.request({ do: 'produce', name: 'own', count } as never);
      await python.ask('drained', { name: 'own' });
      await python.ask('close', { name: 'own' });
      assert.deepEqual(await seen, all(0, count));
      channel.close();
      await python.ask('drop', { name: 'own' });
      await nothingIsLent(python);
    });

  test(
    'to one: Node and Python share the messages, and take those of a killed one',
    options,
    async () => {
      await using one = Python.start();
      await using two = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      using channel = Channel.create({ ...small, deliver: 'one' });
      for (const python of [one, two]) await python.ask('keep', { name: 'given', thing: channel });
      await produce(channel, stream, 2);
      assert.deepEqual((await one.ask<Seen>('consume', { name: 'given', count: 1 })).messages, [0]);
      const kept = await one.ask<Seen>('consume', { name: 'given', count: 1, keeps: true });
      assert.deepEqual(kept.messages, [1]);
      await two.ask('begin_consume', { name: 'given' });
      const producing = produce(channel, stream, iterations(60, 2000));
      one.peer.process.kill('SIGKILL');
      await producing;
      await channel.drained({ timeoutMs: 20_000 });
      channel.close();
      const seen = await two.ask<Seen>('result', { name: 'consume' });
      assert.deepEqual(
        [[...seen.messages].sort((a, b) => a - b), seen.wrong, seen.redelivered, seen.end],
        [range(1, iterations(62, 2002)), [], [1], 'end'],
      );
    },
  );

  test('to one: Python gives what a killed consumer had to another', options, async () => {
    await using producer = Python.start();
    await using gone = Python.start();
    using stream = Stream.create({ nonBlocking: true });
    const channel = await made(producer, { ...small, deliver: 'one' });
    await passed(producer, gone);
    await producer.ask('produce', { name: 'own', count: 2 });
    const kept = await gone.ask<Seen>('consume', { name: 'given', count: 1, keeps: true });
    assert.deepEqual(kept.messages, [0]);
    const first = (await channel.receive({ timeoutMs: 20_000 })) as ConsumerSlot;
    assert.equal(first.message, 1);
    gone.peer.process.kill('SIGKILL');
    const again = (await channel.receive({ timeoutMs: 20_000 })) as ConsumerSlot;
    assert.deepEqual([again.message, again.redelivered], [0, true]);
    again.release({ stream });
    first.release({ stream });
    await producer.ask('drained', { name: 'own' });
    await producer.ask('close', { name: 'own' });
    assert.equal(await channel.receive({ timeoutMs: 20_000 }), undefined);
    channel.close();
  });

  test(
    'messages have meta and layouts, skipped ones are not seen, slots are read-only',
    options,
    async () => {
      await using python = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      using channel = Channel.create({ ...small, deliver: 'all', readOnly: true });
      await python.ask('keep', { name: 'given', thing: channel });
      (await channel.acquire()).publish({ meta: { text: 'grün 水', at: [1, null] } });
      const skipped = await channel.acquire();
      (await channel.acquire()).publish({ stream, shape: [2, 2, 2], dtype: 'float64' });
      skipped.cancel();
      const meta = { text: 'grün 水', at: [1, null] };
      assert.deepEqual(await python.ask('describe', { name: 'given' }), [
        0,
        meta,
        [16],
        'uint32',
        true,
        64,
      ]);
      assert.deepEqual(await python.ask('describe', { name: 'given' }), [
        2,
        null,
        [2, 2, 2],
        'float64',
        true,
        64,
      ]);
      const theirs = await made(python, { ...small, deliver: 'all', read_only: true });
      await python.ask('produce', { name: 'own', count: 1, extra: true });
      assert.equal(await python.evaluate("kept.update(slot=kept['own'].acquire())"), 'null');
      assert.equal(await python.evaluate("kept['own'].acquire().publish(meta=['x'])"), 'null');
      assert.equal(await python.evaluate("kept['slot'].cancel()"), 'null');
      const first = (await theirs.receive({ timeoutMs: 20_000 })) as ConsumerSlot;
      assert.deepEqual(
        [first.meta, first.array.shape, first.array.dtype.name, first.buffer.access],
        [{ message: 0 }, [2, 3], 'float32', 'read'],
      );
      const second = (await theirs.receive({ timeoutMs: 20_000 })) as ConsumerSlot;
      assert.deepEqual([second.message, second.meta, second.array.shape], [2, ['x'], [16]]);
      theirs.close();
    },
  );

  test(
    'a message arrives when its work is done, and its slot returns when the work that uses it is',
    options,
    async () => {
      await using python = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      using channel = Channel.create({ ...small, slots: 1, deliver: 'all' });
      await python.ask('keep', { name: 'given', thing: channel });
      {
        using latch = new Latch(stream.context);
        latch.hold(stream);
        await produce(channel, stream, 1);
        assert.match(await python.evaluate("kept['given'].receive(timeout=0.05)"), /^TimeoutError/);
        latch.open();
      }
      assert.deepEqual(
        (await python.ask<Seen>('consume', { name: 'given', count: 1, keeps: true })).messages,
        [0],
      );
      await python.ask('hold');
      await python.ask('release_held');
      assert.equal(channel.tryAcquire(), undefined);
      await python.ask('open_latch');
      (await channel.acquire({ timeoutMs: 20_000 })).cancel();
      const theirs = await made(python, { ...small, slots: 1, deliver: 'all' });
      await python.ask('hold');
      await python.ask('produce', { name: 'own', count: 1 });
      await assert.rejects(theirs.receive({ timeoutMs: 50 }), { name: 'TimeoutError' });
      await python.ask('open_latch');
      const slot = (await theirs.receive({ timeoutMs: 20_000 })) as ConsumerSlot;
      assert.equal(await python.evaluate("kept['own'].try_acquire()"), 'null');
      slot.release({ stream });
      assert.match(
        await python.evaluate("repr(kept['own'].acquire(timeout=20))"),
        /ProducerSlot message 1/,
      );
      theirs.close();
    },
  );

  test('asyncio waits for messages and slots', options, async () => {
    await using python = Python.start();
    using stream = Stream.create({ nonBlocking: true });
    using channel = Channel.create({ ...small, deliver: 'all' });
    await python.ask('keep', { name: 'given', thing: channel });
    await python.ask('begin_async', { name: 'given' });
    await produce(channel, stream, 10);
    await channel.drained({ timeoutMs: 20_000 });
    channel.close();
    assert.deepEqual(
      await python.ask('result', { name: 'async' }),
      range(0, 10).map((at) => [at, at]),
    );
    const theirs = await made(python, { ...small, slots: 2, deliver: 'all' });
    await python.ask('begin_async', { name: 'own', count: 10 });
    const seen = consume(theirs, stream);
    assert.equal(await python.ask('result', { name: 'async' }), 'done');
    await python.ask('close', { name: 'own' });
    assert.deepEqual(await seen, all(0, 10));
    theirs.close();
  });

  test('streams wait for slots on both sides', options, async () => {
    await using python = Python.start();
    using stream = Stream.create({ nonBlocking: true });
    using channel = Channel.create({ ...small, slots: 2, deliver: 'all', ahead: true });
    await python.ask('keep', { name: 'given', thing: channel });
    assert.equal(await python.ask('take_ahead', { name: 'given', count: 10 }), 10);
    assert.equal(await python.ask('is_done'), false);
    for (let at = 0; at < 10; at += 1) {
      const slot = await channel.acquire({ stream, timeoutMs: 20_000 });
      slot.array.fill(slot.message, { stream });
      slot.publish({ stream });
    }
    assert.deepEqual(await python.ask('filled'), new Array(10).fill(true));
    assert.deepEqual(await python.ask('ahead_results'), range(0, 10));
    channel.close();
    assert.equal(await python.evaluate("list(kept['given'].ahead(stream))"), '');
    const theirs = await made(python, { ...small, slots: 2, deliver: 'all', ahead: true });
    using results = DeviceBuffer.allocate(640);
    const slots: ConsumerSlot[] = [];
    for await (const slot of theirs.ahead(stream)) {
      slot.buffer.copyTo(results.subarray(64 * slots.length, 64 * (slots.length + 1)), { stream });
      slot.release({ stream });
      if (slots.push(slot) === 10) break;
    }
    await python.ask('produce_ahead', { name: 'own', count: 10 });
    await stream.synchronize();
    const values = new Uint32Array((await results.copyToHost()).buffer);
    assert.deepEqual(
      range(0, 10).map((message) => values[16 * message]),
      range(0, 10),
    );
    await python.ask('drained', { name: 'own' });
    await python.ask('close', { name: 'own' });
    for await (const _ of theirs.ahead(stream)) assert.fail('the channel is closed');
    theirs.close();
    await python.ask('close', { name: 'given' });
    await nothingIsLent(python);
  });

  test(
    'memory that streams wait in is fixed once both ends have it, also for several consumers',
    options,
    async () => {
      await using python = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      using channel = Channel.create({ ...small, slots: 2, deliver: 'all', ahead: true });
      const PUNCH_HOLE = 3;
      const { ring } = channel.exported;
      await python.ask('keep', { name: 'given', thing: channel });
      assert.equal(libc.fallocate(ring.words.fd, PUNCH_HOLE, 0, 4096), -1);
      assert.equal(await python.ask('take_ahead', { name: 'given', count: 4 }), 4);
      for (let at = 0; at < 4; at += 1)
        (await channel.acquire({ stream, timeoutMs: 20_000 })).publish({ stream });
      assert.deepEqual(await python.ask('filled'), new Array(4).fill(true));
      // The other way: the process in Python has two consumers here.
      const first = await made(python, { ...small, slots: 2, deliver: 'all', ahead: true });
      const second = await python.ask<ChannelConsumer>('shared', { name: 'own' });
      assert.deepEqual(
        new Set(await python.ask<string[]>('holes', { name: 'own' })),
        new Set(['EPERM']),
      );
      const slots = await Promise.all(
        [first, second].map(async (consumer) => {
          const { value } = await consumer.ahead(stream).next();
          return value as ConsumerSlot;
        }),
      );
      assert.equal(stream.done, false);
      await python.ask('produce_ahead', { name: 'own', count: 1 });
      for (const slot of slots) assert.equal(await slot.filled({ timeoutMs: 20_000 }), true);
      for (const slot of slots) slot.release({ stream });
      await python.ask('drained', { name: 'own' });
      await stream.synchronize();
      await python.ask('close', { name: 'own' });
      for (const each of [first, second]) {
        for await (const _ of each.ahead(stream)) assert.fail('the channel is closed');
        each.close();
      }
      await python.ask('close', { name: 'given' });
      await nothingIsLent(python);
    },
  );

  for (const end of ['close', 'kill'] as const)
    test(`streams that wait for slots go on after the producer's ${end}`, options, async () => {
      await using producer = Python.start();
      await using consumer = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      const theirs = await made(producer, { ...small, deliver: 'all', ahead: true });
      // What the consumer in Python waits for, no one else repairs.
      const options = { ...small, deliver: 'all', ahead: true };
      await producer.ask('make_privately', { options });
      await passed(producer, consumer, 'private');
      for (const name of ['own', 'private'])
        await producer.ask('produce_ahead', { name, count: 1 });
      const ahead = theirs.ahead(stream);
      const slots: ConsumerSlot[] = [];
      for (let at = 0; at < 3; at += 1) {
        slots.push((await ahead.next()).value as ConsumerSlot);
        slots.at(-1)?.release({ stream });
      }
      await consumer.ask('take_ahead', { name: 'given', count: 3 });
      assert.equal(await slots[0]?.filled({ timeoutMs: 20_000 }), true);
      assert.deepEqual([stream.done, await consumer.ask('is_done')], [false, false]);
      if (end === 'close')
        for (const name of ['own', 'private']) await producer.ask('close', { name });
      else producer.peer.process.kill('SIGKILL');
      await stream.synchronize();
      const filled = await Promise.allSettled(slots.map((slot) => slot.filled()));
      const expected =
        end === 'close' ? [true, false, false] : [true, 'PeerGoneError', 'PeerGoneError'];
      assert.deepEqual(
        filled.map((each) => (each.status === 'fulfilled' ? each.value : each.reason.name)),
        expected,
      );
      assert.deepEqual(await consumer.ask('filled'), expected);
      await until(async () => (await consumer.ask('is_done')) === true);
      theirs.close();
    });

  test('the streams of a producer go on when a consumer is killed', options, async () => {
    await using python = Python.start();
    await using other = Python.start();
    using stream = Stream.create({ nonBlocking: true });
    using channel = Channel.create({ ...small, slots: 2, deliver: 'all', ahead: true });
    await python.ask('keep', { name: 'first', thing: channel });
    (await made(other, { ...small, slots: 2, deliver: 'all', ahead: true })).close();
    await passed(other, python);
    for (let at = 0; at < 4; at += 1) (await channel.acquire({ stream })).publish({ stream });
    await other.ask('produce_ahead', { name: 'own', count: 4 });
    assert.deepEqual([stream.done, await other.ask('is_done')], [false, false]);
    python.peer.process.kill('SIGKILL');
    await stream.synchronize();
    await channel.drained({ timeoutMs: 20_000 });
    await other.ask('drained', { name: 'own' });
    assert.equal(await other.evaluate("kept['own'].consumers"), '0');
  });

  test(
    'a process in Python that ends waits until what it has published is filled',
    options,
    async () => {
      await using python = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      const channel = await made(python, { ...small, deliver: 'all' });
      using timeline = await python.ask<Timeline>('make_timeline', { name: 'timeline' });
      await python.ask('hold');
      await python.ask('produce', { name: 'own', count: 3 });
      await python.ask('signal_value', { name: 'timeline', value: 1 });
      for (const name of ['own', 'timeline']) await python.ask('close', { name });
      const reached = timeline.reached(1);
      const seen = consume(channel, stream);
      await python.ask('leave', { seconds: 0.4 });
      assert.deepEqual(await seen, all(0, 3));
      await reached;
      channel.close();
      await until(async () => python.peer.process.exitCode !== null);
      assert.equal(python.peer.process.exitCode, 0);
    },
  );

  test(
    'a child that Python has forked keeps no timeline and no channel alive',
    options,
    async () => {
      await using python = Python.start();
      const channel = await made(python, { ...small, deliver: 'all' });
      using timeline = await python.ask<Timeline>('make_timeline', { name: 'timeline' });
      const child = await python.ask<number>('fork');
      try {
        python.peer.process.kill('SIGKILL');
        await assert.rejects(channel.receive({ timeoutMs: 10_000 }), { name: 'PeerGoneError' });
        await assert.rejects(timeline.reached(1, { timeoutMs: 10_000 }), { name: 'PeerGoneError' });
        channel.close();
      } finally {
        process.kill(child, 'SIGKILL');
      }
    },
  );

  test('what a killed producer has not completed is not delivered', options, async () => {
    for (const deliver of ['all', 'one']) {
      await using python = Python.start();
      using stream = Stream.create({ nonBlocking: true });
      const channel = await made(python, { ...small, deliver });
      const seen = consume(channel, stream);
      await python.ask('produce', { name: 'own', count: 2 });
      await python.ask('drained', { name: 'own' });
      await python.ask('hold');
      await python.ask('produce', { name: 'own', count: 1 });
      python.peer.process.kill('SIGKILL');
      assert.deepEqual(await seen, { ...all(0, 2), end: 'PeerGoneError' });
      channel.close();
    }
  });
});

describe('page-locked memory between Node and Python', { skip: options.skip }, () => {
  test('both have the same bytes, and their GPUs copy them', options, async () => {
    await using python = Python.start();
    const bytes = new Uint8Array(10_000).map((_, at) => at * 7);
    const increased = bytes.map((value) => value + 1);
    using pinned = PinnedBuffer.allocate(bytes.byteLength, { shareable: true });
    new Uint8Array(pinned.buffer).set(bytes);
    await python.ask('keep', { name: 'given', thing: pinned });
    assert.deepEqual(new Uint8Array(await python.ask('read_pinned', { name: 'given' })), bytes);
    await python.ask('through_gpu', { name: 'given' });
    assert.deepEqual(new Uint8Array(pinned.buffer), increased);
    using theirs = await python.ask<PinnedBuffer>('make_pinned', { name: 'own', data: bytes });
    assert.deepEqual(new Uint8Array(theirs.buffer), bytes);
    await python.ask('through_gpu', { name: 'own' });
    assert.deepEqual(new Uint8Array(theirs.buffer), increased);
    // It outlives the process that made it.
    await python.ask('close', { name: 'given' });
    assert.match(
      await python.evaluate("kept['given'].buffer"),
      /^ClosedError closed: this PinnedBuffer/,
    );
    await killed(python.peer.process);
    assert.deepEqual(new Uint8Array(theirs.buffer), increased);
  });

  test('it is refused where it does not fit, and is given back', options, async () => {
    await using python = Python.start();
    using pinned = PinnedBuffer.allocate(100, { shareable: true });
    await python.ask('keep', { name: 'given', thing: pinned });
    const cases = [
      ["kept['given'].copy_to(cuffi.empty(101, 'uint8'))", /^ValueError : an array of 101 bytes/],
      ["kept['given'].copy_from(b'x')", /^TypeError : array must be in the memory of a GPU/],
      ['cuffi.pinned(0)', /^ValueError : byte_length must be from 1/],
      ['cuffi.pinned(1 << 50)', /^MemoryError : the system has no/],
    ] as const;
    for (const [source, error] of cases) assert.match(await python.evaluate(source), error);
    await python.ask('drop', { name: 'given' });
    await nothingIsLent(python);
  });
});

describe('what Python has sent', { skip: options.skip }, () => {
  test(
    'leases.returned waits until each receiver has closed it, or has ended',
    options,
    async () => {
      await using python = Python.start();
      const array = await python.ask<DeviceArray>('make_array', { name: 'own' });
      const timedOut =
        /^TimeoutError : waiting for other processes to return an object took more than 0.05 s/;
      assert.match(
        await python.evaluate("cuffi.leases.returned(kept['own'], timeout=0.05)"),
        timedOut,
      );
      await python.ask('begin_returned', { name: 'own' });
      array.close();
      assert.equal(await python.ask('result', { name: 'returned' }), 'done');
      assert.match(
        await python.evaluate('cuffi.leases.returned(1)'),
        /^TypeError : returned takes/,
      );
      const channel = await made(python, { ...small, deliver: 'all' });
      assert.match(
        await python.evaluate("cuffi.leases.returned(kept['own'], timeout=0.05)"),
        timedOut,
      );
      channel.close();
      assert.equal(await python.evaluate("cuffi.leases.returned(kept['own'], timeout=20)"), 'null');
      await using other = Python.start();
      await python
        .ask('make_pinned', { name: 'own', data: new Uint8Array(8) })
        .then((made) => (made as PinnedBuffer).close());
      await passed(python, other);
      assert.match(
        await python.evaluate("cuffi.leases.returned(kept['own'], timeout=0.05)"),
        timedOut,
      );
      other.peer.process.kill('SIGKILL');
      assert.equal(await python.evaluate("cuffi.leases.returned(kept['own'], timeout=20)"), 'null');
    },
  );

  const begun = Date.now();

  /** What `cuffi.leases.stats()` returns, but for since when each is lent: since a moment of these tests. */
  async function stats(python: Python): Promise<unknown> {
    const { byte_length, orphaned, leases } = await python.ask<Record<string, unknown[][]>>(
      'evaluate',
      { source: 'cuffi.leases.stats()._asdict()' },
    );
    for (const lease of leases as unknown[][]) {
      const [since] = lease.splice(3, 1) as [Date];
      assert.ok(since.getTime() >= begun && since.getTime() <= Date.now(), String(since));
    }
    return { byteLength: byte_length, orphaned, leases };
  }

  const block = 2 << 20;

  test(
    'leases.stats says who holds what, and drain waits for what is closed here',
    options,
    async () => {
      await using python = Python.start();
      await nothingIsLent(python);
      assert.deepEqual(await stats(python), { byteLength: 0, orphaned: [0, 0], leases: [] });
      const { pid } = process;
      for (const isAsync of [false, true]) {
        const array = await python.ask<DeviceArray>('make_array', { name: 'own' });
        const again = await python.ask<DeviceArray>('give', { name: 'own' });
        const held = [pid, 'memory', block, false];
        assert.deepEqual(await stats(python), {
          byteLength: block,
          orphaned: [0, 0],
          leases: [held, held],
        });
        // It is open, also if a part of it is closed.
        await python.evaluate("kept['own'][1:].close()");
        const drain = isAsync
          ? "__import__('asyncio').run(cuffi.leases.adrain(timeout=0.05))"
          : 'cuffi.leases.drain(timeout=0.05)';
        assert.equal(await python.evaluate(drain), 'null');
        if (isAsync) await python.ask('drop', { name: 'own' });
        else await python.evaluate("kept['own'].close()");
        const kept = [pid, 'memory', block, true];
        assert.deepEqual(await stats(python), {
          byteLength: block,
          orphaned: [1, block],
          leases: [kept, kept],
        });
        const timedOut = new RegExp(
          `^TimeoutError : waiting for ${block} bytes \\(memory\\) that process ${pid} has took more than 0.05 s`,
        );
        assert.match(await python.evaluate(drain), timedOut);
        await python.ask('begin_drain', { is_async: isAsync });
        array.close();
        again.close();
        assert.equal(await python.ask('result', { name: 'drain' }), 'done');
        assert.deepEqual(await stats(python), { byteLength: 0, orphaned: [0, 0], leases: [] });
      }
    },
  );

  test('leases.stats knows every kind, and what is closed of each', options, async () => {
    await using python = Python.start();
    await nothingIsLent(python);
    const things = await python.ask<Record<string, DeviceArray>>('make_things');
    const kinds: readonly (readonly [kind: string, byteLength: number])[] = [
      ['memory', block],
      ['event', 0],
      ['timeline', 0],
      ['pinned', 8],
      ['channel', block],
    ];
    const listed = (areOrphaned: readonly string[]): unknown =>
      kinds.map(([kind, size]) => [process.pid, kind, size, areOrphaned.includes(kind)]);
    for (let count = 0; count <= kinds.length; count += 1) {
      const closed = kinds.slice(0, count);
      assert.deepEqual(await stats(python), {
        byteLength: 2 * block + 8,
        orphaned: [count, closed.reduce((sum, [, size]) => sum + size, 0)],
        leases: listed(closed.map(([kind]) => kind)),
      });
      if (count < kinds.length) await python.evaluate(`kept['${kinds[count]?.[0]}'].close()`);
    }
    for (const thing of Object.values(things)) thing.close();
    await nothingIsLent(python);
    assert.equal(await python.evaluate('cuffi.leases.drain(timeout=20)'), 'null');
  });

  test('memory of other libraries is never orphaned, and counts once', options, async () => {
    await using python = Python.start();
    await nothingIsLent(python);
    const parts = await python.ask<DeviceArray[]>('make_borrowed');
    const held = [process.pid, 'memory', 1000, false];
    const { byteLength, orphaned, leases: all } = (await stats(python)) as Record<string, unknown>;
    assert.deepEqual([byteLength, orphaned, all], [1000, [0, 0], [held, held]]);
    for (const part of parts) part.close();
    await nothingIsLent(python);
  });
});

describe('hostile processes, as Python meets them', { skip: options.skip }, () => {
  test('what is no timeline, channel or page-locked memory is refused', options, async () => {
    await using python = Python.start();
    // The process may have served another test, whose last objects are given back meanwhile.
    await nothingIsLent(python);
    const before = await python.ask<Record<'lent' | 'held' | 'descriptors', number>>('counts');
    const page = 4096;
    const cases: readonly (readonly [
      kind: number,
      fields: readonly number[],
      fds: readonly (number | string)[],
      error: RegExp,
    ])[] = [
      [4, [], [page], /no-file-descriptor: a timeline needs 2 descriptors, but 1 came/],
      [4, [], [page, 'read', 'write'], /needs 2 descriptors, but 3 came/],
      [4, [], [-page, 'read'], /a timeline whose memory is not sealed/],
      [4, [], [2 * page, 'read'], /a timeline whose memory is not sealed/],
      [4, [], ['file', 'read'], /a timeline whose memory is not sealed/],
      [4, [], [page, 'file'], /a timeline without its pipe/],
      [5, [0, 0, 0, 0, 0, 0, 0, 0], [page, 'read', page], /a timeline without its pipe/],
      ...[
        'write',
        'both',
        'path of read',
        'fifo read',
        'fifo write',
        'fifo path',
        'receive',
        'messages',
      ].map((name) => [4, [], [page, name], /a timeline without its pipe/] as const),
      ...['read', 'both', 'fifo write', 'fifo path', 'send'].map(
        (name) =>
          [
            5,
            [0, 0, 0, 0, 0, 0, 0, 0],
            [page, 'read', name],
            /a timeline without its pipe/,
          ] as const,
      ),
      [5, [0, 0, 0, 0, 0, 0, 0, 255], [page, 'read', 'write'], /invalid-descriptor/],
      [4, [1], [page, 'read'], /invalid-descriptor: .*bytes follow its end/],
      [
        6,
        [0, 16, 0, 0, 0, 0, 0, 0],
        [page],
        /is not sealed, or does not have 4096 bytes allocated/,
      ],
      [6, [0, 0, 0, 0, 0, 0, 0, 0], [page], /invalid-descriptor/],
      [6, [255, 255, 255, 255, 255, 255, 31, 0], [page], /is not sealed, or does not have/],
      [7, [0, 0, 0, 0], [page], /invalid-descriptor/],
      [8, [], [], /invalid-descriptor: .*kind: 8 is not below 8/],
    ];
    for (const [kind, fields, sizes, error] of cases)
      assert.match(await python.ask<string>('opened', { kind, fields, sizes }), error);
    await until(async () => {
      const { descriptors, ...others } = await python.ask<typeof before>('counts');
      return descriptors <= before.descriptors && others.lent + others.held === 0;
    });
    // What is right opens.
    assert.equal(
      await python.ask('opened', { kind: 4, fields: [], sizes: [page, 'read'] }),
      'opened',
    );
  });

  test(
    'what are no one-way sockets is refused as those of a channel, and huge pages as memory',
    options,
    async () => {
      await using python = Python.start();
      const accepted = (receiveEnd: string, sendEnd: string): Promise<string> =>
        python.ask('accepted', { receive_end: receiveEnd, send_end: sendEnd });
      assert.equal(await accepted('receive', 'send'), 'accepted');
      for (const name of [
        'read',
        'write',
        'fifo read',
        'fifo write',
        'fifo path',
        'named',
        'messages',
        'internet',
        'file',
      ])
        for (const [receiveEnd, sendEnd] of [
          [name, 'send'],
          ['receive', name],
        ] as const)
          assert.match(
            await accepted(receiveEnd, sendEnd),
            /^IpcError .*a channel without its sockets/,
            name,
          );
      assert.match(await accepted('receive', 'unread'), /without its sockets/);
      assert.equal(await python.ask('is_sealed_when_huge'), false);
    },
  );

  test(
    'a sender that makes its copies of the ends blocking, fills and empties them holds nobody up',
    options,
    async () => {
      await using python = Python.start();
      assert.deepEqual(await python.ask('disturbed_wakes'), [true, false, true]);
    },
  );

  test('nonsense in fields and in shared words raises errors of cuffi only', options, async () => {
    await using python = Python.start();
    const count = iterations(1000, 100_000);
    const at = seed();
    assert.deepEqual(await python.ask('fuzz_fields', { seed: at, count }), []);
    assert.deepEqual(await python.ask('fuzz_timeline', { seed: at, count }), []);
    for (const deliver of ['all', 'one'])
      assert.deepEqual(await python.ask('fuzz_words', { deliver, seed: at, count }), []);
  });

  test('a producer that stores nonsense is named as one', options, async () => {
    await using python = Python.start();
    const channel = Channel.create({ ...small, deliver: 'all' });
    const { words } = (channel as unknown as { exported: { ring: { words: Words } } }).exported
      .ring;
    await python.ask('keep', { name: 'given', thing: channel });
    const receive = (): Promise<string> => python.evaluate("kept['given'].receive(timeout=0.05)");
    words.write(0, 2 ** 52);
    assert.match(
      await receive(),
      /^IpcError ipc-failed: .* a message was published into a slot that was not released/,
    );
    words.write(0, 2 ** 60);
    assert.match(
      await receive(),
      /^IpcError ipc-failed: .* the number of published messages is invalid/,
    );
    words.write(0, 0);
    assert.match(await receive(), /^TimeoutError/);
    channel.close();
    assert.match(await receive(), /^null/);
  });
});

/** The words of a ring, which every process with the channel can write. */
interface Words {
  write(index: number, value: number): void;
}
