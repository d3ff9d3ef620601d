/** A timeline in one process: its objects are sent over a connection with two ends here. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { describe, test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import {
  createPipe,
  duplicateFd,
  libc,
  mapShared,
  SystemError,
} from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import {
  Context,
  Device,
  NotSupportedError,
  PeerGoneError,
  Stream,
} from '../../../../../src/index.ts';
import {
  exportIpc,
  leases,
  Timeline,
  type TimelineSignaler,
} from '../../../../../src/ipc/index.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { END_OF_WAITS } from '../../../../../src/ipc/protocol.ts';
import { importFromPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { TimelineCounter } from '../../../../../src/ipc/timeline/counter.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { broken, keepingBooks, losing } from '../../../../support/faults.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { openDescriptors, processState } from '../../../../support/process-state.ts';
import { emptySharingSession } from '../../../../support/sharing.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

/** Returns what arrives at the other end of a connection, as another process would get it. */
async function sent(object: Timeline | TimelineSignaler): Promise<Timeline> {
  using pair = peerPair();
  await pair.a.send(object as unknown);
  return (await pair.b.receive()) as Timeline;
}

/** The words of a timeline's page. */
function wordsOf({ fds }: Timeline): { readonly words: BigUint64Array; unmap(): void } {
  const { counter } = {
    counter: TimelineCounter.accept({
      memory: duplicateFd(fds.memory),
      lifeline: duplicateFd(fds.lifeline),
    }),
  };
  return { words: new BigUint64Array(counter.words.bytes.buffer), unmap: () => counter.close() };
}

/** Resolves when the sockets of closed connections are closed. */
async function settled(): Promise<void> {
  let before = openDescriptors();
  for (let same = 0; same < 20; same += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1));
    if (openDescriptors() !== before) same = 0;
    before = openDescriptors();
  }
}

const gone = (last: number) => (error: unknown) =>
  error instanceof PeerGoneError && error.message.includes(`after value ${last}`);

