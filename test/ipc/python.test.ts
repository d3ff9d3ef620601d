/** Node and Python share GPU memory: the companion src/python/cuffi at the other end. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { getEventListeners } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { dtypes } from '../../src/dtype.ts';
import {
  Context,
  CudaEvent,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  MemoryPool,
  type PeerGoneError,
  Stream,
  toDevice,
  VirtualMemory,
} from '../../src/index.ts';
import {
  type ChildPeer,
  connect,
  getIpcHandle,
  leases,
  listen,
  spawnPeer,
  spawnPython,
} from '../../src/ipc/index.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { companionPath } from '../../src/python/companion.ts';
import { onHardware } from '../support/driver.ts';
import { iterations, turns, until } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { comesBackTo, processState } from '../support/process-state.ts';
import { killed, startProgram } from '../support/program.ts';
import { noPython, PythonWorker, workerProgram } from '../support/python.ts';

const options = { skip: noPython, timeout: 120_000 };

/** Whether nothing is lent on either side, once all work is done. */
async function nothingIsLent(worker: PythonWorker): Promise<void> {
  await Context.primary().flush();
  await until(() => leases.stats().leases.length === 0).catch(() => {
    assert.deepEqual(leases.stats().leases, []);
  });
  const { lent, held } = await worker.ask<{ lent: number; held: number }>('counts');
  assert.deepEqual([lent, held], [0, 0]);
}

