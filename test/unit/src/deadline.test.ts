/** What a wait leaves behind when it has settled: no timer, and no listener of its signal. */

import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { closeFd } from '../../../ffi/linux/libc.ts';
import { withDeadline } from '../../../src/deadline.ts';
import {
  Context,
  CudaEvent,
  copyPitched,
  DeviceBuffer,
  deviceArray,
  float32,
  Graph,
  Stream,
  toDevice,
} from '../../../src/index.ts';
import {
  connect,
  getIpcHandle,
  leases,
  listen,
  ready,
  type WaitOptions,
} from '../../../src/ipc/index.ts';
import { Tag } from '../../../src/ipc/protocol.ts';
import { nextLoopIteration } from '../../../src/poller.ts';
import { turns } from '../../support/iterations.ts';
import { Latch } from '../../support/latch.ts';
import { leaves } from '../../support/left-open.ts';
import { emulate } from './emulate.ts';
import { peerPair, RawPeer } from './ipc/peer/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-deadline-'));
after(() => rmSync(folder, { recursive: true }));
before(() => void emulate());

const isRefused = { name: 'TypeError', message: /^signal must be an AbortSignal, not / };

describe('a signal', () => {
  test('of another implementation is taken with all of its parts, and refused without any of them', async () => {
    const foreign = {
      [Symbol.toStringTag]: 'AbortSignal',
      aborted: false,
      addEventListener() {},
      removeEventListener() {},
      throwIfAborted() {},
    };
    const begin = (signal: unknown): Promise<void> =>
      leases.drain({ signal: signal as AbortSignal });
    await begin(foreign);
    for (const name of Reflect.ownKeys(foreign))
      for (const value of [undefined, 1, 'text'])
        await assert.rejects(async () => begin({ ...foreign, [name]: value }), isRefused);
    for (const wrong of [null, 1, 'abort', {}, new EventTarget(), new AbortController()])
      await assert.rejects(async () => begin(wrong), isRefused);
  });
});

const timers = (): number =>
  process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;

/** A wait, and what ends it. */
interface Wait {
  begin(options: WaitOptions): Promise<unknown>;
  /** How the reason begins that a time-out states; absent where it states none. */
  readonly hint?: string;
  /** Has it end well. Absent where it does so by itself, or never does. */
  end?(): unknown;
  /** What it waits for fails; absent where that cannot be. */
  fail?(): unknown;
}

interface Case {
  /** Where it has no `end`: whether it ends by itself. */
  readonly isQuick?: boolean;
  /** Gives the wait to `use`, and takes back what it was made with. */
  make(use: (wait: Wait) => Promise<void>): Promise<void>;
}

/** What became of a wait that was begun with a signal and a time. */
async function outcome(
  { isQuick, make }: Case,
  how: 'end' | 'fail' | 'abort' | 'timeout' | 'aborted before',
): Promise<void> {
  await make(async (wait) => {
    if (how === 'fail' && !wait.fail) return;
    if ((how === 'abort' || how === 'timeout') && isQuick) return;
    if (how === 'end' && !wait.end && !isQuick) return;
    const controller = new AbortController();
    const { signal } = controller;
    const reason = new Error('given up');
    if (how === 'aborted before') controller.abort(reason);
    const before = timers();
    const time = { timeoutMs: how === 'timeout' ? 1 : 60_000 };
    async function lineOfTheCaller(): Promise<unknown> {
      return await wait.begin({ signal, ...time });
    }
    const settled = lineOfTheCaller().then(
      () => 'resolved',
      (error: unknown) => error,
    );
    await nextLoopIteration();
    if (how === 'end') await wait.end?.();
    if (how === 'fail') await wait.fail?.();
    if (how === 'abort') controller.abort(reason);
    const got = await settled;
    if (how === 'end') assert.equal(got, 'resolved');
    else if (how === 'fail') assert.ok(got instanceof Error && got !== reason, String(got));
    else if (how === 'timeout') {
      assert.equal((got as Error).name, 'TimeoutError');
      assert.match(
        (got as Error).message,
        new RegExp(`^[a-zA-Z].* took longer than 1 ms${wait.hint ? `: ${wait.hint}.*` : ''}$`),
      );
    } else assert.equal(got, reason);
    if (how === 'timeout' || how === 'fail')
      assert.match((got as Error).stack ?? '', /\n {4}at (async )?lineOfTheCaller /, how);
    assert.deepEqual(getEventListeners(signal, 'abort'), [], `${how}: listeners`);
    assert.equal(timers(), before, `${how}: timers`);
    // What is left over would fail now, with nobody to catch it.
    controller.abort();
    await nextLoopIteration();
  });
}