describe('Timeline', () => {
  test('a stream waits for a stream of the signaler, and no host does', async () => {
    emulate();
    using signaling = Timeline.create();
    using waiting = await sent(signaling);
    assert.deepEqual([signaling.isSignaler, waiting.isSignaler], [true, false]);
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(producer);
    waiting.wait(7, { stream: consumer });
    const reached = waiting.reached(7);
    signaling.signal(5, { stream: producer });
    signaling.signal(7, { stream: producer });
    assert.deepEqual([signaling.value, waiting.value, consumer.done], [0, 0, false]);
    latch.open();
    await Promise.all([reached, consumer.synchronize()]);
    assert.deepEqual([signaling.value, waiting.value], [7, 7]);
    // What is reached costs no call.
    const recorder = recordCalls();
    waiting.wait(7, { stream: consumer });
    await waiting.reached(0);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('values are integers that grow; anything else is a RangeError', () => {
    emulate();
    using timeline = Timeline.create();
    using stream = Stream.create();
    timeline.signal(3, { stream });
    for (const value of [3, 2, 0, -1, 1.5, 2 ** 53, Number.NaN])
      assert.throws(() => timeline.signal(value, { stream }), { name: 'RangeError' });
    for (const value of [-1, 0.5, 2 ** 53])
      assert.throws(() => timeline.wait(value, { stream }), { name: 'RangeError' });
    assert.throws(() => timeline.signal('4' as never), { name: 'TypeError' });
    assert.throws(() => timeline.wait(1, { stream: {} as never }), { name: 'TypeError' });
    timeline.signal(Number.MAX_SAFE_INTEGER, { stream });
    stream.synchronizeSync();
    assert.equal(timeline.value, Number.MAX_SAFE_INTEGER);
    assert.throws(() => timeline.signal(Number.MAX_SAFE_INTEGER), { name: 'RangeError' });
  });

  test('a value above 2^32 is compared as a whole', async () => {
    emulate();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    timeline.signal(2 ** 32 - 1, { stream });
    await stream.synchronize();
    timeline.wait(2 ** 40, { stream: other });
    assert.deepEqual([timeline.value, other.done], [2 ** 32 - 1, false]);
    timeline.signal(2 ** 40, { stream });
    await other.synchronize();
    assert.equal(timeline.value, 2 ** 40);
  });

  test('a value in another stream comes after the last one', async () => {
    emulate();
    using timeline = Timeline.create();
    using held = Stream.create({ nonBlocking: true });
    using free = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(held);
    timeline.signal(1, { stream: held });
    timeline.signal(2, { stream: free });
    assert.deepEqual([free.done, timeline.value], [false, 0]);
    latch.open();
    await free.synchronize();
    assert.equal(timeline.value, 2);
    // And with no wait where the last value is reached.
    const recorder = recordCalls();
    timeline.signal(3, { stream: held });
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name),
      ['cuStreamWriteValue64_v2'],
    );
  });

  test('the signaler is handed over once, and its values come behind those before', async () => {
    emulate();
    using first = Timeline.create();
    using held = Stream.create({ nonBlocking: true });
    using free = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(held);
    first.signal(4, { stream: held });
    using signaler = first.signaler();
    using second = await sent(signaler);
    assert.deepEqual([first.isSignaler, second.isSignaler, signaler.closed], [false, true, true]);
    assert.throws(() => first.signal(5), /does not signal this timeline/);
    assert.throws(() => first.signaler(), /does not signal this timeline/);
    using pair = peerPair();
    await assert.rejects(pair.a.send(signaler as unknown), { name: 'ClosedError' });
    assert.throws(() => second.signal(4, { stream: free }), /above 4/);
    second.signal(5, { stream: free });
    assert.equal(second.value, 0);
    latch.open();
    await first.reached(5);
    assert.equal(first.value, 5);
    // Its end is that of the timeline.
    second.close();
    await assert.rejects(first.reached(6), gone(5));
  });

  test('a signaler that is closed ends the timeline', async () => {
    emulate();
    using timeline = Timeline.create();
    timeline.signaler().close();
    await assert.rejects(timeline.reached(1), gone(0));
  });

  test('a signaler that is closed ends the timeline behind the last value, for streams and hosts', async () => {
    emulate();
    using timeline = Timeline.create();
    using held = Stream.create({ nonBlocking: true });
    using waiting = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(held);
    timeline.signal(1, { stream: held });
    timeline.wait(2, { stream: waiting });
    timeline.signaler().close();
    for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
    assert.deepEqual([timeline.value, waiting.done], [0, false]);
    latch.open();
    await timeline.reached(1);
    await assert.rejects(timeline.reached(2), gone(1));
    await waiting.synchronize();
  });

  test('the side that closes frees waiting streams: no host needs a turn of its event loop', async () => {
    emulate();
    using waiting = Stream.create({ nonBlocking: true });
    for (const how of ['timeline', 'signaler'] as const) {
      const signaling = Timeline.create();
      using theirs = await sent(signaling);
      const closing = how === 'timeline' ? signaling : signaling.signaler();
      theirs.wait(1, { stream: waiting });
      assert.equal(waiting.done, false);
      closing.close();
      assert.equal(waiting.done, true);
      assert.throws(() => theirs.value, gone(0));
      signaling.close();
    }
  });

  test('values that a lost context will not signal end the timeline, also for the next signaler', async () => {
    for (const closes of [false, true]) {
      const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_ILLEGAL_ADDRESS);
      selectDriver(driver);
      const first = Timeline.create();
      const stream = Stream.create({ nonBlocking: true });
      new Latch().hold(stream);
      first.signal(1, { stream });
      using second = await sent(first.signaler());
      using third = await sent(second);
      if (closes) first.close();
      lose();
      await assert.rejects(third.reached(1, { timeoutMs: 10_000 }), gone(0));
      assert.throws(() => second.signaler(), gone(0));
      first.close();
    }
  });

  test('what is queued here is signaled though the timeline is closed after the hand-over', async () => {
    const { attributeOr } = Device.prototype;
    for (const byHost of [false, true]) {
      emulate();
      Device.prototype.attributeOr = function (this: Device, asked, unknown) {
        return byHost && asked === 'hostRegisterSupported'
          ? 0
          : attributeOr.call(this, asked, unknown);
      };
      try {
        const first = Timeline.create();
        using held = Stream.create({ nonBlocking: true });
        using latch = new Latch();
        latch.hold(held);
        first.signal(1, { stream: held });
        using second = await sent(first.signaler());
        first.close();
        for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
        assert.equal(second.value, 0);
        latch.open();
        await second.reached(1);
        assert.equal(second.value, 1);
      } finally {
        Device.prototype.attributeOr = attributeOr;
      }
    }
  });

  test('after the end, streams continue, and what was not signaled rejects', async () => {
    emulate();
    const signaling = Timeline.create();
    using waiting = await sent(signaling);
    using third = await sent(waiting);
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    signaling.signal(2, { stream: producer });
    await producer.synchronize();
    waiting.wait(9, { stream: consumer });
    const reached = waiting.reached(3);
    signaling.close();
    await assert.rejects(reached, (error: PeerGoneError) => {
      assert.deepEqual(
        [error.code, error.pid, error.abandonedWaits],
        ['peer-gone', process.pid, 1],
      );
      return gone(2)(error);
    });
    await consumer.synchronize();
    for (const each of [waiting, third]) {
      await each.reached(2);
      await assert.rejects(each.reached(3), gone(2));
      assert.throws(() => each.value, gone(2));
      each.wait(2, { stream: consumer });
      assert.throws(() => each.wait(3, { stream: consumer }), gone(2));
    }
    assert.equal(consumer.done, true);
  });

  test('close() of the signaler still signals what is queued', async () => {
    emulate();
    const signaling = Timeline.create();
    using waiting = await sent(signaling);
    using producer = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(producer);
    signaling.signal(1, { stream: producer });
    signaling.close();
    assert.throws(() => signaling.value, { name: 'ClosedError' });
    // The end, which comes too early here, would be noticed in one of these turns.
    for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
    assert.equal(waiting.value, 0);
    latch.open();
    await waiting.reached(1);
    await assert.rejects(waiting.reached(2), gone(1));
  });

  test('waits of a closed timeline end with the signaler, too', async () => {
    emulate();
    const signaling = Timeline.create();
    const waiting = await sent(signaling);
    using consumer = Stream.create({ nonBlocking: true });
    waiting.wait(1, { stream: consumer });
    const reached = waiting.reached(1);
    waiting.close();
    await assert.rejects(reached, { name: 'ClosedError' });
    assert.equal(consumer.done, false);
    signaling.close();
    await consumer.synchronize();
  });

  test('reached() ends by a signal and by a timeout', async () => {
    emulate();
    using timeline = Timeline.create();
    await assert.rejects(timeline.reached(1, { timeoutMs: 1 }), { name: 'TimeoutError' });
    const reason = new Error('enough');
    const controller = new AbortController();
    const reached = timeline.reached(1, { signal: controller.signal });
    controller.abort(reason);
    await assert.rejects(reached, reason);
    await assert.rejects(timeline.reached(1, { timeout: 1 } as never), { name: 'TypeError' });
  });

  test('the host signals if a device cannot, and no stream waits there', async () => {
    const attributes = ['canUse64BitStreamMemOps', 'hostRegisterSupported', 'canMapHostMemory'];
    for (const name of [...attributes, 'cuMemHostRegister_v2'] as const) {
      const emulated = emulate();
      using producer = Stream.create({ nonBlocking: true });
      using other = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(producer);
      if (name === 'cuMemHostRegister_v2')
        selectDriver(broken(emulated, name, CUresult.CUDA_ERROR_NOT_SUPPORTED));
      const { attributeOr } = Device.prototype;
      Device.prototype.attributeOr = function (this: Device, asked, unknown) {
        return asked === name ? 0 : attributeOr.call(this, asked, unknown);
      };
      try {
        assert.equal(Timeline.canWait(), name === 'cuMemHostRegister_v2');
        using timeline = Timeline.create();
        assert.throws(
          () => timeline.wait(1, { stream: other }),
          (error) =>
            error instanceof NotSupportedError &&
            /await timeline\.reached\(1\)/.test(error.message),
        );
        timeline.signal(1, { stream: producer });
        timeline.signal(2, { stream: producer });
        timeline.signal(3, { stream: other });
        await assert.rejects(timeline.reached(1, { timeoutMs: 5 }), { name: 'TimeoutError' });
        assert.equal(timeline.value, 0);
        latch.open();
        await timeline.reached(3);
        assert.equal(timeline.value, 3);
      } finally {
        Device.prototype.attributeOr = attributeOr;
        selectDriver(emulated);
      }
    }
  });

  test('the host signals behind a value of another device, which writes by itself', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using producer = Stream.create({ nonBlocking: true });
    using other = Stream.create({ device: 1, nonBlocking: true });
    using latch = new Latch();
    latch.hold(producer);
    const { attributeOr } = Device.prototype;
    Device.prototype.attributeOr = function (this: Device, asked, unknown) {
      return this.ordinal === 1 && asked === 'hostRegisterSupported'
        ? 0
        : attributeOr.call(this, asked, unknown);
    };
    try {
      assert.deepEqual([Timeline.canWait(0), Timeline.canWait(1)], [true, false]);
      using timeline = Timeline.create();
      timeline.signal(1, { stream: producer });
      timeline.signal(2, { stream: other });
      // Of the first device again: behind what the host stores.
      using third = Stream.create({ nonBlocking: true });
      timeline.signal(3, { stream: third });
      for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
      assert.deepEqual([timeline.value, third.done], [0, false]);
      latch.open();
      await timeline.reached(3);
      await third.synchronize();
    } finally {
      Device.prototype.attributeOr = attributeOr;
    }
  });

  test('a wait that would leave the device no queue throws, and says what to do', async () => {
    emulate();
    using timeline = Timeline.create();
    const streams = Array.from({ length: 7 }, () => Stream.create({ nonBlocking: true }));
    const last = streams.pop() as Stream;
    for (const stream of streams) timeline.wait(1, { stream });
    const remedy =
      /too many streams of this process already wait.*reached\(\).*CUDA_DEVICE_MAX_CONNECTIONS/;
    assert.throws(() => timeline.wait(1, { stream: last }), {
      name: 'CuffiError',
      message: remedy,
    });
    assert.equal(last.done, true);
    // A stream that waits already may wait for more, up to a number that the driver's queue takes.
    const [first] = streams as [Stream];
    let queued = 1;
    assert.throws(
      () => {
        for (; queued < 1000; queued += 1) timeline.wait(queued + 1, { stream: first });
      },
      { name: 'CuffiError', message: remedy },
    );
    assert.equal(queued, 320);
    timeline.signal(1000, { stream: last });
    for (const stream of streams) await stream.synchronize();
    timeline.wait(1001, { stream: last });
    timeline.signal(1001, { stream: first });
    await last.synchronize();
    for (const stream of [...streams, last]) stream.close();
  });

  test('a reset of the context signals what its streams no longer can', async () => {
    const emulated = emulate();
    const context = Context.primary();
    using timeline = Timeline.create();
    const stream = Stream.create({ nonBlocking: true });
    using blocker = Timeline.create();
    blocker.wait(1, { stream });
    timeline.signal(6, { stream });
    // The reset of a lost context does not wait for its work.
    const { driver, lose } = losing(emulated, CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    lose();
    context.resetSync();
    selectDriver(emulated);
    await timeline.reached(6);
    assert.equal(timeline.value, 6);
  });

  test('closing releases the page, its registration, all descriptors and leases', async () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    const context = Context.primary();
    {
      // What the first connection and the first watch open for good.
      using warm = Timeline.create();
      (await sent(warm)).close();
    }
    await context.flush();
    await settled();
    processState();
    const [before, fds] = [processState().mappings, openDescriptors()];
    // Of tests before this one, whose objects are garbage.
    const others = leases.stats().leases.length;
    {
      using timeline = Timeline.create();
      using waiting = await sent(timeline);
      using stream = Stream.create({ nonBlocking: true });
      waiting.wait(1, { stream });
      timeline.signal(1, { stream: Stream.legacyDefault() });
      await stream.synchronize();
      (await sent(timeline.signaler())).close();
      await assert.rejects(timeline.reached(2), gone(1));
    }
    await context.flush();
    await until(() => leases.stats().leases.length <= others);
    await until(() => openDescriptors() <= fds);
    assert.ok(processState().mappings <= before);
    assert.deepEqual(
      [...open].filter((what) => what.startsWith('cuMemHostRegister')),
      [],
    );
  });

  test('a timeline that its maker closed still works for others, and is no longer leased from it', async () => {
    emulate();
    const maker = Timeline.create();
    using second = await sent(maker.signaler());
    using third = await sent(maker);
    maker.close();
    second.signal(1);
    await third.reached(1);
    using fourth = await sent(third);
    assert.equal(fourth.value, 1);
  });

  test('it goes over connections only, and is a description in JSON', () => {
    emulate();
    using timeline = Timeline.create();
    using signaler = timeline.signaler();
    for (const object of [timeline, signaler]) {
      assert.throws(() => exportIpc(object), { name: 'IpcError', code: 'not-supported' });
      assert.equal(JSON.parse(JSON.stringify(object)), String(object));
    }
    assert.match(String(timeline), /^Timeline\(waits/);
  });
});

