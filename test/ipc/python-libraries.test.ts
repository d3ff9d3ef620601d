/** torch, cupy, numba, cuda.core and jax beside Node, through the companion. On real GPUs only. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  bfloat16,
  Context,
  type CudaEvent,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  float16,
  MemoryPool,
  toDevice,
  VirtualMemory,
} from '../../src/index.ts';
import { leases } from '../../src/ipc/index.ts';
import { onHardware } from '../support/driver.ts';
import { iterations, until } from '../support/iterations.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const program = new URL('./fixtures/python-libraries.py', import.meta.url);
const options = {
  skip: onHardware ? noPython : 'the libraries need a GPU',
  timeout: 240_000,
};

const items = (count: number): Float32Array => Float32Array.from({ length: count }, (_, at) => at);

async function nothingIsLent(worker: PythonWorker): Promise<void> {
  await Context.primary().flush();
  await until(() => leases.stats().leases.length === 0);
  assert.deepEqual(await worker.ask('counts'), { lent: 0, held: 0 });
}

describe('the libraries of Python beside Node', options, () => {
  test('share memory with Node in both directions', options, async (t) => {
    await using worker = new PythonWorker('', {}, program);
    const versions = await worker.ask<Record<string, string>>('versions');
    t.diagnostic(`versions: ${JSON.stringify(versions)}`);
    assert.ok(versions['torch']);
    for (const name of Object.keys(versions)) {
      using array = await toDevice(items(1000));
      using pool = MemoryPool.create({ shareable: true });
      using pooled = await toDevice(items(1000), { memory: pool });
      using memory = VirtualMemory.reserve(2 << 20, { shareable: true });
      memory.grow(2 << 20);
      const strided = array.slice({ start: 3, step: 2 });
      if (name === 'jax') {
        const refused = worker.ask('read', { name, thing: strided });
        await assert.rejects(refused, /striding/, 'jax takes no strides');
      }
      for (const thing of name === 'jax' ? [array, pooled] : [array, pooled, strided]) {
        const seen = await worker.ask<readonly unknown[]>('read', { name, thing });
        const expected = [...(await thing.copyToHost())];
        if (name === 'cuda.core') assert.deepEqual(seen, [thing.shape, 'float32', true], name);
        else assert.deepEqual(seen, expected, name);
      }
      if (name !== 'jax') {
        await worker.ask('increase', { name, thing: array });
        assert.deepEqual(
          await array.copyToHost(),
          items(1000).map((item) => item + 1),
          name,
        );
      }
      if (name !== 'jax' && name !== 'cuda.core') {
        const made = await worker.ask<{ all: DeviceArray; view: DeviceArray }>('make', {
          name,
          count: 64,
        });
        assert.deepEqual(await made.all.copyToHost(), items(64), name);
        assert.deepEqual(
          await made.view.copyToHost(),
          items(32).map((item) => 2 * item + 1),
          name,
        );
        await worker.ask('fill', { name });
        assert.deepEqual(await made.view.copyToHost(), new Float32Array(32).fill(7), name);
        made.all.close();
        made.view.close();
      }
      const filled = await worker.ask<DeviceArray>('make_empty', { name, count: 64 });
      assert.deepEqual(await filled.copyToHost(), items(64), name);
      filled.close();
      await nothingIsLent(worker);
    }
  });

  test('take every dtype: bfloat16 by DLPack only', options, async () => {
    await using worker = new PythonWorker('', {}, program);
    using half = deviceArray([2, 3], float16);
    using brain = deviceArray([2, 3], bfloat16);
    using flags = deviceArray([4], 'bool');
    using turned = half.T;
    assert.deepEqual(await worker.ask('dtypes_of', { thing: { half, brain, flags, turned } }), {
      half: ['torch.float16', 'float16', [2, 3], [3, 1], true],
      brain: ['torch.bfloat16', null, [2, 3], [3, 1], true],
      flags: ['torch.bool', 'bool', [4], [1], true],
      turned: ['torch.float16', 'float16', [3, 2], [1, 3], true],
    });
    const made = await worker.ask<Record<string, DeviceArray>>('send_dtypes');
    for (const [name, array] of Object.entries(made)) {
      assert.equal(array.dtype.name, name);
      array.close();
    }
    await nothingIsLent(worker);
  });

  test("follow a stream of torch's, and its events", options, async () => {
    await using worker = new PythonWorker('', {}, program);
    using array = deviceArray([1 << 20], 'float32');
    array.fill(0);
    const asked = worker.ask('on_stream', { thing: array });
    const back = (await worker.peer.receive({ timeoutMs: 60_000 })) as DeviceArray;
    assert.deepEqual(new Set((await back.copyToHost()) as Float32Array), new Set([200]));
    back.close();
    await asked;
    const event = await worker.ask<CudaEvent>('event', { seconds: 0.2 });
    assert.equal(event.done, false);
    await event.synchronize();
    event.close();
    await nothingIsLent(worker);
  });

  test(
    'keep memory while their tensors live, and cannot write to what is read-only',
    options,
    async () => {
      await using worker = new PythonWorker('', {}, program);
      using array = await toDevice(new Float32Array([1, 2, 3]));
      assert.deepEqual(await worker.ask('outlives', { thing: array }), [1, 6, 6]);
      using memory = VirtualMemory.reserve(2 << 20, { shareable: true });
      memory.grow(2 << 20);
      memory.buffer.fill(1);
      const readOnly = memory.buffer.subarray(0, 100).readOnly();
      const [refusal, sum, copied] = await worker.ask<[string, number, string]>(
        'refuses_to_write',
        { thing: readOnly },
      );
      assert.match(refusal, /read.only/i);
      assert.deepEqual([sum, copied], [100, 'CUDA_ERROR_INVALID_VALUE']);
      assert.match(
        await worker.ask<string>('refused', { kind: 'pool' }),
        /^not-supported memory of a pool .* has no handle .* copy it into cuffi\.empty/,
      );
      assert.match(
        await worker.peer
          .request({ do: 'make', name: 'cuda.core', count: 8 } as never)
          .then(String, String),
        /has no handle for other processes: copy it into cuffi\.empty/,
      );
      await nothingIsLent(worker);
    },
  );

  test(
    'are refused tensors that would be mistaken, and refuse others themselves',
    options,
    async () => {
      await using worker = new PythonWorker('', {}, program);
      const refused = (kind: string): Promise<string> => worker.ask('not_sent', { kind });
      assert.match(await refused('conjugated'), /resolve_conj\(\)/);
      assert.match(await refused('conjugated subclass'), /resolve_conj\(\)/);
      assert.match(await refused('negated'), /resolve_neg\(\)/);
      assert.match(await refused('sparse'), /to_dense\(\)/);
      const made = await worker.ask<Record<string, DeviceArray>>('resolved');
      assert.deepEqual(await made['conjugated']?.copyToHost(), Float32Array.of(1, -2, 1, -2));
      assert.deepEqual(await made['parameter']?.copyToHost(), Float32Array.of(1, 1));
      for (const array of Object.values(made)) array.close();
      using array = await toDevice(items(4));
      const [seen, error] = await worker.ask<[number[], string]>('turned', {
        thing: array.slice({ step: -1 }),
      });
      assert.deepEqual(seen, [3, 2, 1, 0]);
      assert.match(error, /negative strides/);
      assert.match(await worker.ask('refused_by_numpy', { thing: array }), /[Dd]evice/);
      const { records } = await worker.ask<{ records?: DeviceArray }>('records');
      if (records) assert.deepEqual([records.dtype.name, records.shape], ['V12', [3]]);
      records?.close();
      assert.deepEqual(await worker.ask('empty_arrays'), [
        [0, 3],
        [0, 3],
      ]);
      await nothingIsLent(worker);
    },
  );

  test('hand over many arrays with flat memory', options, async () => {
    await using worker = new PythonWorker('', {}, program);
    using array = await toDevice(items(1000));
    const context = Context.primary();
    const round = async (): Promise<void> => {
      await worker.ask('read', { name: 'torch', thing: array.slice({ stop: 4 }) });
    };
    for (let at = 0; at < 50; at += 1) await round();
    await nothingIsLent(worker);
    const { free } = context.memoryInfo();
    for (let at = 0; at < iterations(400, 10_000); at += 1) await round();
    await nothingIsLent(worker);
    assert.ok(free - context.memoryInfo().free < 8 << 20);
  });

  test('a killed process with tensors gives all back', options, async () => {
    for (let at = 0; at < 3; at += 1) {
      await using worker = new PythonWorker('', {}, program);
      const buffer = DeviceBuffer.allocate(1 << 20);
      await worker.ask('keep', { name: 'a', thing: buffer });
      buffer.close();
      await assert.rejects(worker.ask('die'), { name: 'PeerGoneError', signal: 'SIGKILL' });
      await until(() => leases.stats().leases.length === 0);
    }
  });
});
