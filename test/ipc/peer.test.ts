/** Processes that pass values with GPU objects in them through a connection. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import type { KindName } from '../../src/cli/kinds.ts';
import {
  ClosedError,
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { type ChildPeer, spawnPeer } from '../../src/ipc/index.ts';
import { MAX_QUEUED_VALUES } from '../../src/ipc/protocol.ts';
import { iterations, until } from '../support/iterations.ts';
import { valuesOf } from '../support/layouts.ts';
import { processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import type { Request } from './fixtures/connected.ts';
import { ask, shareConnected } from './fixtures/connected-children.ts';

const deadline = { timeout: 60_000 };
const program = programFile(new URL('./fixtures/connected.ts', import.meta.url)).path;
const children: ChildPeer[] = [];

function start(...args: string[]): ChildPeer {
  const child = spawnPeer(program, { args });
  children.push(child);
  return child;
}
const ended = async (child: ChildPeer): Promise<number | string> => {
  const { process: running } = child;
  if (running.exitCode === null && running.signalCode === null) await once(running, 'exit');
  return running.signalCode ?? (running.exitCode as number);
};

const settled = async () => {
  await Context.primary().flush();
  return processState();
};

/** What keeps a process alive, what it says then, and how it ends. */
const kept: readonly (readonly [args: string[], said: unknown[], exitCode: number])[] = [
  [['kept by the parent'], ['kept by the parent'], 3],
  [['has a child', 'unreferenced'], [], 0],
  [['has a child', 'kept by the child'], [0], 0],
  [['has a child', 'kept by the connection'], ['kept by the connection'], 3],
];

/**
 * Whether a child that was not waited for has closed its descriptors: it is a zombie without threads.
 * A process that is exiting may still have them.
 */
function areDescriptorsClosed(pid: number): boolean {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  const state = stat[stat.lastIndexOf(')') + 2];
  return state === 'Z' && readdirSync(`/proc/${pid}/task`).length === 1;
}

describe('ChildPeer', () => {
  test('the end of an `await using` scope waits until the child has exited', deadline, async () => {
    let child: ChildPeer;
    {
      await using started = start();
      child = started;
      started.unref();
      assert.equal(started.process.exitCode, null);
    }
    assert.deepEqual([child.closed, child.process.exitCode], [true, 0]);
    await child[Symbol.asyncDispose]();
  });

  test('a child that could not be started is not waited for', deadline, async () => {
    const child = spawnPeer(program, { cwd: '/does/not/exist' });
    assert.match((await child.ended).message, /could not be started/);
    await child[Symbol.asyncDispose]();
  });

  test(
    'a child that does not ask for its parent in time is killed, and requests may have a limit of their own',
    deadline,
    async () => {
      const member = programFile(new URL('./fixtures/pool-member.ts', import.meta.url)).path;
      using child = spawnPeer(member, { args: ['asleep'], startTimeoutMs: 100 });
      const reason = await child.ended;
      assert.deepEqual([reason.name, reason.code], ['IpcError', 'spawn-failed']);
      assert.match(
        reason.message,
        /^process \d+ has not connected within 100 ms: it has sent nothing yet: does it call parentPeer\(\)\?$/,
      );
      assert.equal(await ended(child), 'SIGKILL');
      // One that asks in time is left alone.
      await using other = spawnPeer(member, { startTimeoutMs: 30_000, requestTimeoutMs: 50 });
      assert.equal(await other.request({ do: 'aborted' }, { timeoutMs: 30_000 }), 0);
      await assert.rejects(other.request({ do: 'untilAborted' }), {
        name: 'TimeoutError',
        message: /^a request to process \d+ took longer than 50 ms$/,
      });
      for (const options of [{ startTimeoutMs: -1 }, { requestTimeoutMs: -1 }])
        assert.throws(() => spawnPeer(member, options), RangeError);
    },
  );
});

async function end(child: ChildPeer): Promise<void> {
  child.process.kill('SIGKILL');
  await ended(child);
  child.close();
}

