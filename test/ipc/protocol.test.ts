/** The protocol as docs/protocol.md describes it: an end in Python that was written from that page. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createInterface } from 'node:readline';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { DeviceBuffer, type IpcError, PinnedBuffer } from '../../src/index.ts';
import { getIpcHandle, leases, listen, type Peer, Timeline } from '../../src/ipc/index.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { until } from '../support/iterations.ts';
import { killed, startProcess } from '../support/program.ts';

const program = fileURLToPath(new URL('./fixtures/protocol.py', import.meta.url));
const skip = spawnSync('python3', ['--version']).status === 0 ? false : 'python3 cannot be started';
const options = { timeout: 60_000, skip };

/** An end in Python, and what it prints. */
class Python implements AsyncDisposable {
  readonly peer: Peer;
  readonly #process: ReturnType<typeof startProcess>;
  readonly #lines: AsyncIterator<string>;

  private constructor(peer: Peer, child: ReturnType<typeof startProcess>) {
    this.peer = peer;
    this.#process = child;
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  static async start(version = 4): Promise<Python> {
    const name = `@cuffi-test-${process.pid}-protocol`;
    using listener = listen(name);
    const child = startProcess('python3', ['-B', program, name, String(version)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    return new Python(await listener.accept(), child);
  }

  /** The next line that it prints. */
  async said(): Promise<unknown> {
    const { value } = await this.#lines.next();
    return JSON.parse(value as string);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.peer.close();
    await killed(this.#process);
  }
}

const values: readonly unknown[] = [
  undefined,
  null,
  true,
  false,
  0,
  -1,
  2 ** 31,
  0.1,
  Number.NaN,
  Number.NEGATIVE_INFINITY,
  '',
  'grün',
  '水 \ud800',
  'x'.repeat(70_000),
  2n ** 63n - 1n,
  -(2n ** 200n),
  [1, [2, [3]], { a: { b: null } }],
  { name: 'frame', 'ü b': 1.5 },
  new Date(0),
  new Map<unknown, unknown>([
    ['a', 1],
    [2, new Set(['x', 3])],
  ]),
  new Uint8Array([1, 2, 3]),
  new Float64Array([0.5, -1]),
  new BigInt64Array([-1n]),
  new Uint8Array(200_000).fill(7),
  new ArrayBuffer(4),
];

describe('an end in Python that was written from docs/protocol.md', { skip: options.skip }, () => {
  test('returns every kind of value as it was sent, by value and by request', options, async () => {
    await using python = await Python.start();
    const { peer } = python;
    for (const value of values) {
      await peer.send(value);
      assert.deepEqual(await peer.receive({ timeoutMs: 10_000 }), value);
      assert.deepEqual(await peer.request(value, { timeoutMs: 10_000 }), value);
    }
    const holes: unknown[] = new Array(3);
    holes[1] = 'x';
    const returned = (await peer.request(holes)) as unknown[];
    assert.deepEqual([returned.length, Object.keys(returned)], [3, ['1']]);
    const error = new AggregateError([new TypeError('a')], 'both', { cause: new Error('why') });
    const back = (await peer.request(error)) as AggregateError;
    assert.deepEqual(
      [back.name, back.message, back.errors[0].message, (back.cause as Error).message],
      ['AggregateError', 'both', 'a', 'why'],
    );
    await assert.rejects(peer.request('fail'), { name: 'RangeError', message: /failed in Python/ });
  });

  test('opens what is shared host memory, and releases the leases of all', options, async () => {
    await using python = await Python.start();
    const { peer } = python;
    using pinned = PinnedBuffer.allocate(10_000, { shareable: true });
    using timeline = Timeline.create();
    const bytes = new Uint8Array(pinned.buffer);
    bytes[0] = 42;
    timeline.signal(7);
    await timeline.reached(7);
    await pinned.context.synchronize();
    await peer.send({ pinned, timeline, signaler: timeline.signaler() });
    assert.deepEqual(await python.said(), {
      objects: [
        { kind: 6, fds: 1, byteLength: 10_000, first: 42 },
        { kind: 4, fds: 2, words: [7, 0, process.pid] },
        { kind: 5, fds: 3, last: 7 },
      ],
    });
    assert.equal(await peer.receive({ timeoutMs: 10_000 }), 'released');
    assert.equal(bytes[0], 99);
    await until(() => leases.stats().leases.length === 0);
    // The end that had the signaler has closed it.
    await assert.rejects(timeline.reached(8, { timeoutMs: 10_000 }), { name: 'PeerGoneError' });
  });

  test('returns an error for a request about a descriptor', options, async () => {
    await using python = await Python.start();
    const { peer } = python;
    using buffer = DeviceBuffer.allocate(64);
    const descriptor = withChecksum({ ...getIpcHandle(buffer), pid: peer.pid });
    await assert.rejects(peer.open(descriptor, { timeoutMs: 10_000 }), {
      name: 'IpcError',
      code: 'not-supported',
      message: `process ${peer.pid} does not confirm this descriptor: this end confirms nothing`,
    });
    assert.equal(await peer.request(1), 1);
  });

  test('ends in order', options, async () => {
    await using python = await Python.start();
    python.peer.close();
    assert.deepEqual(await python.said(), { end: 'closed' });
    assert.equal((await python.peer.ended).name, 'ClosedError');
  });

  test(
    'is refused with a sentence that names both versions if it speaks another one',
    options,
    async () => {
      await using python = await Python.start(9);
      const ended = await python.peer.ended;
      assert.equal(ended.name, 'IpcError');
      assert.equal((ended as IpcError).code, 'version-mismatch');
      assert.match(
        ended.message,
        /version 9 of the protocol, this one version 4\. There: an end in Python\. Here: cuffi /,
      );
      const said = (await python.said()) as { readonly text: string };
      assert.match(said.text, /^cuffi \d.* in \//);
      assert.deepEqual(said, { refused: [4, 4], text: said.text });
      assert.deepEqual(await python.said(), { end: 'socket' });
    },
  );
});
