/**
 * Every call of libc that an operation makes fails once, in a run of its own: the operation throws an
 * error that has a code, or does without; it leaves nothing open, and works when it is tried again.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { koffi } from '../../../ffi/koffi.ts';
import { libc, SystemError } from '../../../ffi/linux/libc.ts';
import { CuffiError } from '../../../src/errors.ts';
import { Context, MemoryPool, PinnedBuffer, VirtualMemory } from '../../../src/index.ts';
import { Channel, connect, exportIpc, listen, Timeline } from '../../../src/ipc/index.ts';
import { turns } from '../../support/iterations.ts';
import { openDescriptors, replaceLibc } from '../../support/process-state.ts';
import { emulate } from './emulate.ts';

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

const name = `@cuffi-test-${process.pid}-libc`;
const wait = { timeoutMs: 20_000 };

const operations: Readonly<Record<string, () => unknown>> = {
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
        await operation();
        assert.equal(await openNow(), before, `descriptors, when ${called} ${nth} fails`);
      }
      assert.ok(failed > 0);
    });
});

/** Whether an error is one of cuffi, of the system, or of JavaScript for what is too large. */
const isTyped = (error: unknown): boolean =>
  error instanceof CuffiError ||
  error instanceof SystemError ||
  (error instanceof RangeError && error.cause instanceof SystemError);
