/** Memory in place in an inference server, by Triton's HTTP calls: fixtures/triton-server.ts stands in. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Context, DeviceBuffer, deviceArray, fromBuffer, toDevice } from '../../src/index.ts';
import { tritonRegion } from '../../src/ipc/index.ts';
import { Program } from '../support/program.ts';

const options = { timeout: 60_000 };

/** The stand-in, in a process of its own. */
class TritonServer implements AsyncDisposable {
  readonly #program: Program;
  readonly #port: number;

  private constructor(program: Program, port: number) {
    this.#program = program;
    this.#port = port;
  }

  static async start(): Promise<TritonServer> {
    const program = new Program(new URL('./fixtures/triton-server.ts', import.meta.url));
    return new TritonServer(program, await program.next<number>());
  }

  async call(method: string, path: string, body?: object): Promise<unknown> {
    const response = await fetch(`http://127.0.0.1:${this.#port}/${path}`, {
      method,
      ...(body && { body: JSON.stringify(body) }),
    });
    const answer = await response.json();
    if (response.status !== 200) throw new Error((answer as { error: string }).error);
    return answer;
  }

  post(path: string, body: object = {}): Promise<unknown> {
    return this.call('POST', path, body);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#program.kill();
  }
}

describe('tritonRegion', () => {
  test('lets a server read an input and write an output in place', options, async () => {
    await using server = await TritonServer.start();
    using block = DeviceBuffer.allocate(4096);
    block.fill(0xff);
    // Both lie in the middle of one allocation, which is registered once.
    using input = fromBuffer(block.subarray(100, 116), 4, 'float32');
    using output = deviceArray([2, 2], 'float32');
    await input.copyFrom(new Float32Array([1, 2, 3, 4]));
    const regions = [tritonRegion(input), tritonRegion(output)] as const;
    assert.equal(tritonRegion(block.subarray(500, 600)).name, regions[0].name);
    for (const { name, registration } of regions)
      await server.post(`v2/cudasharedmemory/region/${name}/register`, registration);
    const [{ name, registration, parameters }] = regions;
    await assert.rejects(
      server.post(`v2/cudasharedmemory/region/${name}/register`, registration),
      /already in manager/,
    );
    assert.deepEqual(await server.call('GET', `v2/cudasharedmemory/region/${name}/status`), [
      { name, device_id: 0, byte_size: registration.byte_size },
    ]);
    await Context.primary().synchronize();
    await server.post('v2/models/double/infer', {
      inputs: [{ name: 'INPUT', datatype: 'FP32', shape: [4], parameters }],
      outputs: [{ name: 'OUTPUT', parameters: regions[1].parameters }],
    });
    assert.deepEqual(await output.copyToHost(), new Float32Array([2, 4, 6, 8]));
    // What lies around the input is as before.
    assert.deepEqual(new Set(await block.subarray(0, 100).copyToHost()), new Set([0xff]));
    assert.deepEqual(new Set(await block.subarray(116).copyToHost()), new Set([0xff]));
    await assert.rejects(
      server.post('v2/models/double/infer', {
        inputs: [{ parameters: { ...parameters, shared_memory_offset: registration.byte_size } }],
        outputs: [{ parameters: regions[1].parameters }],
      }),
      /invalid offset/,
    );
    await server.post(`v2/cudasharedmemory/region/${name}/unregister`);
    await server.post('v2/cudasharedmemory/unregister');
    assert.deepEqual(await server.call('GET', 'v2/cudasharedmemory/status'), []);
  });

  test('names each allocation anew, and keeps none', options, async () => {
    const names = new Set<string>();
    for (let at = 0; at < 10; at += 1) {
      using buffer = DeviceBuffer.allocate(1 << 20);
      names.add(tritonRegion(buffer).name);
      buffer.close();
      await Context.primary().flush();
      assert.equal(Context.primary().pendingReleases.count, 0);
    }
    assert.equal(names.size, 10);
  });

  test('lets a server write to a view of an array', options, async () => {
    await using server = await TritonServer.start();
    using all = await toDevice(new Float32Array([1, 2, 3, 4, 5, 6]), { shape: [3, 2] });
    const last = all.slice({ start: 2 });
    const { name, registration, parameters } = tritonRegion(last, { name: 'rows.1' });
    assert.equal(name, 'rows.1');
    await server.post(`v2/cudasharedmemory/region/${name}/register`, registration);
    await server.post('v2/models/double/infer', {
      inputs: [{ parameters }],
      outputs: [{ parameters }],
    });
    assert.deepEqual(await all.copyToHost(), new Float32Array([1, 2, 3, 4, 10, 12]));
    await server.post(`v2/cudasharedmemory/region/${name}/unregister`);
  });
});