/** Work that waits for a latch in a stream, with a buffer that it is on. */
const onDevice =
  (begin: (stream: Stream, buffer: DeviceBuffer, options: object) => Promise<unknown>) =>
  async (use: (wait: Wait) => Promise<void>): Promise<void> => {
    const stream = Stream.create({ nonBlocking: true });
    const buffer = DeviceBuffer.allocate(64);
    const latch = new Latch();
    latch.hold(stream);
    buffer.fill(1, { stream });
    await use({
      begin: (options) => begin(stream, buffer, options),
      end: () => latch.open(),
    });
    latch[Symbol.dispose]();
    buffer.close();
    stream.close();
  };

const cases: Readonly<Record<string, Case>> = {
  'stream.synchronize': {
    make: onDevice((stream, _, options) => stream.synchronize(options)),
  },
  'event.synchronize': {
    make: onDevice((stream, _, options) => {
      const event = CudaEvent.create();
      event.record(stream);
      return event.synchronize(options).finally(() => event.close());
    }),
  },
  'context.synchronize': {
    make: onDevice((_, __, options) => Context.primary().synchronize(options)),
  },
  'context.flush': {
    make: onDevice((_, buffer, options) => {
      buffer.close();
      return Context.primary().flush(options);
    }),
  },
  'context.reset': {
    make: async (use) => {
      leaves(/latch|host registration/, 'a reset takes the registration of the latch');
      const stream = Stream.create({ nonBlocking: true });
      const latch = new Latch();
      latch.hold(stream);
      await use({
        begin: (options) => Context.primary().reset(options),
        end: () => latch.open(),
      });
      latch.open();
      stream.close();
    },
  },
  'buffer.copyFrom': {
    make: onDevice((stream, buffer, options) =>
      buffer.copyFrom(new Uint8Array(64), { stream, ...options }),
    ),
  },
  'buffer.copyToHost': {
    make: onDevice((stream, buffer, options) =>
      buffer.copyToHost(undefined, { stream, ...options }),
    ),
  },
  'array.copyToHost': {
    make: onDevice((stream, _, options) => {
      const array = deviceArray([4], float32);
      return array.copyToHost(undefined, { stream, ...options }).finally(() => array.close());
    }),
  },
  'array.copyFrom': {
    make: onDevice((stream, _, options) => {
      const array = deviceArray([4], float32);
      const source = new Float32Array(4);
      return array.copyFrom(source, { stream, ...options }).finally(() => array.close());
    }),
  },
  'array.set': {
    make: onDevice((stream, _, options) => {
      const array = deviceArray([4], float32);
      return array.set([], 1, { stream, ...options }).finally(() => array.close());
    }),
  },
  toDevice: {
    make: onDevice(async (stream, _, options) => {
      (await toDevice(new Float32Array(4), { stream, ...options })).close();
    }),
  },
  copyPitched: {
    make: onDevice((stream, buffer, options) =>
      copyPitched(
        { memory: new Uint8Array(64), rowPitch: 8 },
        { memory: buffer, rowPitch: 8 },
        { width: 4, height: 8 },
        { stream, ...options },
      ),
    ),
  },
  ready: {
    make: async (use) => {
      using stream = Stream.create({ nonBlocking: true });
      using buffer = DeviceBuffer.allocate(64);
      using latch = new Latch();
      latch.hold(stream);
      buffer.fill(1, { stream });
      using handle = getIpcHandle(buffer, { stream });
      await use({ begin: (options) => ready(handle, options), end: () => latch.open() });
    },
  },
  'leases.drain': {
    make: async (use) => {
      using pair = peerPair();
      const buffer = DeviceBuffer.allocate(64);
      await pair.a.send(buffer);
      const received = (await pair.b.receive()) as DeviceBuffer;
      buffer.close();
      await use({ begin: (options) => leases.drain(options), end: () => received.close() });
      received.close();
      await leases.drain();
    },
  },
  'peer.send': {
    make: async (use) => {
      using pair = peerPair();
      const large = new Uint8Array(4 << 20);
      await use({
        begin: (options) => pair.a.send(large, options),
        hint: 'process \\d+ has neither received nor served yet',
        end: () => pair.b.receive(),
        fail: () => pair.b.close(),
      });
    },
  },
  'peer.send with room': {
    isQuick: true,
    make: async (use) => {
      using pair = peerPair();
      await use({ begin: (options) => pair.a.send(1, options) });
    },
  },
  'peer.receive': {
    make: async (use) => {
      using pair = peerPair();
      await use({
        begin: (options) => pair.a.receive(options),
        end: () => pair.b.send(1),
        fail: () => pair.b.close(),
      });
    },
  },
  'peer.receive of what is there': {
    isQuick: true,
    make: async (use) => {
      using pair = peerPair();
      await pair.b.send(1);
      await use({ begin: (options) => pair.a.receive(options) });
    },
  },
  'peer.open that nobody confirms': {
    make: async (use) => {
      using stranger = new RawPeer();
      using buffer = DeviceBuffer.allocate(64);
      await use({
        begin: (options) => stranger.peer.open(getIpcHandle(buffer), options),
        fail: () => stranger.peer.close(),
      });
    },
  },
  'peer.open': {
    isQuick: true,
    make: async (use) => {
      using pair = peerPair();
      using buffer = DeviceBuffer.allocate(64);
      const opened: { close(): void }[] = [];
      await use({
        begin: async (options) => {
          opened.push((await pair.a.open(getIpcHandle(buffer), options)) as DeviceBuffer);
        },
      });
      for (const each of opened) each.close();
    },
  },
  'listener.accept': {
    make: async (use) => {
      const name = join(folder, 'accept.sock');
      using listener = listen(name);
      const peers: { close(): void }[] = [];
      await use({
        begin: async (options) => {
          peers.push(await listener.accept(options));
        },
        end: async () => peers.push(await connect(name)),
        fail: () => listener.close(),
      });
      for (const peer of peers) peer.close();
    },
  },
  connect: {
    make: async (use) => {
      const name = join(folder, 'connect.sock');
      const made: { close(): void }[] = [];
      await use({
        begin: async (options) => {
          made.push(await connect(name, options));
        },
        hint: 'nobody listens there',
        end: () => made.push(listen(name)),
      });
      for (const each of made) each.close();
    },
  },
};