describe('the companion for Python', { skip: options.skip }, () => {
  test('says that it confirms no descriptors', options, async () => {
    await using worker = new PythonWorker('iterate');
    const { peer } = worker;
    using buffer = DeviceBuffer.allocate(64);
    const descriptor = withChecksum({ ...getIpcHandle(buffer), pid: peer.pid });
    await assert.rejects(peer.open(descriptor, { timeoutMs: 60_000 }), {
      name: 'IpcError',
      code: 'not-supported',
      message: `process ${peer.pid} does not confirm this descriptor: the companion for Python confirms no descriptors`,
    });
    await peer.send('goes on');
    assert.equal(await peer.receive(), 'goes on');
  });

  test('returns every kind of value as it was sent', options, async () => {
    await using worker = new PythonWorker('iterate');
    const values: readonly unknown[] = [
      null,
      true,
      0,
      -1,
      2 ** 31,
      -0,
      0.1,
      Number.NaN,
      '',
      'grün',
      '水 \ud800',
      'x'.repeat(70_000),
      2n ** 63n - 1n,
      -(2n ** 200n),
      [1, [2, [3]], { a: { b: null } }],
      { name: 'frame', 'ü b': 1.5 },
      new Date(1_234_567_890_123),
      new Map<unknown, unknown>([
        ['a', 1],
        [2, new Set(['x', 3])],
      ]),
      new Uint8Array([1, 2, 3]),
      new Float64Array([0.5, -1]),
      new BigInt64Array([-1n]),
      new Uint8Array(200_000).fill(7),
    ];
    for (const value of values) {
      await worker.peer.send(value);
      assert.deepEqual(await worker.peer.receive({ timeoutMs: 10_000 }), value);
    }
    const error = new RangeError('too far', { cause: new TypeError('why') });
    await worker.peer.send(error);
    const back = (await worker.peer.receive()) as RangeError;
    assert.deepEqual(
      [back.name, back.message, (back.cause as Error).name, (back.cause as Error).message],
      ['RangeError', 'too far', 'TypeError', 'why'],
    );
  });

  test(
    'opens arrays of every dtype with their strides, and writes what Node then reads',
    options,
    async () => {
      await using worker = new PythonWorker();
      for (const dtype of dtypes) {
        using array = deviceArray([3, 4], dtype);
        using turned = array.T;
        assert.deepEqual(await worker.ask('described', { things: [array, turned] }), [
          ['DeviceArray', dtype.name, [3, 4], [4 * dtype.itemsize, dtype.itemsize], false],
          ['DeviceArray', dtype.name, [4, 3], [dtype.itemsize, 4 * dtype.itemsize], false],
        ]);
        const data = new Uint8Array(12 * dtype.itemsize).map((_, at) => at);
        await worker.ask('write', { thing: array, data });
        assert.deepEqual(await array.buffer.copyToHost(), data);
        assert.deepEqual(await worker.ask('read', { thing: array }), data);
      }
      await nothingIsLent(worker);
    },
  );

  test('opens memory of every kind, and events', options, async () => {
    await using worker = new PythonWorker();
    using pool = MemoryPool.create({ shareable: true });
    using pooled = pool.allocate(4096);
    using memory = VirtualMemory.reserve(8 << 20, { shareable: true });
    memory.grow(4 << 20);
    memory.grow(8 << 20);
    using plain = DeviceBuffer.allocate(10_000);
    using items = await toDevice(new Int32Array([1, 2, 3]));
    const reversed = items.slice({ step: -1 });
    const buffers = [pooled, memory.buffer, plain.subarray(100, 9000)];
    for (const [at, buffer] of buffers.entries()) {
      buffer.fill(at + 1);
      const seen = await worker.ask<Uint8Array>('read', { thing: buffer });
      assert.deepEqual([seen.byteLength, new Set(seen)], [buffer.byteLength, new Set([at + 1])]);
      await worker.ask('write', { thing: buffer, data: seen.fill(50 + at) });
      assert.deepEqual(await buffer.copyToHost(), seen);
    }
    const readOnly = memory.buffer.subarray(4_000_000, 5_000_000).readOnly();
    using event = CudaEvent.create({ interprocess: true });
    using stream = Stream.create({ nonBlocking: true });
    assert.deepEqual(await worker.ask('described', { things: [pool, readOnly, event, reversed] }), [
      ['ImportedPool'],
      ['DeviceBuffer', 'uint8', [1_000_000], [1], true],
      ['CudaEvent'],
      ['DeviceArray', 'int32', [3], [-4], false],
    ]);
    assert.match(
      await worker.peer
        .request({ do: 'write', thing: readOnly, data: new Uint8Array(1_000_000) } as never)
        .then(String, String),
      /CuffiError: this array is read-only/,
    );
    {
      using latch = new Latch();
      latch.hold(stream);
      event.record(stream);
      assert.equal(await worker.ask('event_done', { thing: event }), false);
    }
    assert.equal(await worker.ask('event_done', { thing: event }), true);
    await nothingIsLent(worker);
  });

  test(
    'lets no more streams wait for what it receives than the device has room for',
    options,
    async () => {
      await using worker = new PythonWorker();
      using stream = Stream.create({ nonBlocking: true });
      using array = await toDevice(new Uint8Array(10));
      const sent: Promise<void>[] = [];
      {
        using latch = new Latch();
        latch.hold(stream);
        array.fill(7, { stream });
        for (let n = 0; n < 8; n++) sent.push(worker.peer.send(array, { stream }));
        // Two fewer than the device has queues. The host waits for the next one.
        assert.deepEqual(await worker.ask('receive_ahead', { count: 8 }), [6, 6]);
      }
      await Promise.all(sent);
      assert.deepEqual(await worker.ask('receive_ahead', { count: 2 }), [2, 0]);
      await worker.ask('evaluate', { source: 'kept.clear()' });
      await nothingIsLent(worker);
    },
  );

  test(
    'sends 8-bit floats by their name, also those that another library describes by DLPack',
    options,
    async () => {
      await using worker = new PythonWorker();
      for (const name of ['float8_e4m3fn', 'float8_e5m2']) {
        const data = Uint8Array.of(0x38, 0xb8, 0x7f, 0);
        const made = await worker.ask<DeviceArray>('empty', { shape: [2, 2], dtype: name, data });
        assert.equal(made.dtype.name, name);
        assert.deepEqual(await made.copyToHost(), data);
        const other = await worker.ask<DeviceArray>('dlpack_only', { dtype: name, data });
        assert.deepEqual([other.dtype.name, other.shape], [name, [4]]);
        assert.deepEqual(await other.copyToHost(), data);
        made.close();
        other.close();
      }
      await nothingIsLent(worker);
    },
  );

  test('shares what it allocates, and what other libraries do', options, async () => {
    await using worker = new PythonWorker();
    const given = { shape: [2, 3], dtype: 'float32', data: new Float32Array([1, 2, 3, 4, 5, 6]) };
    const made = await worker.ask<DeviceArray>('empty', given);
    assert.deepEqual([made.dtype.name, made.shape], ['float32', [2, 3]]);
    assert.deepEqual(await made.copyToHost(), given.data);
    const { tensor } = await worker.ask<{ tensor: DeviceArray }>('foreign', { count: 1000 });
    assert.deepEqual(
      await tensor.copyToHost(),
      Int32Array.from({ length: 1000 }, (_, at) => at),
    );
    made.fill(9);
    tensor.fill(8);
    // They know their own memory again, in any view.
    const half = tensor.slice({ start: 500, stop: 510 });
    assert.deepEqual(await worker.ask('described', { things: [made, half] }), [
      ['DeviceArray', 'float32', [2, 3], [12, 4], false],
      ['DeviceArray', 'int32', [10], [4], false],
    ]);
    assert.deepEqual(
      await worker.ask('read', { thing: made }),
      new Uint8Array(new Float32Array(6).fill(9).buffer),
    );
    assert.deepEqual(
      await worker.ask('read', { thing: half }),
      new Uint8Array(new Int32Array(10).fill(8).buffer),
    );
    assert.equal((await worker.ask<{ lent: number }>('counts')).lent, 2);
    made.close();
    tensor.close();
    await nothingIsLent(worker);
  });

  test('sends back to Node what is its own', options, async () => {
    await using worker = new PythonWorker();
    using array = await toDevice(new Float32Array([1, 2, 3, 4]));
    using pool = MemoryPool.create({ shareable: true });
    using pooled = pool.allocate(4096);
    using memory = VirtualMemory.reserve(4 << 20, { shareable: true });
    memory.grow(4 << 20);
    using event = CudaEvent.create({ interprocess: true });
    const things = [array, array.slice({ start: 1 }), pooled, memory.buffer, event];
    const back = await worker.ask<readonly (DeviceArray & DeviceBuffer)[]>('echo', {
      thing: things,
    });
    assert.deepEqual(
      back
        .slice(0, 4)
        .map(({ buffer, address }) => (buffer instanceof DeviceBuffer ? buffer.address : address)),
      [array.buffer.address, array.buffer.address + 4, pooled.address, memory.address],
    );
    for (const object of back) object.close();
    await nothingIsLent(worker);
  });

  test('keeps what it was sent until it is closed there, or collected', options, async () => {
    await using worker = new PythonWorker();
    for (const end of ['close', 'drop']) {
      const array = await toDevice(new Uint8Array(100));
      await worker.ask('keep', { name: 'a', thing: array });
      array.close();
      await Context.primary().flush();
      assert.equal(leases.stats().orphaned.count, 1);
      await worker.ask(end, { name: 'a' });
      await until(() => leases.stats().orphaned.count === 0);
    }
    await nothingIsLent(worker);
  });

  test('waits for the work of a stream, on the host or in a stream', options, async () => {
    await using worker = new PythonWorker('iterate');
    await using relay = new PythonWorker('relay');
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    for (const { peer } of [worker, relay]) {
      using buffer = DeviceBuffer.allocate(1 << 20);
      buffer.fill(1);
      await buffer.context.synchronize();
      // The first message shows that it runs.
      await peer.send(buffer);
      ((await peer.receive({ timeoutMs: 20_000 })) as DeviceBuffer).close();
      const latch = new Latch();
      latch.hold(stream);
      buffer.fill(7, { stream });
      await peer.send(buffer, { stream });
      const received = peer.receive({ stream: other, timeoutMs: 20_000 }) as Promise<DeviceBuffer>;
      if (peer === relay.peer) {
        // It comes back before the work is done, and this stream waits for Python's.
        using back = await received;
        const copied = back.copyToHost(undefined, { stream: other });
        await turns();
        assert.equal(other.done, false);
        latch.open();
        assert.deepEqual(new Set(await copied), new Set([7]));
      } else {
        assert.equal(await Promise.race([received, turns().then(() => 'late')]), 'late');
        latch.open();
        using back = await received;
        assert.deepEqual(new Set(await back.copyToHost()), new Set([7]));
      }
      latch[Symbol.dispose]();
    }
    // It keeps the last value until the next one.
    await worker.peer.send(null);
    await until(() => leases.stats().leases.length === 0);
  });

  test('answers requests and asks them, also with asyncio', options, async () => {
    for (const mode of ['serve', 'aserve']) {
      await using worker = new PythonWorker(mode);
      const stop = new AbortController();
      const serve = (value: unknown): unknown => {
        if (value === 'fail') throw new RangeError('failed in Node');
        return [value, 'answered'];
      };
      const served = worker.peer.serve(serve as never, { signal: stop.signal }).catch(() => {});
      assert.deepEqual(await worker.ask('ask', { value: { x: 1 } }), [{ x: 1 }, 'answered']);
      await assert.rejects(worker.ask('ask', { value: 'fail' }), {
        name: 'RangeError',
        message: 'failed in Node',
      });
      await assert.rejects(worker.ask('fail', { text: 'no way' }), (error: Error) => {
        assert.deepEqual([error.name, error.message], ['ValueError', 'no way']);
        assert.match(error.stack ?? '', /in fail[\s\S]*raise ValueError/);
        assert.equal((error.cause as Error).name, 'KeyError');
        return true;
      });
      stop.abort();
      await served;
    }
    await using iterating = new PythonWorker('aiterate');
    using array = await toDevice(new Int8Array([1, 2]));
    await iterating.peer.send({ array });
    const { array: back } = (await iterating.peer.receive({ timeoutMs: 20_000 })) as {
      array: DeviceArray;
    };
    assert.deepEqual(await back.copyToHost(), new Int8Array([1, 2]));
    back.close();
  });

  test('takes many messages with flat memory, descriptors and leases', options, async () => {
    await using worker = new PythonWorker();
    using array = await toDevice(new Float32Array(1000));
    using memory = VirtualMemory.reserve(2 << 20, { shareable: true });
    memory.grow(2 << 20);
    const round = async (): Promise<void> => {
      const thing = { array, buffer: memory.buffer };
      const back = await worker.ask<{ array: DeviceArray; buffer: DeviceBuffer }>('echo', {
        thing,
      });
      back.array.close();
      back.buffer.close();
      const made = await worker.ask<DeviceArray>('empty', {
        shape: [16],
        dtype: 'int8',
        data: new Int8Array(16),
      });
      made.close();
    };
    for (let at = 0; at < 20; at += 1) await round();
    await nothingIsLent(worker);
    const before = processState();
    const there = await worker.ask('counts');
    for (let at = 0; at < iterations(100, 5000); at += 1) await round();
    await nothingIsLent(worker);
    await comesBackTo(before);
    // The companion closes some descriptors in the background.
    let after = await worker.ask('counts');
    for (let at = 0; at < 1000 && !isDeepStrictEqual(after, there); at += 1)
      after = await worker.ask('counts');
    assert.deepEqual(after, there);
  });
});

