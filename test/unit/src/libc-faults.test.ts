/**
 * Every call of libc that an operation makes fails once, in a run of its own: the operation throws an
 * error that has a code, or does without; it leaves nothing open, and works when it is tried again.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { koffi } from '../../../ffi/koffi.ts';
import { closeFd, libc, SystemError } from '../../../ffi/linux/libc.ts';
import { processStartTime } from '../../../ffi/linux/process.ts';
import { ClosedError, CuffiError } from '../../../src/errors.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  PinnedBuffer,
  Stream,
  VirtualMemory,
} from '../../../src/index.ts';
import {
  Channel,
  connect,
  exportIpc,
  listen,
  type Peer,
  type RequestContext,
  Timeline,
} from '../../../src/ipc/index.ts';
import { inspect, probe } from '../../../src/ipc/inspect/inspect-client.ts';
import { openInspection } from '../../../src/ipc/inspect/inspect-server.ts';
import { ExportTable } from '../../../src/ipc/lease/export-table.ts';
import {
  ForwardedLease,
  ForwardRequester,
  forwardObjects,
} from '../../../src/ipc/lease/forward.ts';
import type { OwnerConnection } from '../../../src/ipc/lease/import-table.ts';
import { PeerProcess } from '../../../src/ipc/lease/peer-process.ts';
import { factsOf } from '../../../src/ipc/sharing/facts.ts';
import type { Shareable } from '../../../src/ipc/sharing/kinds.ts';
import { turns, until } from '../../support/iterations.ts';
import { Latch } from '../../support/latch.ts';
import { leaves } from '../../support/left-open.ts';
import { openDescriptors, replaceLibc } from '../../support/process-state.ts';
import { emulate } from './emulate.ts';
import { peerPair } from './ipc/peer/support.ts';

type Call = (...args: number[]) => number;
type LibcName = keyof typeof libc;

const [ENOMEM, EMFILE] = [12, 24];
/** What koffi returns for (void *)-1. */
const MAP_FAILED = (2n ** 64n - 1n) as unknown as number;

/** What may run out of memory or descriptors; the others cannot fail for what cuffi passes to them. */
const fallible: readonly LibcName[] = [
  'mmap',
  'madvise',
  'memfd_create',
  'ftruncate',
  'fallocate',
  'fcntl',
  'pipe2',
  'eventfd',
  'epoll_create1',
  'epoll_ctl',
  'socket',
  'socketpair',
  'bind',
  'listen',
  'connect',
  'setsockopt',
  'sendmsg',
  'accept4',
  'getsockopt',
];

/** Counts the calls of libc, and makes one of them fail. */
class FaultyLibc implements Disposable {
  readonly calls: LibcName[] = [];
  readonly #real = new Map<LibcName, Call>();
  #planned: { readonly name: LibcName; left: number } | undefined;

  constructor() {
    for (const name of fallible) {
      const real = libc[name] as Call;
      this.#real.set(name, real);
      replaceLibc(name, (...args) => {
        this.calls.push(name);
        const plan = this.#planned;
        if (plan?.name !== name) return real(...args);
        plan.left -= 1;
        if (plan.left !== 0) return real(...args);
        koffi().errno(name === 'mmap' || name === 'fallocate' ? ENOMEM : EMFILE);
        return name === 'mmap' ? MAP_FAILED : -1;
      });
    }
  }

  /** From now on the nth call of a function fails, once. */
  fail(name: LibcName, nth: number): void {
    this.#planned = { name, left: nth };
  }

  /** Whether the call came that was to fail. */
  mend(): boolean {
    const plan = this.#planned;
    this.#planned = undefined;
    return plan !== undefined && plan.left <= 0;
  }

