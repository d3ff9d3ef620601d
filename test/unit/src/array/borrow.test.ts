import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CU_STREAM_LEGACY, CU_STREAM_PER_THREAD } from '../../../../ffi/constants.ts';
import {
  Context,
  cudaArrayInterface,
  type DeviceArray,
  deviceArray,
  dlpack,
  fromCudaArrayInterface,
  fromDLPack,
  Stream,
} from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { emulate } from '../emulate.ts';

/** A stream as the driver sees it: by its handle, and a default one by the current context too. */
type Told = readonly [handle: number, context?: number];

const toldOf = (handle: unknown, context: number): Told =>
  (handle as number) <= CU_STREAM_PER_THREAD ? [handle as number, context] : [handle as number];

function setUp() {
  const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
  const [first, second] = [Context.primary(0), Context.primary(1)];
  /** The stream that was made to wait, and the one it waits for; undefined if none waits. */
  const waited = (use: () => unknown): readonly [waits: Told, for_: Told] | undefined => {
    recorder.calls.length = 0;
    use();
    const [wait, ...others] = recorder.of('cuStreamWaitEvent');
    assert.deepEqual(others, []);
    if (!wait) return undefined;
    const record = recorder.of('cuEventRecord').find(({ args }) => args[0] === wait.args[1]);
    assert.ok(record);
    return [toldOf(wait.args[0], wait.context), toldOf(record.args[1], record.context)];
  };
  return { recorder, first, second, waited };
}

describe('waitForProducer', () => {
  test('a default stream waits for the default stream of another context', () => {
    const { first, second, waited } = setUp();
    using array = deviceArray(8, undefined, { context: first });
    for (const [make, handle] of [
      [Stream.legacyDefault, CU_STREAM_LEGACY],
      [Stream.perThreadDefault, CU_STREAM_PER_THREAD],
    ] as const) {
      const [mine, theirs] = [make({ context: first }), make({ context: second })];
      assert.deepEqual(
        waited(() => dlpack(array.withStream(mine), { stream: theirs })),
        [
          [handle, second.handle],
          [handle, first.handle],
        ],
      );
      assert.equal(
        waited(() => dlpack(array.withStream(mine), { stream: mine })),
        undefined,
      );
    }
  });
});

describe('dlpack', () => {
  test('the consumer’s stream waits for the array’s stream, unless it is null', () => {
    const { first, waited } = setUp();
    using mine = Stream.create({ nonBlocking: true });
    using theirs = Stream.create({ nonBlocking: true });
    using plain = deviceArray(8);
    const array = plain.withStream(mine);
    const legacy: Told = [CU_STREAM_LEGACY, first.handle];
    assert.deepEqual(
      waited(() => dlpack(array, { stream: theirs })),
      [[theirs.handle], [mine.handle]],
    );
    assert.deepEqual(
      waited(() => dlpack(array)),
      [legacy, [mine.handle]],
    );
    assert.deepEqual(
      waited(() => dlpack(plain, { stream: theirs })),
      [[theirs.handle], legacy],
    );
    for (const use of [
      () => dlpack(plain),
      () => dlpack(array, { stream: mine }),
      () => dlpack(array, { stream: null }),
      () => fromDLPack(dlpack(array, { stream: null }), { stream: theirs }).close(),
    ])
      assert.equal(waited(use), undefined, `${use}`);
  });
});

describe('cudaArrayInterface', () => {
  test('the dictionary has the given stream, or the array’s, or the default stream', () => {
    const { recorder, waited } = setUp();
    using mine = Stream.create({ nonBlocking: true });
    using theirs = Stream.create({ nonBlocking: true });
    using plain = deviceArray(8);
    const array = plain.withStream(mine);
    recorder.calls.length = 0;
    assert.deepEqual(
      [
        cudaArrayInterface(array).stream,
        cudaArrayInterface(array, { stream: theirs }).stream,
        cudaArrayInterface(array, { stream: null }).stream,
        cudaArrayInterface(plain).stream,
      ],
      [mine.handle, theirs.handle, null, CU_STREAM_LEGACY],
    );
    assert.deepEqual(recorder.calls, [], 'the consumer waits, not the producer');
    const { context } = plain;
    const taken = (stream: number | null, options: { readonly stream?: Stream }) =>
      waited(() => {
        const made: DeviceArray = fromCudaArrayInterface(
          { ...cudaArrayInterface(plain), stream },
          options,
        );
        assert.equal(made.stream, options.stream);
      });
    const named = (handle: number): Told => [handle];
    const byDefault = (handle: number): Told => [handle, context.handle];
    assert.deepEqual(taken(mine.handle, { stream: theirs }), [
      named(theirs.handle),
      named(mine.handle),
    ]);
    assert.deepEqual(taken(mine.handle, {}), [byDefault(CU_STREAM_LEGACY), named(mine.handle)]);
    assert.deepEqual(taken(1, { stream: theirs }), [
      named(theirs.handle),
      byDefault(CU_STREAM_LEGACY),
    ]);
    assert.deepEqual(taken(2, { stream: theirs }), [
      named(theirs.handle),
      byDefault(CU_STREAM_PER_THREAD),
    ]);
    assert.equal(taken(null, { stream: theirs }), undefined);
    assert.equal(taken(1, {}), undefined);
  });
});

describe('fromCudaArrayInterface', () => {
  test('a default stream is that of the memory’s device, whatever context is given', () => {
    const { first, second, waited } = setUp();
    using array = deviceArray(8, undefined, { device: 1 });
    for (const [stream, handle] of [
      [1, CU_STREAM_LEGACY],
      [2, CU_STREAM_PER_THREAD],
    ] as const) {
      const described = { ...JSON.parse(JSON.stringify(cudaArrayInterface(array))), stream };
      using consumer = Stream.create({ nonBlocking: true, context: first });
      const waits = waited(() => {
        const taken = fromCudaArrayInterface(described, { context: first, stream: consumer });
        assert.equal(taken.context, first);
      });
      assert.deepEqual(waits, [[consumer.handle], [handle, second.handle]]);
    }
  });

  test('a default stream of another device is waited for', () => {
    const { first, second, waited } = setUp();
    using array = deviceArray(8, undefined, { device: 1 });
    const ofFirst = Stream.legacyDefault({ context: first });
    for (const describeIt of [
      () => cudaArrayInterface(array, { stream: ofFirst }),
      () => cudaArrayInterface(array.withStream(ofFirst)),
    ])
      assert.deepEqual(
        waited(() => assert.equal(describeIt().stream, CU_STREAM_LEGACY)),
        [
          [CU_STREAM_LEGACY, second.handle],
          [CU_STREAM_LEGACY, first.handle],
        ],
      );
  });
});