describe('errors of the companion', { skip: options.skip }, () => {
  const big = `'x' * (1 << 24)`;
  const cases: readonly (readonly [source: string, error: RegExp])[] = [
    ['peer.send(object())', /^TypeError : builtins\.object cannot be sent: only/],
    [`peer.send(${big} + 'y')`, /^ValueError : the value is too large: it may have at most 16 MiB/],
    ["peer.send({'__proto__': 1})", /^ValueError : a name of an object must not be __proto__/],
    [
      '(lambda l: (l.append(l), peer.send(l)))([])',
      /^ValueError : the value is nested deeper than 64/,
    ],
    ['peer.receive(timeout=0.01)', /^TimeoutError : waiting for a value took more than 0\.01 s/],
    [
      'peer.request(1, timeout=0.01)',
      /^TimeoutError : waiting for an answer took more than 0\.01 s/,
    ],
    [
      "peer.send(1, stream='x') or peer.receive(stream='x')",
      /^TypeError : stream must be an int, or have/,
    ],
    ["cuffi.connect('@cuffi-nobody')", /^IpcError not-listening: cannot connect to @cuffi-nobody/],
    ["cuffi.connect('')", /^ValueError : '' is not a valid socket name/],
    ['cuffi.parent() is peer', /true|True/],
    [
      "cuffi.empty((2,), 'float33')",
      /^TypeError : unknown dtype 'float33': it must be one of bool/,
    ],
    ['cuffi.empty((2, -1))', /^ValueError : shape must have at most 64 lengths of at least 0/],
    [
      'cuffi.empty(1 << 52)',
      /^CudaError CUDA_ERROR_OUT_OF_MEMORY: cuMemCreate failed while allocating/,
    ],
    ['peer.send(cuffi.empty((0, 3)))', /^ValueError : an array without items has no memory/],
    [
      '(lambda a: (a.close(), peer.send(a)))(cuffi.empty(1))',
      /^ClosedError closed: this DeviceArray is closed/,
    ],
    ['cuffi.empty(3).copy_from_host(b"x")', /^ValueError : data has 1 bytes, but the array has 12/],
    [
      "cuffi.empty(2, 'bfloat16').__cuda_array_interface__",
      /^AttributeError : bfloat16 has no typestr: use DLPack/,
    ],
    [
      "cuffi.empty(2, 'float8_e4m3fn').__cuda_array_interface__",
      /^AttributeError : float8_e4m3fn has no typestr: use DLPack/,
    ],
    ['cuffi.empty(2).__dlpack__(stream=0)', /^ValueError : stream 0 is ambiguous/],
    ['cuffi.empty(2).__dlpack__(copy=True)', /^BufferError : cuffi does not copy/],
  ];

  test('are typed, and name what is wrong', options, async () => {
    await using worker = new PythonWorker();
    for (const [source, error] of cases)
      assert.match(String(await worker.ask('evaluate', { source })), error, source);
    assert.equal((await worker.ask<{ lent: number }>('counts')).lent, 0);
  });

  test('what Node revokes is closed in Python', options, async () => {
    await using worker = new PythonWorker();
    using array = await toDevice(new Uint8Array(10));
    await worker.ask('keep', { name: 'a', thing: array });
    leases.revoke(array);
    await until(() => true);
    assert.match(
      String(await worker.ask('evaluate', { source: "kept['a'].ptr" })),
      /^ClosedError closed: this DeviceArray is closed: process \d+ has revoked it/,
    );
    await worker.ask('drop', { name: 'a' });
    await nothingIsLent(worker);
  });
});