describe('a settled wait leaves no timer and no listener', () => {
  for (const [call, each] of Object.entries(cases))
    test(call, async () => {
      for (const how of ['end', 'fail', 'abort', 'timeout', 'aborted before'] as const)
        await outcome(each, how);
    });
});

describe('withDeadline', () => {
  const limits = (): { controller: AbortController; options: WaitOptions } => {
    const controller = new AbortController();
    return { controller, options: { signal: controller.signal, timeoutMs: 1 } };
  };

  test('the promise rejects with what start throws, and no timer or listener is left', async () => {
    const { controller, options } = limits();
    const before = timers();
    const error = new Error('at once');
    const waiting = withDeadline(options, 'this', () => {
      throw error;
    });
    assert.equal(timers(), before);
    await assert.rejects(waiting, error);
    assert.deepEqual(getEventListeners(controller.signal, 'abort'), []);
    controller.abort();
    await turns();
  });

  test('the promise settles at once if start does, and no timer or listener is left', async () => {
    for (const how of ['resolve', 'reject'] as const) {
      const { controller, options } = limits();
      const before = timers();
      let cancelled = 0;
      const waiting = withDeadline<Error>(options, 'this', (resolve, reject) => {
        (how === 'resolve' ? resolve : reject)(new Error(how));
        return () => {
          cancelled += 1;
        };
      });
      assert.equal(timers(), before);
      assert.deepEqual(getEventListeners(controller.signal, 'abort'), []);
      assert.equal((await waiting.catch((error: Error) => error)).message, how);
      controller.abort();
      await turns();
      assert.equal(cancelled, 0);
    }
  });

  test('a signal that is aborted during start rejects the promise', async () => {
    const { controller, options } = limits();
    let cancelled = 0;
    const waiting = withDeadline({ ...options, timeoutMs: 60_000 }, 'this', () => {
      controller.abort(new Error('meanwhile'));
      return () => {
        cancelled += 1;
      };
    });
    await assert.rejects(waiting, /meanwhile/);
    assert.equal(cancelled, 1);
    assert.deepEqual(getEventListeners(controller.signal, 'abort'), []);
  });
});

