/** What the companion makes of Python's values and of the tensors of its libraries: right, or refused. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Context, type DeviceArray } from '../../src/index.ts';
import { leases } from '../../src/ipc/index.ts';
import { companionPath } from '../../src/python/companion.ts';
import { until } from '../support/iterations.ts';
import { startProcess } from '../support/program.ts';
import { noPython, PythonWorker } from '../support/python.ts';

const program = new URL('./fixtures/python-values.py', import.meta.url);
const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const options = { skip: noPython, timeout: 120_000 };

/** The test cases of python-values.py, and what they show. */
const cases: readonly (readonly [name: string, claim: string])[] = [
  ['Copies', 'what owns something is neither copied nor pickled; errors are'],
  [
    'Capsules',
    'a tensor may be refused, or outlive the interpreter; no consumer gets one that it mistakes',
  ],
  ['Described', 'tensors of other libraries are understood or refused'],
  ['Dtypes', 'shapes, dtypes, devices and streams are what they seem, or are refused'],
  ['Host', 'copies from the host take every layout, and no items of another type'],
  ['Names', 'names are those of Node, and older ones mean the same'],
  ['Numpy', 'NumPy gets copies, and under the emulated driver the memory itself'],
  ['Values', 'values are sent as what they contain, and as they were when they were sent'],
  ['Views', 'an index makes a view, as in NumPy, which shares the memory and keeps it'],
];

describe('values and tensors of Python', options, () => {
  for (const [name, claim] of cases)
    test(claim, options, async () => {
      const child = startProcess('python3', ['-B', fileURLToPath(program), name], {
        stdio: ['ignore', 'ignore', 'pipe'],
        timeout: options.timeout,
        env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
      });
      let said = '';
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        said += text;
      });
      const [code, signal] = await once(child, 'close');
      assert.equal(code ?? signal, 0, said.slice(-8000));
      assert.match(said, /^Ran \d+ tests? in/m);
    });

  /** What arrives for an expression of python-values.py. */
  async function evaluated<T>(worker: PythonWorker, source: string): Promise<T> {
    return worker.ask<T>('evaluate', { source });
  }

  test('tensors arrive in Node with their dtype, shape, strides and items', options, async () => {
    await using worker = new PythonWorker('serve', {}, program);
    const bytes = new Uint8Array(96).map((_, at) => at);
    const base = "filled((4, 6), 'float32', bytes(range(96)))";
    const given = (fields: string): string => `Foreign(${base}, ${fields})`;
    const arrays: readonly (readonly [
      source: string,
      dtype: string,
      shape: readonly number[],
      strides: readonly number[],
    ])[] = [
      [given("shape=(8,), strides=None, typestr='|V12'"), 'V12', [8], [12]],
      [given("shape=(48,), strides=None, typestr='<V2'"), 'bfloat16', [48], [2]],
      [
        given('shape=(Index(4), Index(6)), strides=(Index(24), Index(4))'),
        'float32',
        [4, 6],
        [24, 4],
      ],
      [given('shape=(1, 24), strides=(99_999, 4)'), 'float32', [1, 24], [99_999, 4]],
      [`Dlpack(${base})`, 'float32', [4, 6], [24, 4]],
      [`Dlpack(${base}, versions=False)`, 'float32', [4, 6], [24, 4]],
      [`torch_tensor(${base}, 'mine')`, 'float32', [4, 6], [24, 4]],
    ];
    for (const [source, dtype, shape, strides] of arrays) {
      const array = await evaluated<DeviceArray>(worker, source);
      assert.equal(array.dtype?.name, dtype, String(array));
      assert.deepEqual([array.shape, array.strides], [shape, strides], source);
      assert.equal(array.readOnly, false);
      const items = await array.copyToHost();
      assert.deepEqual(new Uint8Array(items.buffer, items.byteOffset, items.byteLength), bytes);
      array.close();
    }
  });

  test('read-only views arrive read-only', options, async () => {
    await using worker = new PythonWorker('serve', {}, program);
    for (const source of [
      "read_only(filled(4, 'uint8', b'abcd'))",
      "Dlpack((lambda of: cuffi.DeviceArray(of._memory, of.ptr, (4,), of._dtype, (1,), True))(filled(4, 'uint8', b'abcd')))",
    ]) {
      const array = await evaluated<DeviceArray>(worker, source);
      assert.equal(array.readOnly, true, String(array));
      assert.deepEqual(await array.copyToHost(), Uint8Array.from(Buffer.from('abcd')));
      assert.throws(() => array.fill(1), /read only/);
      array.close();
    }
    // What comes back is what was sent.
    await evaluated(worker, "kept.append(filled(4, 'uint8', b'abcd'))");
    const writable = await evaluated<DeviceArray>(worker, 'kept[-1]');
    const fixed = await evaluated<DeviceArray>(worker, 'read_only(kept[-1])');
    assert.deepEqual([writable.readOnly, fixed.readOnly], [false, true]);
    writable.fill(7);
    assert.deepEqual(await fixed.copyToHost(), new Uint8Array(4).fill(7));
    for (const array of [writable, fixed]) array.close();
    await Context.primary().flush();
    await until(() => leases.stats().leases.length === 0);
  });

  test('values arrive in Node as what they are', options, async () => {
    await using worker = new PythonWorker('serve', {}, program);
    const values: readonly (readonly [source: string, value: unknown])[] = [
      ['Color.RED', 'red'],
      ["{Color.RED: 1, Named('a'): Doubled(2)}", { red: 1, a: 2 }],
      [
        'datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc)',
        new Date(253_402_300_799_999),
      ],
      ['array.array("H", [15360]) if np is None else np.array([1], "f2")', Uint16Array.of(0x3c00)],
    ];
    for (const [source, value] of values)
      assert.deepEqual(await evaluated(worker, source), value, source);
    assert.match(
      await evaluated(worker, "memoryview(bytes(6)).cast('B', (2, 3))").then(String, String),
      /ValueError: an array of shape \[2, 3\] would arrive without its shape/,
    );
  });
});