describe('the end of a connection with Python', { skip: options.skip }, () => {
  test('closes in order, with what both hold given back', options, async () => {
    await using worker = new PythonWorker('iterate');
    using array = await toDevice(new Uint8Array(10));
    await worker.peer.send(array);
    const back = (await worker.peer.receive({ timeoutMs: 20_000 })) as DeviceArray;
    back.close();
    worker.peer.close();
    await until(() => worker.peer.process.exitCode !== null);
    assert.equal(worker.peer.process.exitCode, 0);
    await until(() => leases.stats().leases.length === 0);
  });

  test('a killed child returns what it held, and the error names the signal', options, async () => {
    await using worker = new PythonWorker();
    const array = await toDevice(new Uint8Array(10));
    await worker.ask('keep', { name: 'a', thing: array });
    array.close();
    const asked = worker.ask('die');
    await assert.rejects(asked, { name: 'PeerGoneError', signal: 'SIGKILL' });
    await until(() => leases.stats().leases.length === 0);
  });

  test(
    'the error of a child that fails has its exit code and the end of its stderr',
    options,
    async () => {
      await using worker = new PythonWorker();
      const text = 'first\nImportError: no module\n';
      await assert.rejects(worker.ask('leave', { code: 3, text }), (error: Error) => {
        const { name, message, exitCode, stderr } = error as Error & {
          exitCode: number;
          stderr: string;
        };
        assert.deepEqual([name, exitCode, stderr], ['PeerGoneError', 3, text]);
        assert.match(message, /has exited with code 3 .*: ImportError: no module$/);
        return true;
      });
      const long = `${'x'.repeat(10_000)}end`;
      await using second = new PythonWorker();
      const error = await second
        .ask('leave', { code: 1, text: long })
        .catch((caught: unknown) => caught);
      assert.equal((error as { stderr: string }).stderr, long.slice(-4096));
    },
  );

  const leaves = new URL('./fixtures/python-leaves.py', import.meta.url);
  /** How the loop of this process ends when a program of Python does. */
  const endOf = async (peer: AsyncIterable<unknown>): Promise<Partial<PeerGoneError>> => {
    const values: unknown[] = [];
    try {
      for await (const value of peer) {
        if (typeof value === 'string') values.push(value);
        else (value as DeviceArray).close();
      }
      return { name: 'the loop ends' };
    } catch (error) {
      return error as PeerGoneError;
    } finally {
      assert.deepEqual(values, ['sent']);
    }
  };

  for (const [how, end, exitCode, stderr] of [
    ['raises', 'PeerGoneError', 1, /ValueError: no model/],
    ['raises beside work that never ends', 'PeerGoneError', 1, /ValueError: no model/],
    ['is interrupted', 'PeerGoneError', undefined, /KeyboardInterrupt/],
    ['exits with 3', 'PeerGoneError', 3, /^$/],
    ['returns', 'the loop ends'],
    ['closes and raises', 'the loop ends'],
  ] as const)
    test(`a child that ${how}: ${end}`, options, async () => {
      const child = spawnPython(leaves, { args: [how] });
      const error = await endOf(child).finally(() => killed(child.process));
      assert.equal(error.name, end);
      if (end !== 'PeerGoneError') return;
      assert.equal(error.exitCode, exitCode);
      assert.equal(error.signal, exitCode === undefined ? 'SIGINT' : undefined);
      assert.match(error.stderr ?? '', stderr);
    });

  // Only its parent learns with which code a process exits.
  for (const [how, end] of [
    ['raises', 'PeerGoneError'],
    ['raises beside work that never ends', 'PeerGoneError'],
    ['is interrupted', 'PeerGoneError'],
    ['exits with 3', 'the loop ends'],
    ['returns', 'the loop ends'],
  ] as const)
    test(`a connected process that ${how}: ${end}`, options, async () => {
      const name = `leaves-${process.pid}`;
      using listener = listen(name);
      using child = spawnPython(leaves, { args: [how, name] });
      try {
        using peer = await listener.accept({ timeoutMs: 20_000 });
        assert.equal((await endOf(peer)).name, end);
      } finally {
        await killed(child.process);
      }
    });

  test('a missing interpreter, script or parent is named', options, async () => {
    using nobody = spawnPython(workerProgram, { python: '/nowhere/python3' });
    const ended = await nobody.ended;
    assert.deepEqual([ended.name, ended.code], ['IpcError', 'spawn-failed']);
    assert.match(
      ended.message,
      /could not be started: .*name the interpreter with \{ python \} or CUFFI_PYTHON/,
    );
    using missing = spawnPython('/nowhere/model.py');
    await assert.rejects(
      missing.receive({ timeoutMs: 20_000 }),
      /there is no script \/nowhere\/model\.py/,
    );
    // A name that Python would take for an option.
    for (const script of ['-c', '-m', '-', '--version', '-i']) {
      using named = spawnPython(script, { args: ['print(7)'], cwd: '/' });
      await assert.rejects(named.receive({ timeoutMs: 20_000 }), {
        name: 'PeerGoneError',
        exitCode: 2,
        message: new RegExp(`can't open file '/+\\./${script}'`),
      });
    }
    const source =
      'import cuffi\ntry: cuffi.parent()\nexcept cuffi.IpcError as error: print(error.code)';
    const env = { ...process.env, PYTHONPATH: companionPath() as string };
    assert.equal(
      spawnSync('python3', ['-c', source], { env, encoding: 'utf8' }).stdout,
      'no-parent\n',
    );
  });

  test('kills at any moment leave nothing here', options, async () => {
    for (let at = 0; at < iterations(4, onHardware ? 25 : 100); at += 1) {
      const worker = new PythonWorker('iterate');
      const array = await toDevice(new Uint8Array(1000));
      const traffic = (async () => {
        for (;;) {
          await worker.peer.send([array, array.slice({ start: 10 })]);
          const back = (await worker.peer.receive()) as readonly DeviceArray[];
          for (const one of back) one.close();
        }
      })();
      await delay(80 + ((at * 37) % 60));
      worker.peer.process.kill('SIGKILL');
      await assert.rejects(traffic, { name: 'PeerGoneError', signal: 'SIGKILL' });
      array.close();
      await until(() => leases.stats().leases.length === 0);
      worker.peer.close();
    }
  });

  test('kills of a Node process at any moment leave nothing in Python', options, async () => {
    await using worker = new PythonWorker();
    const name = `@cuffi-test-${process.pid}-kills`;
    await worker.ask('listening', { name });
    const client = new URL('./fixtures/python-client.ts', import.meta.url);
    using array = await toDevice(new Uint8Array(10));
    // The driver opens its own descriptors for the first memory.
    await worker.ask('read', { thing: array });
    const before = await worker.ask('counts');
    for (let at = 0; at < iterations(3, onHardware ? 25 : 100); at += 1) {
      const child = startProgram(client, [name], { stdio: ['ignore', 'pipe', 'inherit'] });
      await new Promise((begun) => child.stdout.once('data', begun));
      await delay((at * 7) % 40);
      child.kill('SIGKILL');
      assert.match(await worker.ask('ended'), /^(PeerGoneError|ClosedError)/);
      // The thread of the connection ends a moment later.
      let counts = await worker.ask('counts');
      for (let tries = 0; tries < 100 && !isDeepStrictEqual(counts, before); tries += 1) {
        await delay(50);
        counts = await worker.ask('counts');
      }
      assert.deepEqual(counts, before);
    }
  });
});

