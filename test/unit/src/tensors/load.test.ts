import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readdirSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { selectDriver } from '../../../../ffi/driver.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import type { CUresult } from '../../../../ffi/results.ts';
import { Context } from '../../../../src/context.ts';
import { loadTensors } from '../../../../src/tensors/load.ts';
import { failing } from '../../../support/faults.ts';
import { iterations, seed } from '../../../support/iterations.ts';
import { fileBytes, someBytes, TestFolder, tensorFile } from '../../../support/safetensors.ts';
import { emulate } from '../emulate.ts';

let driver: Driver;
let folder: TestFolder;
/** How often memory was asked for. */
let allocations = 0;

before(() => {
  const emulated = emulate();
  driver = {
    ...emulated,
    cuMemAddressReserve: (...args) => {
      allocations += 1;
      return emulated.cuMemAddressReserve(...args);
    },
  };
  selectDriver(driver);
  folder = new TestFolder();
});
after(() => folder[Symbol.dispose]());

/** The files of the folder that this process has open. */
const openFiles = (): string[] =>
  readdirSync('/proc/self/fd').flatMap((fd) => {
    try {
      const path = readlinkSync(`/proc/self/fd/${fd}`);
      return path.startsWith(folder.path) ? [path] : [];
    } catch {
      return [];
    }
  });

/** Loads a file that must be refused by a typed error, with nothing allocated or open. Returns its message. */
async function refusal(path: string, isValid = false): Promise<string> {
  const before = allocations;
  let message = '';
  try {
    using tensors = await loadTensors(path);
    assert.ok(isValid, `${path} was loaded: ${tensors}`);
  } catch (error) {
    message = String(error);
    assert.equal((error as { code?: string }).code, 'invalid-safetensors', message);
    assert.equal(allocations, before, 'memory was allocated');
  }
  assert.deepEqual(openFiles(), []);
  return message;
}

const valid = tensorFile(
  {
    a: { dtype: 'F32', shape: [2, 3], bytes: someBytes(24) },
    b: { dtype: 'BF16', shape: [], bytes: someBytes(2) },
    c: { dtype: 'I64', shape: [0, 4], bytes: someBytes(0) },
    d: { dtype: 'U8', shape: [5], bytes: someBytes(5) },
  },
  { format: 'pt' },
);
const headerEnd = valid.lastIndexOf('}') + 1;

/** Pieces that are put into headers. */
const PIECES = [
  '0',
  '-1',
  '9007199254740993',
  '1e400',
  '[',
  ']',
  '{',
  '}',
  '"',
  ',',
  ':',
  'null',
  '"F32"',
  '\\',
  '.5',
];

describe('loadTensors of a file that is wrong', () => {
  test('refuses each damaged header by a typed error, with nothing allocated or open', async () => {
    let state = seed();
    // xorshift: the same damage for the same seed.
    const random = (below: number): number => {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      return (state >>> 0) % below;
    };
    const header = valid.subarray(8, headerEnd);
    const data = valid.subarray(headerEnd);
    let refused = 0;
    const count = iterations(200, 5000);
    for (let n = 0; n < count; n += 1) {
      const at = random(header.length);
      const rest = header.subarray(at + random(4));
      const piece = Buffer.from(PIECES[random(PIECES.length)] ?? '');
      const damaged = [
        () => Buffer.concat([header.subarray(0, at), piece, rest]),
        () => header.with(at, random(256)),
        () => header.with(at, 0x30 + random(10)),
      ][random(3)]?.();
      const bytes = fileBytes(damaged ?? '', data);
      // The size that stands before it may be wrong, too.
      if (random(8) === 0) bytes[random(8)] = random(256);
      if (await refusal(folder.write('damaged', bytes), true)) refused += 1;
    }
    assert.ok(refused > count / 2, `only ${refused} were refused`);
  });

  test('refuses a file that was truncated, wherever', async () => {
    const every = iterations(Math.ceil(valid.length / 40), 1);
    for (let byteLength = 0; byteLength < valid.length; byteLength += every)
      await refusal(folder.write('truncated', valid.subarray(0, byteLength)));
    await refusal(folder.write('longer', Buffer.concat([valid, Buffer.alloc(1)])));
    assert.equal(await refusal(folder.write('whole', valid), true), '');
  });

  test('says which file, and passes on the error of the system for one that is not there', async () => {
    const path = join(folder.path, 'missing.safetensors');
    await assert.rejects(loadTensors(path), { code: 'ENOENT', path });
    assert.match(await refusal(folder.path), /it is not a regular file/);
    const pipe = join(folder.path, 'pipe');
    execFileSync('mkfifo', [pipe]);
    assert.match(await refusal(pipe), /it is not a regular file/);
  });

  test('a tensor that no array can be made of is refused before memory is allocated', async () => {
    const bytes = someBytes(1);
    const shape = new Array(65).fill(1);
    const path = folder.write('axes', tensorFile({ a: { dtype: 'U8', shape, bytes } }));
    assert.match(await refusal(path), /tensor "a" of .*axes: shape has 65 axes: at most 64/);
  });
});