describe('a timeline from a hostile process', () => {
  const importing = (fds: readonly number[], kind: 'timeline' | 'signaler') =>
    importFromPeer(kind === 'timeline' ? { kind } : { kind, last: 0 }, fds, emptySharingSession());
  const sealed = () => createSealedMemfd('timeline', 4096);

  test('cannot make value, reached or close crash or hang, whatever it stores', async () => {
    emulate();
    using timeline = Timeline.create();
    using waiting = await sent(timeline);
    const { words, unmap } = wordsOf(timeline);
    for (const word of [2n ** 53n, 2n ** 63n, 2n ** 64n - 1n, END_OF_WAITS - 1n]) {
      words[0] = word;
      assert.throws(() => waiting.value, { name: 'IpcError', message: /wrote an invalid value/ });
      await assert.rejects(waiting.reached(1, { timeoutMs: 1 }), { name: 'TimeoutError' });
    }
    words[0] = 3n;
    words[1] = 2n ** 64n - 1n;
    words[3] = 1n;
    assert.equal(waiting.value, 3);
    words[0] = END_OF_WAITS;
    assert.throws(() => waiting.value, { name: 'PeerGoneError', pid: 0, message: /after value 0/ });
    unmap();
  });

  test('that stores another value keeps no descriptor and no mapping of a closed signaler', async () => {
    emulate();
    let before: readonly [mappings: number, descriptors: number] | undefined;
    // The first round opens what stays open for good.
    for (const word of [1n, 2n ** 63n, END_OF_WAITS, 0n]) {
      const timeline = Timeline.create();
      const { words, unmap } = wordsOf(timeline);
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(stream);
      timeline.signal(1, { stream });
      timeline.close();
      latch.open();
      while (words[0] !== 1n) stream.done;
      words[0] = word;
      unmap();
      await settled();
      await Context.primary().flush();
      const now = [processState().mappings, openDescriptors()] as const;
      before ??= now;
      assert.deepEqual(now, before, `${word}`);
    }
  });

  /** What it sends: a signaler with a last value that nobody stores, in a page that names another process. */
  function promise(last: number): {
    readonly fields: { readonly kind: 'signaler'; readonly last: number };
    readonly fds: readonly number[];
  } {
    const memory = sealed();
    const mapping = mapShared(memory, 4096);
    new BigUint64Array(mapping.view()).set([0n, 0n, 1n, BigInt(statSync('/proc/self/ns/pid').ino)]);
    mapping.unmap();
    return { fields: { kind: 'signaler', last }, fds: [memory, ...createPipe()] };
  }

  test('that dies before its last value ends the timeline, and nothing of it is kept', async () => {
    emulate();
    for (const closes of [false, true]) {
      const child = spawn('sleep', ['1000'], { stdio: 'ignore' });
      await once(child, 'spawn');
      const fds = openDescriptors();
      const before = processState().mappings;
      const pid = child.pid as number;
      const session = { ...emptySharingSession(), process: PeerProcess.ofChild(pid) };
      const { fields, fds: received } = promise(4);
      using timeline = importFromPeer(fields, received, session) as Timeline;
      using waiting = await sent(timeline);
      using stream = Stream.create({ nonBlocking: true });
      timeline.signal(5, { stream });
      for (let turn = 0; turn < 20; turn += 1) await nextLoopIteration();
      assert.deepEqual([stream.done, waiting.value], [false, 0]);
      if (closes) timeline.close();
      child.kill('SIGKILL');
      // Nobody takes 5 for reached, although the stream stores it in the end.
      await assert.rejects(waiting.reached(5, { timeoutMs: 10_000 }), gone(0));
      await stream.synchronize();
      await assert.rejects(waiting.reached(4), gone(0));
      if (!closes) {
        const lost = { name: 'PeerGoneError', pid, abandonedWaits: 1, message: /handed over/ };
        await assert.rejects(timeline.reached(4), lost);
        assert.throws(() => timeline.signal(6, { stream }), lost);
        assert.throws(() => timeline.signaler(), lost);
        assert.throws(() => timeline.wait(6, { stream }), lost);
        assert.throws(() => timeline.value, lost);
        await timeline.reached(0);
        timeline.close();
      }
      waiting.close();
      await Context.primary().flush();
      await until(() => openDescriptors() <= fds);
      assert.ok(processState().mappings <= before);
    }
  });

  test('whose end cannot be observed is refused with values that are not reached', async () => {
    emulate();
    const before = openDescriptors();
    const unobservable = { pid: 0, isExitObservable: false, onGone: () => () => {} };
    const failing = {
      pid: 1,
      isExitObservable: true,
      onGone() {
        throw new SystemError('epoll_ctl', 28);
      },
    };
    for (const process of [undefined, unobservable, failing]) {
      const session = { ...emptySharingSession(), ...(process && { process }) };
      const { fields, fds } = promise(4);
      assert.throws(() => importFromPeer(fields, fds, session), {
        name: 'IpcError',
        code: 'not-supported',
        message: /cannot be observed here: await timeline\.reached\(4\)/,
      });
      await until(() => openDescriptors() === before);
      // What is reached needs nobody.
      const reached = promise(0);
      (importFromPeer(reached.fields, reached.fds, session) as Timeline).close();
      await until(() => openDescriptors() === before);
    }
  });

  test('that writes to the pipe counts as ended, and wakes nobody again', async () => {
    emulate();
    const [readEnd, writeEnd] = createPipe();
    const copy = duplicateFd(writeEnd);
    using timeline = importing([sealed(), readEnd], 'timeline') as Timeline;
    const bytes = Buffer.from('data');
    const { writeSync, closeSync } = await import('node:fs');
    writeSync(writeEnd, bytes);
    await assert.rejects(timeline.reached(1), gone(0));
    closeSync(writeEnd);
    closeSync(copy);
    assert.equal(libc.fcntl(writeEnd, 1, 0), -1);
  });
});