describe('spawnPython', { skip: options.skip }, () => {
  test('runs a module by its name', options, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-module-'));
    try {
      mkdirSync(join(folder, 'pkg'));
      writeFileSync(
        join(folder, 'pkg', 'worker.py'),
        'import sys, cuffi\ncuffi.parent().send([__name__, __package__, *sys.argv[1:]])\n',
      );
      for (const cwd of [folder, pathToFileURL(folder)]) {
        using worker = spawnPython({ module: 'pkg.worker' }, { args: ['-x', 'y'], cwd });
        const said = await worker.receive({ timeoutMs: 20_000 });
        assert.deepEqual(said, ['__main__', 'pkg', '-x', 'y']);
      }
      using missing = spawnPython({ module: 'pkg.other' }, { cwd: folder });
      await assert.rejects(missing.receive({ timeoutMs: 20_000 }), {
        name: 'PeerGoneError',
        message: /No module named pkg\.other/,
      });
    } finally {
      rmSync(folder, { recursive: true });
    }
    for (const module of ['', '-c', 'pkg/worker.py', './worker', 'a b', '.worker', 7, undefined])
      assert.throws(() => spawnPython({ module } as never), {
        name: 'TypeError',
        message: /^module must be the name of a Python module, such as 'pkg\.worker', not /,
      });
    assert.throws(() => spawnPython({ module: 'pkg.worker', args: [] } as never), {
      name: 'TypeError',
      message: /args/,
    });
  });

  test('gives the child the standard streams that were named', options, async () => {
    const source = [
      'import os, sys, cuffi',
      'parent = cuffi.parent()',
      "print('read', sys.stdin.read())",
      "print('told', file=sys.stderr, flush=True)",
      "os.write(3, b'more') if 'more' in sys.argv else None",
      'parent.receive(); sys.exit(3)',
    ].join('\n');
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-stdio-'));
    const script = join(folder, 'program.py');
    writeFileSync(script, source);
    const textOf = async (stream: NodeJS.ReadableStream | null): Promise<string> => {
      let text = '';
      for await (const chunk of stream as NodeJS.ReadableStream) text += String(chunk);
      return text;
    };
    try {
      using piped = spawnPython(script, { args: ['more'], stdio: Array(4).fill('pipe') });
      const { stdin, stdout, stderr, stdio } = piped.process;
      stdin?.end('this');
      const said = Promise.all([stdout, stderr, stdio[3] as typeof stdout].map(textOf));
      await piped.send('end');
      const gone = await piped.ended;
      assert.deepEqual(await said, ['read this\n', 'told\n', 'more']);
      // The error has no copy of what the reader of the pipe got.
      assert.deepEqual([gone.name, (gone as PeerGoneError).stderr], ['PeerGoneError', undefined]);
      // stderr is passed on, and kept, as without the option.
      using inherited = spawnPython(script, { stdio: ['ignore', 'pipe'] });
      const read = textOf(inherited.process.stdout);
      await inherited.send('end');
      assert.equal(((await inherited.ended) as PeerGoneError).stderr, 'told\n');
      assert.equal(await read, 'read \n');
      assert.equal(inherited.process.stderr !== null, true);
      using silent = spawnPython(script, { stdio: 'ignore' });
      await silent.send('end');
      assert.equal(((await silent.ended) as PeerGoneError).exitCode, 3);
      assert.deepEqual(silent.process.stdio.slice(0, 3), [null, null, null]);
    } finally {
      rmSync(folder, { recursive: true });
    }
    assert.throws(() => spawnPython(script, { stdio: 'none' as never }), TypeError);
  });

  test(
    'ends the child when the signal is aborted, and starts none if it already is',
    options,
    async () => {
      const spawns: readonly ((signal: AbortSignal) => ChildPeer)[] = [
        (signal) => spawnPython(workerProgram, { args: ['serve'], signal }),
        (signal) => spawnPeer(new URL('./fixtures/worker.ts', import.meta.url), { signal }),
      ];
      for (const start of spawns) {
        const controller = new AbortController();
        using child = start(controller.signal);
        const { pid } = child.process;
        controller.abort(new Error('no longer needed'));
        await assert.rejects(child.receive({ timeoutMs: 20_000 }), {
          name: 'PeerGoneError',
          signal: 'SIGTERM',
          pid,
        });
        await killed(child.process);
        const running = (): number =>
          process.getActiveResourcesInfo().filter((name) => name === 'ProcessWrap').length;
        const before = running();
        const reason = new Error('never mind');
        assert.throws(() => start(AbortSignal.abort(reason)), reason);
        assert.equal(running(), before);
        assert.throws(() => start({} as AbortSignal), {
          name: 'TypeError',
          message: /^signal must be an AbortSignal/,
        });
      }
      // A child that has ended listens to it no longer.
      const { signal } = new AbortController();
      const ended = spawnPython(workerProgram, { args: ['serve'], signal });
      await ended[Symbol.asyncDispose]();
      assert.equal(getEventListeners(signal, 'abort').length, 0);
    },
  );

  test('lets a script find the companion of this package before another one', options, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-other-'));
    try {
      mkdirSync(join(folder, 'cuffi'));
      writeFileSync(join(folder, 'cuffi', '__init__.py'), 'raise ImportError("another one")\n');
      writeFileSync(join(folder, 'more.py'), 'value = 7\n');
      mkdirSync(join(folder, 'app'));
      const script = join(folder, 'app', 'program.py');
      writeFileSync(
        script,
        'import cuffi, more\ncuffi.parent().send([cuffi.__file__, more.value])\n',
      );
      using child = spawnPython(script, { env: { ...process.env, PYTHONPATH: folder } });
      const said = await child.receive({ timeoutMs: 20_000 });
      assert.deepEqual(said, [join(companionPath() as string, 'cuffi', '__init__.py'), 7]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('listening in Python and in Node', { skip: options.skip }, () => {
  test('either end connects to the other by name', options, async () => {
    await using worker = new PythonWorker();
    const name = `@cuffi-test-${process.pid}-names`;
    await worker.ask('listening', { name });
    using peer = await connect(name, { timeoutMs: 10_000 });
    await peer.send({ hello: 1 });
    assert.deepEqual(await peer.receive({ timeoutMs: 10_000 }), { hello: 1 });
    using listener = listen(`${name}-node`);
    const source = `cuffi.connect('${name}-node', timeout=5).send('from Python')`;
    const [connected] = await Promise.all([listener.accept(), worker.ask('evaluate', { source })]);
    assert.equal(await connected.receive({ timeoutMs: 10_000 }), 'from Python');
    connected.close();
    assert.match(
      String(await worker.ask('evaluate', { source: `cuffi.listen('${name}')` })),
      /^IpcError address-in-use: cannot listen at/,
    );
  });
});