describe('a call that fails at once does not fail again at its timeout or abort', () => {
  /** Where the other end is gone, and a value is left to be received. */
  async function endedPeer(): Promise<RawPeer> {
    const stranger = new RawPeer();
    stranger.send(Uint8Array.of(Tag.int32, 1, 0, 0, 0));
    closeFd(stranger.socket);
    await stranger.peer.ended;
    assert.equal(stranger.peer.closed, false);
    return stranger;
  }

  const settle = async (begin: (options: WaitOptions) => Promise<unknown>): Promise<Error> => {
    const controller = new AbortController();
    const before = timers();
    const waiting = begin({ signal: controller.signal, timeoutMs: 1 });
    const error = (await waiting.catch((reason: unknown) => reason)) as Error;
    assert.equal(timers(), before);
    assert.deepEqual(getEventListeners(controller.signal, 'abort'), []);
    controller.abort();
    await turns();
    return error;
  };

  test('peer.open() of a peer that has ended', async () => {
    using stranger = await endedPeer();
    using buffer = DeviceBuffer.allocate(64);
    const descriptor = getIpcHandle(buffer);
    const error = await settle((options) => stranger.peer.open(descriptor, options));
    assert.notEqual(error.name, 'TimeoutError');
    assert.ok(error instanceof Error);
  });

  test('peer.open() while too many descriptors wait for confirmation', async () => {
    using stranger = new RawPeer();
    using buffer = DeviceBuffer.allocate(64);
    const descriptor = getIpcHandle(buffer);
    const waiting: Promise<unknown>[] = [];
    for (let n = 0; n < 1024; n += 1)
      waiting.push(stranger.peer.open(descriptor, { timeoutMs: 60_000 }).catch(() => {}));
    const error = await settle((options) => stranger.peer.open(descriptor, options));
    assert.match(error.message, /1024/);
    const before = timers();
    stranger.peer.close();
    await Promise.all(waiting);
    assert.equal(timers(), before - 1024);
  });

  test('peer.receive() while a graph is captured', async () => {
    using pair = peerPair();
    using stream = Stream.create({ nonBlocking: true });
    let waiting: Promise<Error> | undefined;
    using graph = Graph.capture(stream, () => {
      waiting = settle((options) => pair.a.receive(options));
    });
    assert.match((await waiting)?.message ?? '', /captured/);
    assert.equal(graph.closed, false);
  });

  test('a value whose getter aborts the signal is sent, and its result is dropped', async () => {
    using pair = peerPair();
    const controller = new AbortController();
    const value = {
      data: new Uint8Array(4 << 20),
      get last() {
        controller.abort(new Error('meanwhile'));
        return 1;
      },
    };
    await assert.rejects(pair.a.send(value, { signal: controller.signal }), /meanwhile/);
    // Its sending fails, and nobody waits for it: that must not be an unhandled rejection.
    pair.a.close();
    await nextLoopIteration();
    await nextLoopIteration();
  });
});