  [Symbol.dispose](): void {
    for (const [name, real] of this.#real) replaceLibc(name, real);
  }
}

let listeners = 0;
const wait = { timeoutMs: 20_000 };

type Lent = Shareable & { close(): void };

/** Sends objects to the other end in one value, and closes what arrives there. */
async function lend(makers: readonly (() => Lent)[], stream?: Stream): Promise<void> {
  using both = peerPair();
  const objects: Lent[] = [];
  try {
    for (const make of makers) objects.push(make());
    const received = both.b.receive({ ...wait, ...(stream && { stream }) });
    // Its end has another reason if the send fails.
    received.catch(() => {});
    await both.a.send(objects, stream && { stream });
    for (const there of (await received) as readonly Lent[]) there.close();
  } finally {
    for (const object of objects) object.close();
  }
}

/** Objects of the kinds that need nothing else. If one cannot be lent, none is. */
const lent: readonly (() => Lent)[] = [
  () => DeviceBuffer.allocate(4096),
  () => CudaEvent.create({ interprocess: true }),
  () => Timeline.create(),
  () => {
    using timeline = Timeline.create();
    return timeline.signaler();
  },
  () => Channel.create({ slots: 2, byteLength: 64, deliver: 'all', ahead: true }),
  () => PinnedBuffer.allocate(4096, { shareable: true }),
];

/** Two ends, of which the second echoes each request. */
async function request(use: (asking: Peer) => Promise<unknown>): Promise<void> {
  using both = peerPair();
  const stop = new AbortController();
  const echo = (value: unknown, { closeAfter }: RequestContext): unknown => {
    if (typeof value === 'object') closeAfter((value as { buffer: DeviceBuffer }).buffer);
    return value;
  };
  const served = both.b.serve(echo, { signal: stop.signal }).catch(() => {});
  try {
    await use(both.a);
  } finally {
    stop.abort();
    both.a.close();
    both.b.close();
    await served;
  }
}

/** A promise that none of its watches keeps the process alive for. */
const withinTime = (promise: Promise<unknown> | undefined): Promise<unknown> =>
  Promise.race([promise, delay(5000).then(() => assert.fail('it takes too long'))]);

/** Forwards memory to this process, by way of the owner of the memory, which is this process as well. */
async function forward(): Promise<void> {
  using buffer = DeviceBuffer.allocate(4096);
  const { pid } = process;
  const startTime = processStartTime(pid) as number;
  const exports = new ExportTable({ pid, name: 'the forwarding process', revoke() {} });
  const requester = new ForwardRequester(() => {});
  const [lease] = exports.add([buffer], undefined);
  assert.ok(lease);
  let stopWatching: (() => void) | undefined;
  let links: readonly number[] = [];
  try {
    const { ppid } = process;
    const third = PeerProcess.fromIdentity(ppid, processStartTime(ppid) as number);
    stopWatching = third.onGone(() => {});
    const owner: OwnerConnection = {
      process: PeerProcess.fromIdentity(0, 0),
      requestForward: (...asked) => requester.request(lease.id, ...asked),
    };
    factsOf(buffer).owner = owner;
    const forwarded = forwardObjects([buffer], third);
    links = forwarded.links;
    for (const { link } of requester.take()) {
      let isReleased = false;
      try {
        new ForwardedLease(lease, { pid, startTime }, link, 1000, () => {
          isReleased = true;
        });
      } catch (error) {
        closeFd(link);
        throw error;
      }
      await withinTime(forwarded.acknowledged);
      links.forEach(closeFd);
      links = [];
      await until(() => isReleased);
    }
    for (const release of forwarded.releases) release();
  } finally {
    links.forEach(closeFd);
    requester.end();
    exports.endAll();
    stopWatching?.();
  }
}

/** What goes through a connection of which this process has both ends. */
const connected: Readonly<Record<string, () => unknown>> = {
  'lending an object of each kind': async () => {
    using pool = MemoryPool.create({ maxSize: 1 << 20, shareable: true });
    using memory = VirtualMemory.reserve(4 << 20, { shareable: true });
    await lend([...lent, () => pool.allocate(4096), () => memory.grow(100)]);
  },
  'lending memory on which a stream is at work': async () => {
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    setImmediate(() => latch.open());
    const make = (): DeviceBuffer => {
      const buffer = DeviceBuffer.allocate(4096);
      buffer.fill(1, { stream });
      return buffer;
    };
    await lend([make], stream);
    await stream.synchronize();
  },
  'a request with memory in it': () =>
    request(async (asking) => {
      using buffer = DeviceBuffer.allocate(4096);
      const answer = (await asking.request({ buffer }, wait)) as { buffer: DeviceBuffer };
      answer.buffer.close();
    }),
  'a request that is given up': () =>
    request(async (asking) => {
      const signal = AbortSignal.abort(new ClosedError('given up'));
      await asking.request(1, { signal }).catch((error: unknown) => {
        if (!(error instanceof ClosedError)) throw error;
      });
      assert.equal(await asking.request(2, wait), 2);
    }),
  'opening a descriptor that came as data': () =>
    request(async (asking) => {
      using buffer = DeviceBuffer.allocate(4096);
      const opened = (await asking.open({ ...exportIpc(buffer).descriptor }, wait)) as DeviceBuffer;
      opened.close();
    }),
  'forwarding memory to a third process': forward,
};

const operations: Readonly<Record<string, () => unknown>> = {
  ...connected,
  'making a channel': () => Channel.create({ slots: 2, byteLength: 64, deliver: 'all' }).close(),
  'making a channel that streams wait for': () =>
    Channel.create({ slots: 2, byteLength: 64, deliver: 'all', ahead: true }).close(),
  'making a timeline': () => Timeline.create().close(),
  'passing on the right to signal': () => {
    using timeline = Timeline.create();
    timeline.signaler().close();
  },
  'allocating shareable virtual memory': () => {
    using memory = VirtualMemory.reserve(4 << 20, { shareable: true });
    exportIpc(memory.grow(100));
  },
  'exporting memory of a pool': () => {
    using pool = MemoryPool.create({ maxSize: 1 << 20, shareable: true });
    using buffer = pool.allocate(4096);
    exportIpc(buffer);
  },
  'allocating page-locked memory': () => PinnedBuffer.allocate(4096).close(),
  'allocating page-locked memory that processes share': () =>
    PinnedBuffer.allocate(4096, { shareable: true }).close(),
  'listening and connecting': async () => {
    listeners += 1;
    const name = `@cuffi-test-${process.pid}-libc-${listeners}`;
    using listener = listen(name);
    using near = await connect(name, wait);
    // A listener refuses the process for which nothing is left, and waits for the next one.
    const refused = new AbortController();
    const end = near.receive().catch((error: unknown) => refused.abort(error));
    {
      using far = await listener.accept({ signal: refused.signal });
      await near.send({ number: 7 });
      assert.deepEqual(await far.receive(wait), { number: 7 });
    }
    await end;
  },
};

/**
 * A connection that has failed keeps what it has lent for as long as the other process lives. That is this
 * process: it is taken to have ended.
 */
function endOtherProcess(): void {
  const other = PeerProcess.fromIdentity(process.pid, processStartTime(process.pid) as number);
  other.onGone(() => {});
  other.markGone();
}

/** How many descriptors are open when all is released that was closed. */
async function openNow(): Promise<number> {
  await Context.primary().flush();
  await turns(2);
  return openDescriptors();
}

describe('whichever call of libc fails', () => {
  for (const [title, operation] of Object.entries(operations))
    test(`${title} throws an error, or does without, and leaves nothing open`, async () => {
      emulate();
      using faulty = new FaultyLibc();
      // What is made once, at the first use.
      await operation();
      if (title in connected) endOtherProcess();
      const before = await openNow();
      faulty.calls.length = 0;
      await operation();
      const calls = [...faulty.calls];
      assert.ok(calls.length > 0);
      const counts = new Map<LibcName, number>();
      let failed = 0;
      for (const called of calls) {
        const nth = (counts.get(called) ?? 0) + 1;
        counts.set(called, nth);
        faulty.fail(called, nth);
        const error = await Promise.resolve()
          .then(operation)
          .then(
            () => undefined,
            (error: unknown) => error,
          );
        // Some calls are only made now and then, such as those that make something that is used again.
        if (faulty.mend()) failed += 1;
        else assert.equal(error, undefined);
        if (error !== undefined) assert.ok(isTyped(error), `${called} ${nth}: ${error}`);
        if (title in connected) endOtherProcess();
        await operation();
        const end = performance.now() + 5000;
        while ((await openNow()) !== before && performance.now() < end) await delay(1);
        assert.equal(await openNow(), before, `descriptors, when ${called} ${nth} fails`);
      }
      assert.ok(failed > 0);
    });
});

/** Whether an error is one of cuffi, of the system, or of JavaScript for what is too large. */
const isTyped = (error: unknown): boolean =>
  error instanceof CuffiError ||
  // Of the other end's handler.
  (error instanceof Error && error.name === 'IpcError') ||
  error instanceof SystemError ||
  (error instanceof RangeError && error.cause instanceof SystemError);

describe('inspection, whichever call of libc fails', () => {
  const { XDG_RUNTIME_DIR: given } = process.env;
  const made: string[] = [];
  const fresh = (): string => {
    const folder = mkdtempSync(join(given ?? tmpdir(), 'i-'));
    made.push(folder);
    process.env['XDG_RUNTIME_DIR'] = folder;
    return folder;
  };
  /** The sockets in a folder, whose files are removed at the exit of the process. */
  const socketsIn = (folder: string): string[] =>
    readdirSync(folder, { recursive: true, encoding: 'utf8', withFileTypes: true })
      .filter((entry) => entry.isSocket())
      .map(({ parentPath, name }) => join(parentPath, name));
  after(() => {
    if (given === undefined) delete process.env['XDG_RUNTIME_DIR'];
    else process.env['XDG_RUNTIME_DIR'] = given;
    for (const folder of made) rmSync(folder, { recursive: true });
  });

  test('a socket that cannot be opened leaves no descriptor, and no file that nobody answers at', async () => {
    leaves(/./, 'the socket for cuffi ls stays open as long as the process', 20);
    emulate();
    using faulty = new FaultyLibc();
    fresh();
    openInspection();
    faulty.calls.length = 0;
    fresh();
    openInspection();
    const counts = new Map<LibcName, number>();
    for (const called of [...faulty.calls]) {
      const nth = (counts.get(called) ?? 0) + 1;
      counts.set(called, nth);
      const folder = fresh();
      const before = openDescriptors();
      faulty.fail(called, nth);
      openInspection();
      faulty.mend();
      const sockets = socketsIn(folder);
      assert.equal(openDescriptors(), before + sockets.length, `when ${called} ${nth} fails`);
      for (const path of sockets) assert.ok(await inspect(path, 'list'));
    }
  });

  test('the client gets answers or an error, and nothing stays open', async () => {
    leaves(/./, 'the socket for cuffi ls stays open as long as the process', 20);
    emulate();
    const folder = fresh();
    openInspection();
    const [path = ''] = socketsIn(folder);
    // One after the other: the socket pauses for a second after what it could not accept.
    const act = async (): Promise<unknown> => {
      await inspect(path, 'list');
      return await probe(path);
    };
    using faulty = new FaultyLibc();
    await act();
    const before = await openNow();
    faulty.calls.length = 0;
    await act();
    const counts = new Map<LibcName, number>();
    const calls = [...faulty.calls];
    for (const called of calls) {
      const nth = (counts.get(called) ?? 0) + 1;
      counts.set(called, nth);
      faulty.fail(called, nth);
      const error = await act().then(
        () => undefined,
        (error: unknown) => error,
      );
      faulty.mend();
      if (error !== undefined) assert.ok(isTyped(error), `${called} ${nth}: ${error}`);
      // It pauses after what it could not accept.
      let answer: unknown;
      while (answer === undefined) answer = await act().catch(() => delay(20));
      const end = performance.now() + 5000;
      while ((await openNow()) !== before && performance.now() < end) await delay(1);
      assert.equal(await openNow(), before, `descriptors, when ${called} ${nth} fails`);
    }
  });
});