describe('loadTensors of an index that is wrong', () => {
  const wrong: readonly (readonly [index: string, message: RegExp])[] = [
    ['', /the index is not JSON in UTF-8/],
    ['[]', /the index must be an object of JSON, not a list/],
    ['{}', /the weight_map of the index must be an object of JSON, not undefined/],
    ['{"weight_map":{"a":1}}', /the value of "a" must be a string, not 1/],
    [
      '{"weight_map":{"a":"../shard"}}',
      /tensor "a" of .*its file must be beside the index, and is called "\.\.\/shard"/,
    ],
    ['{"weight_map":{"a":"/etc/passwd"}}', /its file must be beside the index/],
    ['{"weight_map":{"a":".."}}', /its file must be beside the index/],
    ['{"weight_map":{"a":""}}', /its file must be beside the index/],
    [
      '{"weight_map":{"a":"shard","x":"shard"}}',
      /tensor "x" of .*the index says that it is in shard, which lacks it/,
    ],
    ['{"weight_map":{"a":"shard","b":"bad"}}', /bad: its header does not begin with/],
  ];
  for (const [index, message] of wrong)
    test(`refuses ${index}`, async () => {
      folder.write('shard', valid);
      folder.write('bad', fileBytes('x'));
      assert.match(await refusal(folder.write('model.safetensors.index.json', index)), message);
    });
});

describe('loadTensors', () => {
  const bytes = someBytes(300_000);
  const big = (): string =>
    folder.write(
      'big.safetensors',
      tensorFile({
        a: { dtype: 'U8', shape: [100_000], bytes: bytes.subarray(0, 100_000) },
        b: { dtype: 'U8', shape: [200_000], bytes: bytes.subarray(100_000) },
      }),
    );

  test('reports each read, and lets the event loop turn', async () => {
    const seen: number[] = [];
    let turns = 0;
    let isDone = false;
    const counting = (async () => {
      for (; !isDone; turns += 1) await turn();
    })();
    using tensors = await loadTensors(big(), {
      stagingBytes: 64 << 10,
      onProgress: ({ loadedBytes, totalBytes }) => {
        assert.equal(totalBytes, 300_000);
        seen.push(loadedBytes);
      },
    });
    isDone = true;
    await counting;
    // Two lanes, each with half of the staging memory.
    assert.equal(seen.length, Math.ceil(300_000 / (32 << 10)));
    assert.equal(seen.at(-1), 300_000);
    assert.deepEqual(
      seen,
      seen.toSorted((a, b) => a - b),
    );
    assert.ok(turns > 5, `only ${turns} turns`);
    assert.deepEqual(await tensors.get('b').copyToHost(), bytes.slice(100_000));
  });

  test('ends with the reason of its signal, before and within the reads, and leaves nothing', async () => {
    const path = big();
    const reason = new Error('enough');
    const before = allocations;
    await assert.rejects(loadTensors(path, { signal: AbortSignal.abort(reason) }), reason);
    assert.equal(allocations, before);
    const controller = new AbortController();
    let reads = 0;
    const loading = loadTensors(path, {
      stagingBytes: 16 << 10,
      signal: controller.signal,
      onProgress: () => {
        reads += 1;
        if (reads === 2) controller.abort(reason);
      },
    });
    await assert.rejects(loading, reason);
    assert.ok(reads < 10, `${reads} reads`);
    assert.deepEqual(Context.primary(0).resources.kinds, []);
    assert.deepEqual(openFiles(), []);
  });

  test('waits for each copy before it reads into the same memory again', async () => {
    // A device that is slow: it copies when it is asked whether it is done.
    const queued: (() => unknown)[] = [];
    const slow: Driver = {
      ...driver,
      cuMemcpyHtoDAsync_v2: (...args) => {
        queued.push(() => driver.cuMemcpyHtoDAsync_v2(...args));
        return 0 as CUresult;
      },
      cuStreamQuery: (stream) => {
        for (const copy of queued.splice(0)) copy();
        return driver.cuStreamQuery(stream);
      },
    };
    const path = big();
    selectDriver(slow);
    try {
      using tensors = await loadTensors(path, { stagingBytes: 16 << 10 });
      const found = tensors.get('b').copyToHostSync();
      assert.deepEqual(Buffer.compare(found as Uint8Array, bytes.subarray(100_000)), 0);
    } finally {
      selectDriver(driver);
    }
  });

  test('ends with what onProgress throws, and leaves nothing', async () => {
    const onProgress = (): never => {
      throw new Error('from onProgress');
    };
    await assert.rejects(loadTensors(big(), { onProgress }), /from onProgress/);
    assert.deepEqual(openFiles(), []);
  });

  for (const [name, status] of [
    ['cuMemCreate', 2],
    ['cuMemMap', 1],
    ['cuMemHostRegister_v2', 2],
    ['cuMemcpyHtoDAsync_v2', 1],
    ['cuStreamCreateWithPriority', 2],
  ] as const)
    test(`leaves nothing if ${name} fails`, async () => {
      const path = big();
      const failingDriver = failing(driver, name, 1, status);
      selectDriver(failingDriver);
      try {
        await assert.rejects(loadTensors(path), { name: 'CudaError', call: name });
        assert.deepEqual(openFiles(), []);
      } finally {
        selectDriver(driver);
      }
    });

  test('refuses options that are wrong before it opens the file', async () => {
    const path = join(folder.path, 'missing');
    const cases: readonly (readonly [options: object, message: RegExp])[] = [
      [{ name: ['a'] }, /unknown option 'name' \(did you mean 'names'\?\)/],
      [{ names: 'a' }, /names must be an array of strings/],
      [{ stagingBytes: 8191 }, /stagingBytes must be an integer of at least 8192, not 8191/],
      [{ signal: {} }, /signal must be an AbortSignal/],
      [{ onProgress: 1 }, /onProgress must be a function, not 1/],
      [{ memory: {} }, /memory must be a memory resource/],
      [{ memory: {}, device: 0 }, /give either a memory resource or a place, not both/],
    ];
    for (const [options, message] of cases)
      await assert.rejects(loadTensors(path, options), message);
    await assert.rejects(loadTensors(7 as never), /path must be a string/);
  });
});