describe('Peer', () => {
  afterEach(async () => {
    for (const child of children.splice(0)) await end(child);
  });
  const shared = shareConnected(2);

  test(
    'buffers and events go both ways, anywhere in a value, without a copy',
    deadline,
    async () => {
      const child = start();
      using buffer = DeviceBuffer.allocate(1000);
      using event = CudaEvent.create({ interprocess: true });
      buffer.fill(1);
      event.record(Stream.legacyDefault());
      assert.equal(
        await ask(child, { do: 'fill', buffer: buffer.subarray(10, 20), event, value: 2 }),
        'filled',
      );
      const bytes = await buffer.copyToHost();
      assert.deepEqual([bytes[9], bytes[10], bytes[19], bytes[20]], [1, 2, 2, 1]);
      const made = (): Promise<DeviceBuffer> =>
        ask(child, { do: 'make', byteLength: 64, value: 7 });
      const first = await made();
      using second = await made();
      assert.equal(first.origin, 'imported');
      first.close();
      assert.deepEqual(await valuesOf(second), [7]);
      assert.equal(child.pid, child.process.pid);
      assert.equal(child.uid, process.getuid?.());
      second.close();
      // The child's loop ends with the connection, and so does the child.
      child.close();
      assert.equal(await ended(child), 0);
    },
  );

  test('hundreds of sends of mixed values leave nothing on either side', deadline, async () => {
    const [child] = shared.lend();
    using buffer = DeviceBuffer.allocate(4096);
    buffer.fill(3);
    await Context.primary().synchronize();
    const round = async (i: number): Promise<void> => {
      const value = { i, text: `№ ${i}`, data: new Float32Array([i]), big: BigInt(i) << 70n };
      assert.deepEqual(await ask(child, { do: 'echo', value }), value);
      assert.deepEqual(
        await ask(child, { do: 'read', buffer: buffer.subarray(i % 100, 4096) }),
        [3],
      );
      const theirs = await ask<DeviceBuffer>(child, {
        do: 'make',
        byteLength: 100,
        value: i % 256,
      });
      assert.deepEqual(await valuesOf(theirs), [i % 256]);
      theirs.close();
      if (i % 10 > 0) return;
      await Context.primary().flush();
      await ask(child, { do: 'drop' });
    };
    for (let i = 0; i <= 20; i++) await round(i);
    const before = [await settled(), await ask(child, { do: 'state' })];
    const rounds = iterations(120, 33_000);
    for (let i = 0; i < rounds; i++) await round(i);
    await settled();
    await ask(child, { do: 'drop' });
    assert.deepEqual([await settled(), await ask(child, { do: 'state' })], before);
  });

  test(
    'Maps, Sets, Dates, errors and arrays without items cross, with GPU memory in them',
    deadline,
    async () => {
      const child = start();
      using one = DeviceBuffer.allocate(16);
      using two = DeviceBuffer.allocate(16);
      one.fill(1);
      two.fill(2);
      await Context.primary().synchronize();
      const sparse = [1, undefined, 3];
      delete sparse[0];
      const plain = {
        at: new Date(1234),
        sparse,
        ids: new Set(['a', 5n]),
        error: new RangeError('too large', { cause: new TypeError('inner') }),
      };
      const value = {
        ...plain,
        layers: new Map<unknown, unknown>([
          ['first', one],
          [two, 'second'],
        ]),
      };
      const back = await ask<typeof value>(child, { do: 'echo', value });
      const { layers, ...rest } = back;
      assert.deepStrictEqual(rest, plain);
      assert.equal(rest.error.stack, plain.error.stack);
      // Memory of this process comes back as itself.
      const first = layers.get('first') as DeviceBuffer;
      const [, second] = [...layers.keys()] as [string, DeviceBuffer];
      assert.deepEqual([...layers.values()][1], 'second');
      assert.deepEqual([await valuesOf(first), await valuesOf(second)], [[1], [2]]);
      first.close();
      second.close();
    },
  );

  test('objects that nobody took are closed with the peer', deadline, async () => {
    const child = start();
    const recorder = recordCalls();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name && call.status === 0).length;
    await child.send({ do: 'flood', count: 1000 } satisfies Request);
    const { buffer } = (await child.receive()) as { buffer: DeviceBuffer };
    assert.deepEqual(await valuesOf(buffer), [9]);
    buffer.close();
    // More have come since, or will in the next turns.
    await until(() => count('cuIpcOpenMemHandle_v2') !== count('cuIpcCloseMemHandle'));
    child.close();
    await Context.primary().flush();
    assert.equal(count('cuIpcOpenMemHandle_v2'), count('cuIpcCloseMemHandle'));
    recorder.stop();
  });

  test('a child killed in the middle is the end: after what it had sent', deadline, async () => {
    const child = start();
    await child.send({ do: 'flood', count: 100_000 } satisfies Request);
    let next = 0;
    // Memory of a process that has ended cannot be opened; what is mapped stays usable.
    let kept: DeviceBuffer | undefined;
    await assert.rejects(
      async () => {
        for await (const value of child) {
          const { i, buffer } = value as { i: number; buffer: DeviceBuffer };
          assert.equal(i, next);
          next += 1;
          if (kept) buffer.close();
          else kept = buffer;
          if (next === 200) child.process.kill('SIGKILL');
        }
      },
      { name: 'PeerGoneError', signal: 'SIGKILL' },
    );
    assert.ok(next >= 200);
    kept?.close();
    assert.equal(child.closed, true);
    assert.equal(await ended(child), 'SIGKILL');
    await assert.rejects(child.send(1), { name: 'PeerGoneError' });
  });

  test('what a child had sent is received after it has ended, however late', deadline, async () => {
    const child = start();
    // Two more than are taken in at a time: the kernel keeps them, though not many more.
    await child.send({ do: 'flood', count: MAX_QUEUED_VALUES + 1 } satisfies Request);
    await child.send({ do: 'exit', value: 0 } satisfies Request);
    assert.equal(await ended(child), 0);
    const received: unknown[] = [];
    for await (const value of child) received.push(value);
    assert.equal(received.length, MAX_QUEUED_VALUES + 2);
    assert.equal(received.pop(), 'flooded');
    for (const value of received) (value as { buffer: DeviceBuffer }).buffer.close();
  });

  test(
    'the end of a child ends the connection, even if another process holds its socket',
    deadline,
    async () => {
      const child = start();
      const grandchild = await ask<number>(child, { do: 'grandchild' });
      try {
        await child.send({ do: 'exit', value: 3 } satisfies Request);
        await assert.rejects(child.receive({ timeoutMs: 30_000 }), { name: 'PeerGoneError' });
        assert.equal(await ended(child), 3);
      } finally {
        process.kill(grandchild, 'SIGKILL');
      }
    },
  );

  test('a process that has closed ends when what was begun is sent', deadline, async () => {
    const child = start('closes');
    const values: unknown[] = [];
    for await (const value of child) values.push(value);
    const [buffer, bytes] = values as [DeviceBuffer, Uint8Array];
    assert.deepEqual([values.length, bytes.byteLength], [2, 8 << 20]);
    assert.ok(bytes.every((byte) => byte === 7));
    // What is lent does not keep it alive.
    assert.equal(await ended(child), 0);
    assert.ok((await child.ended) instanceof ClosedError);
    assert.deepEqual(await valuesOf(buffer), [6]);
    buffer.close();
  });

  test(
    'memory that arrives after the end of its maker opens where descriptors hold it',
    deadline,
    async () => {
      const receiveLate = async (kind: KindName): Promise<unknown> => {
        const child = start('leaves', kind);
        // The loop does not turn before: what was sent lies in the socket.
        while (!areDescriptorsClosed(child.pid))
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
        return await child.receive({ timeoutMs: 30_000 });
      };
      await assert.rejects(receiveLate('legacy'), { name: 'IpcError', code: 'exporter-gone' });
      if (!VirtualMemory.supported()) return;
      using buffer = (await receiveLate('virtual')) as DeviceBuffer;
      assert.deepEqual(await valuesOf(buffer), [6]);
    },
  );

  test('unrelated processes connect by a path and by an abstract name', deadline, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-strangers-'));
    const [host, guest] = shared.lend(2);
    try {
      for (const name of [join(folder, 'meet'), `@cuffi-meet-${process.pid}`]) {
        await host.send({ do: 'listen', name } satisfies Request);
        const visit = ask(guest, { do: 'visit', name });
        assert.equal(await host.receive(), 'listening');
        assert.deepEqual(await visit, { answer: 'filled', pid: host.pid, values: [5] });
        assert.equal(await host.receive(), 'left');
      }
      assert.equal(existsSync(join(folder, 'meet')), false);
      // The same buffer in three processes.
      using buffer = DeviceBuffer.allocate(100);
      await Promise.all([
        ask(host, { do: 'fill', buffer: buffer.subarray(0, 50), value: 1 }),
        ask(guest, { do: 'fill', buffer: buffer.subarray(50, 100), value: 2 }),
      ]);
      assert.deepEqual(await ask(host, { do: 'read', buffer }), [1, 2]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('an open peer keeps the child alive, unless it is unreferenced', deadline, async () => {
    const name = join(tmpdir(), `cuffi-left-${process.pid}`);
    const child = start('unreferenced', name);
    for await (const value of child) assert.fail(String(value));
    assert.equal(await ended(child), 0);
    assert.equal(existsSync(name), false, 'the socket of a listener that was open at the end');
    using lost = spawnPeer('/nonexistent/script.js', { stdio: 'ignore' });
    await assert.rejects(
      async () => {
        for await (const value of lost) assert.fail(String(value));
      },
      {
        name: 'PeerGoneError',
        exitCode: 1,
        message: /without closing the connection: there is no script \/nonexistent\/script\.js$/,
      },
    );
    assert.equal(await ended(lost), 1);
    // Loaders of TypeScript take x.ts for x.js.
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-script-'));
    writeFileSync(join(folder, 'x.ts'), '');
    using typed = spawnPeer(join(folder, 'x.js'), { stdio: 'ignore', execArgv: [] });
    await assert.rejects(typed.receive(), {
      name: 'PeerGoneError',
      message: /without closing the connection$/,
    });
    await ended(typed);
    rmSync(folder, { recursive: true });
    // A name that Node would take for an option or a command.
    for (const script of ['--print', '-e', '-', 'inspect', '--require=x']) {
      using named = spawnPeer(script, {
        args: ['7'],
        stdio: 'ignore',
        execArgv: [],
        cwd: tmpdir(),
      });
      await assert.rejects(named.receive(), {
        name: 'PeerGoneError',
        message: new RegExp(`there is no script ${join(tmpdir(), script)}$`),
      });
      await ended(named);
    }
    using nowhere = spawnPeer(program, { cwd: '/nonexistent' });
    await assert.rejects(nowhere.receive(), { name: 'IpcError', message: /could not be started/ });
    assert.throws(() => spawnPeer(program, { arguments: [] } as object), TypeError);
    const wrong = { args: 'one', execArgv: [1], env: 'A=1' };
    for (const [name, value] of Object.entries(wrong))
      assert.throws(() => spawnPeer(program, { [name]: value } as object), {
        name: 'TypeError',
        message: new RegExp(`^${name}`),
      });
    assert.throws(() => spawnPeer(1 as never), /a path or a file URL, not 1/);
  });

  for (const [args, said, exitCode] of kept)
    test(`ref and unref of a peer: a process that ${args.join(', ')}`, deadline, async () => {
      const child = start(...args);
      const values: unknown[] = [];
      for await (const value of child) values.push(value);
      assert.deepEqual([values, await ended(child)], [said, exitCode]);
    });

  test('buffers of pools and of virtual memory are read and filled by the other process, also after a value that failed to be sent', {
    ...deadline,
    skip: !MemoryPool.supported(0, { shareable: true }) && 'no shareable pools',
  }, async () => {
    const [child] = shared.lend();
    using stream = Stream.create({ nonBlocking: true });
    const pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
    const memory = VirtualMemory.reserve(4 << 20, { shareable: true });
    const buffers = [0, 1, 2].map(() => pool.allocate(4096, { stream }));
    buffers.push(memory.grow(4096));
    for (const [at, buffer] of buffers.entries()) buffer.fill(at + 1, { stream });
    await stream.synchronize();
    for (const [at, buffer] of buffers.entries()) {
      assert.deepEqual(await ask(child, { do: 'read', buffer }), [at + 1]);
      assert.equal(await ask(child, { do: 'fill', buffer, value: at + 11 }), 'filled');
      assert.deepEqual(await valuesOf(buffer), [at + 11]);
    }
    // A value that could not be sent does not count as sent.
    const other = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
    const late = other.allocate(64, { stream });
    late.fill(9, { stream });
    await stream.synchronize();
    await assert.rejects(child.send({ late, wrong: (() => 0) as unknown }), { name: 'TypeError' });
    assert.deepEqual(await ask(child, { do: 'read', buffer: late }), [9]);
    late.close();
    for (const each of [...buffers.slice(0, 3), memory]) each.close();
    await Context.primary().flush();
    other.close();
    pool.close();
  });

  test(
    'what cannot be shared is refused with its place, and nothing of it goes out',
    deadline,
    async () => {
      const [child] = shared.lend();
      using pool = MemoryPool.create({ maxSize: 64 << 20 });
      using pooled = pool.allocate(100);
      const closed = DeviceBuffer.allocate(16);
      closed.close();
      using sound = DeviceBuffer.allocate(16);
      using event = CudaEvent.create();
      for (const [wrong, expected] of [
        [
          pooled,
          { name: 'IpcError', message: /^value\.list\[1\]: this memory pool is not shareable/ },
        ],
        [closed, { name: 'ClosedError', message: /^value\.list\[1\]: / }],
        [event, { name: 'IpcError', message: /^value\.list\[1\]: this event is not interprocess/ }],
        [
          pool,
          { name: 'IpcError', message: /^value\.list\[1\]: this memory pool is not shareable/ },
        ],
      ] as const)
        await assert.rejects(child.send({ list: [sound, wrong] }), expected);
      assert.equal(await ask(child, { do: 'echo', value: 'still there' }), 'still there');
    },
  );

  test(
    'a buffer that comes back after its maker has closed it is refused with its place',
    deadline,
    async () => {
      const child = start();
      using kept = DeviceBuffer.allocate(16);
      kept.fill(1);
      // A value is searched for the place only where that is quick.
      for (const [pad, place, layersOf] of [
        [0, 'value\\.layers\\[1\\]', (buffer: DeviceBuffer) => [kept, buffer]],
        [1 << 16, 'object 1 of the value', (buffer: DeviceBuffer) => [kept, buffer]],
        [
          0,
          'value\\.layers\\.get\\("b"\\)',
          (buffer: DeviceBuffer) =>
            new Map([
              ['a', kept],
              ['b', buffer],
            ]),
        ],
        [
          0,
          'value\\.layers\\.keys\\(\\)\\[1\\]',
          (buffer: DeviceBuffer) =>
            new Map<unknown, unknown>([
              ['a', kept],
              [buffer, 'b'],
            ]),
        ],
        [
          0,
          'value\\.layers\\.values\\(\\)\\[1\\]',
          (buffer: DeviceBuffer) => new Set([kept, buffer]),
        ],
        [
          0,
          'value\\.layers\\.cause\\.buffer',
          (buffer: DeviceBuffer) => new Error('failed', { cause: { kept, buffer } }),
        ],
      ] as const) {
        const buffer = DeviceBuffer.allocate(16);
        const value = { layers: layersOf(buffer), pad: new Uint8Array(pad) };
        const sending = child.send({ do: 'echo', value } satisfies Request);
        // Before the event loop turns, so that it has not come back yet.
        buffer.close();
        await sending;
        await assert.rejects(child.receive({ timeoutMs: 30_000 }), {
          name: 'IpcError',
          message: new RegExp(
            `^${place} is an object of this process, which came back after it was closed`,
          ),
        });
      }
      // The rest of the value is not lost by that, nor is the connection.
      assert.deepEqual(await valuesOf(kept), [1]);
      assert.equal(await ask(child, { do: 'echo', value: 'still there' }), 'still there');
    },
  );
});
