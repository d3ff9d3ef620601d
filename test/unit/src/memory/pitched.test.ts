import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST } from '../../../../ffi/constants.ts';
import { recordCalls } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import { addressOf } from '../../../../ffi/native.ts';
import {
  allocatePitched,
  Context,
  copyPitched,
  copyPitchedSync,
  DeviceBuffer,
  type Extent,
  fillPitched,
  type PitchedMemory,
  queuePitchedCopy,
} from '../../../../src/index.ts';
import {
  checkExtent,
  checkRegion,
  flatten,
  type Region,
  splitBox,
} from '../../../../src/memory/pitched.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { trials } from '../../../support/iterations.ts';
import { emulate } from '../emulate.ts';

interface Layout {
  readonly byteOffset: number;
  readonly rowPitch: number;
  readonly slicePitch: number;
}

type Box = Required<Extent>;

const boxes = fc.record({
  width: fc.integer({ min: 1, max: 20 }),
  height: fc.integer({ min: 1, max: 5 }),
  depth: fc.integer({ min: 1, max: 4 }),
});

/** A layout of the rows of a box, often without gaps. */
const layoutOf = ({ width, height }: Box): fc.Arbitrary<Layout> =>
  fc
    .record({
      byteOffset: fc.integer({ min: 0, max: 9 }),
      gap: fc.constantFrom(0, 0, 1, 7),
      rows: fc.constantFrom(0, 0, 1, 2),
    })
    .map(({ byteOffset, gap, rows }) => ({
      byteOffset,
      rowPitch: width + gap,
      slicePitch: (width + gap) * (height + rows),
    }));

const twoSides = boxes.chain((box) =>
  fc.record({ box: fc.constant(box), to: layoutOf(box), from: layoutOf(box) }),
);

const spanOf = ({ width, height, depth }: Box, at: Layout): number =>
  at.byteOffset + (depth - 1) * at.slicePitch + (height - 1) * at.rowPitch + width;

/** Every byte of a box, by its offset in each layout. */
function* bytesOf({ width, height, depth }: Box, ...layouts: Layout[]): Generator<number[]> {
  for (let z = 0; z < depth; z += 1)
    for (let y = 0; y < height; y += 1)
      for (let x = 0; x < width; x += 1)
        yield layouts.map((at) => at.byteOffset + z * at.slicePitch + y * at.rowPitch + x);
}

const counting = (byteLength: number): Uint8Array =>
  new Uint8Array(byteLength).map((_, index) => index + 1);

/** The expected contents of zeroed memory after a copy. */
function modelled(box: Box, to: Layout, from: Layout): Uint8Array {
  const source = counting(spanOf(box, from));
  const target = new Uint8Array(spanOf(box, to) + 3);
  for (const [t = 0, s = 0] of bytesOf(box, to, from)) target[t] = source[s] as number;
  return target;
}

describe('copyPitched and fillPitched', () => {
  test('copies with any pitches, between any memories, move each byte to its place and no other', async () => {
    emulate();
    await fc.assert(
      fc.asyncProperty(twoSides, async ({ box, to, from }) => {
        const expected = modelled(box, to, from);
        const host = counting(spanOf(box, from));
        const at = (memory: PitchedMemory['memory'], layout: Layout): PitchedMemory => ({
          memory,
          ...layout,
        });
        using up = DeviceBuffer.allocate(host.length);
        up.copyFromSync(host);
        using target = DeviceBuffer.allocate(expected.length);
        const onDevice = async (copy: () => unknown): Promise<void> => {
          target.fill(0);
          await copy();
          assert.deepEqual(target.copyToHostSync(), expected);
        };
        await onDevice(() => copyPitched(at(target, to), at(host, from), box));
        await onDevice(() => copyPitchedSync(at(target, to), at(host, from), box));
        await onDevice(() => queuePitchedCopy(at(target, to), at(up, from), box));
        const back = new Uint8Array(expected.length);
        await copyPitched(at(back, to), at(up, from), box);
        assert.deepEqual(back, expected);
      }),
      trials(60, 1000),
    );
  });

  test('fills with any pitch set each element and no other byte', async () => {
    emulate();
    const fills = boxes.chain((box) =>
      fc.record({ box: fc.constant(box), to: layoutOf(box), element: fc.constantFrom(1, 2, 4) }),
    );
    await fc.assert(
      fc.asyncProperty(fills, async ({ box, to, element }) => {
        const scaled = { ...box, width: box.width * element };
        const layout = {
          byteOffset: to.byteOffset * element,
          rowPitch: to.rowPitch * element,
          slicePitch: to.slicePitch * element,
        };
        const bytes = [0xa1, 0xb2, 0xc3, 0xd4].slice(0, element);
        const expected = new Uint8Array(spanOf(scaled, layout) + element);
        for (const [at = 0] of bytesOf(scaled, layout))
          expected[at] = bytes[at % element] as number;
        using buffer = DeviceBuffer.allocate(expected.length);
        buffer.fill(0);
        const value = Buffer.from(bytes).readUIntLE(0, element);
        fillPitched({ memory: buffer, ...layout }, value, scaled, {
          elementByteLength: element as 1 | 2 | 4,
        });
        assert.deepEqual(buffer.copyToHostSync(), expected);
      }),
      trials(60, 1000),
    );
  });

  test('a copy of rows passes the memory type and context of both sides to the driver', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    using near = DeviceBuffer.allocate(4096, { context: first });
    using far = DeviceBuffer.allocate(4096, { context: second });
    const host = new Uint8Array(4096);
    const extent = { width: 10, height: 3, depth: 2 };
    const [to, from] = [
      { byteOffset: 5, rowPitch: 12, slicePitch: 48 },
      { byteOffset: 7, rowPitch: 16, slicePitch: 80 },
    ];
    const box = { WidthInBytes: 10, Height: 3, Depth: 2 };
    const pitches = { dstPitch: 12, dstHeight: 4, srcPitch: 16, srcHeight: 5 };
    const told = (name: FunctionName): Record<string, number> => {
      const [call] = recorder.of(name).slice(-1);
      return call?.args[0] as Record<string, number>;
    };
    const holds = (actual: object, expected: object): void =>
      assert.deepEqual({ ...actual, ...expected }, actual);
    queuePitchedCopy({ memory: far, ...to }, { memory: near, ...from }, extent);
    holds(told('cuMemcpy3DPeerAsync'), {
      ...box,
      ...pitches,
      dstMemoryType: CU_MEMORYTYPE_DEVICE,
      dstDevice: far.address + 5,
      dstContext: second.handle,
      srcMemoryType: CU_MEMORYTYPE_DEVICE,
      srcDevice: near.address + 7,
      srcContext: first.handle,
    });
    copyPitchedSync({ memory: host, ...to }, { memory: near, ...from }, extent);
    holds(told('cuMemcpy3DAsync_v2'), {
      ...box,
      ...pitches,
      dstMemoryType: CU_MEMORYTYPE_HOST,
      dstHost: addressOf(host) + 5,
      srcMemoryType: CU_MEMORYTYPE_DEVICE,
      srcDevice: near.address + 7,
    });
    copyPitchedSync({ memory: near, ...to }, { memory: host, ...from }, extent);
    holds(told('cuMemcpy3DAsync_v2'), {
      ...box,
      ...pitches,
      dstMemoryType: CU_MEMORYTYPE_DEVICE,
      dstDevice: near.address + 5,
      srcMemoryType: CU_MEMORYTYPE_HOST,
      srcHost: addressOf(host) + 7,
    });
  });

  test('allocatePitched() and fillPitched() use the given element size', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    for (const [options, element, context] of [
      [{}, 4, first],
      [{ elementByteLength: 8 }, 8, first],
      [{ elementByteLength: 16, device: 1 }, 16, second],
      [{ elementByteLength: 4, context: second }, 4, second],
    ] as const) {
      recorder.calls.length = 0;
      const { buffer, rowPitch } = allocatePitched(100, 10, options);
      assert.deepEqual(
        recorder.of('cuMemAllocPitch_v2').map((call) => [...call.args.slice(2), call.context]),
        [[100, 10, element, context.handle]],
      );
      assert.deepEqual([buffer.context, buffer.byteLength], [context, 10 * rowPitch]);
      buffer.close();
    }
    for (const elementByteLength of [0, 1, 2, 5, 32, '4', null])
      assert.throws(
        () => allocatePitched(100, 10, { elementByteLength: elementByteLength as never }),
        {
          name: 'RangeError',
          message: `elementByteLength must be 4, 8 or 16, not ${elementByteLength}`,
        },
      );
    const { buffer, rowPitch } = allocatePitched(8, 3);
    const { address } = buffer;
    recorder.calls.length = 0;
    for (const elementByteLength of [1, 2, 4] as const)
      fillPitched({ memory: buffer, rowPitch }, 9, { width: 8, height: 3 }, { elementByteLength });
    const fills = recorder.calls.filter(({ name }) => name.startsWith('cuMemsetD2D'));
    assert.deepEqual(
      fills.map(({ name, args }) => [name, ...args.slice(0, 5)]),
      [
        ['cuMemsetD2D8Async', address, rowPitch, 9, 8, 3],
        ['cuMemsetD2D16Async', address, rowPitch, 9, 4, 3],
        ['cuMemsetD2D32Async', address, rowPitch, 9, 2, 3],
      ],
    );
    buffer.close();
  });

  test('pitches and rows beyond the limits of the driver are split', () => {
    const region = (rowPitch: number): Region => ({
      memory: new Uint8Array(0),
      byteOffset: 0,
      byteLength: 2 ** 40,
      rowPitch,
      slicePitch: rowPitch * 3,
      splitOffsets: [],
    });
    const wide = { width: 100, height: 3, depth: 2 };
    const rows = [...splitBox(wide, [region(2 ** 31), region(100)])];
    assert.deepEqual(
      rows.map(({ offsets }) => offsets),
      [0, 1, 2, 3, 4, 5].map((row) => [row * 2 ** 31, row * 100]),
    );
    const long = [...splitBox({ width: 2 ** 31 + 5, height: 1, depth: 1 }, [region(2 ** 31 + 5)])];
    assert.deepEqual(
      long.map(({ box }) => box.width),
      [2 ** 30, 2 ** 30, 5],
    );
  });

  test('regions beyond their memory are refused before any driver call', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(1000);
    const host = new Uint8Array(1000);
    const box = { width: 10, height: 4, depth: 3 };
    const fits = { memory: host, rowPitch: 20, slicePitch: 100, byteOffset: 730 };
    assert.equal(checkRegion(fits, 'source', checkExtent(box, 'copy'), 'copy').byteLength, 270);
    const recorder = recordCalls();
    const refused = async (
      source: object,
      extent: object,
      name: string,
      message: RegExp,
    ): Promise<void> => {
      const given = { memory: host, ...source } as PitchedMemory;
      const wrong = { name, message };
      await assert.rejects(copyPitched({ memory: buffer }, given, extent as Extent), wrong);
      assert.throws(() => copyPitchedSync({ memory: buffer }, given, extent as Extent), wrong);
    };
    await refused(
      { ...fits, byteOffset: 731 },
      box,
      'RangeError',
      /reach byte 1001: source.memory has 1000/,
    );
    await refused(
      { rowPitch: 9 },
      box,
      'RangeError',
      /source.rowPitch must be an integer of at least 10/,
    );
    await refused(
      { slicePitch: 39 },
      box,
      'RangeError',
      /source.slicePitch must be .* at least 40/,
    );
    await refused(
      { slicePitch: 45 },
      box,
      'RangeError',
      /slicePitch is 45, not a multiple of the 10/,
    );
    await refused({ byteOffset: -1 }, box, 'RangeError', /source.byteOffset/);
    await refused({ rowPitch: 2 ** 52 }, box, 'RangeError', /slicePitch|reach byte/);
    await refused(
      {},
      { width: 2 ** 40, height: 2 ** 40, depth: 2 ** 40 },
      'RangeError',
      /memory has/,
    );
    await refused({}, { width: 1001 }, 'RangeError', /memory has 1000/);
    await refused({}, { width: 1.5 }, 'RangeError', /width/);
    await refused({}, {}, 'TypeError', /width must be a number, not undefined/);
    await refused({}, { width: 1, heigth: 2 }, 'TypeError', /unknown option 'heigth'/);
    await refused(
      { rowpitch: 2 },
      box,
      'TypeError',
      /copyPitched(Sync)? source: unknown option 'rowpitch'/,
    );
    await refused({ memory: 'text' }, box, 'TypeError', /source.memory must be/);
    const onHost = { memory: host };
    await assert.rejects(copyPitched(onHost, onHost, box), /both memories are on the host/);
    assert.throws(() => queuePitchedCopy({ memory: buffer }, onHost, box), {
      name: 'TypeError',
      message: /source.memory must be a DeviceBuffer/,
    });
    assert.throws(() => fillPitched(onHost, 1, box), /target.memory must be a DeviceBuffer/);
    const device = { memory: buffer };
    await assert.rejects(
      copyPitched(device, onHost, box, { signal: 1 as never }),
      /^TypeError: signal must be an AbortSignal, not 1$/,
    );
    assert.throws(
      () => fillPitched(device, 256, box),
      /^RangeError: value must be an integer from 0 to 255, not 256$/,
    );
    for (const place of [{ byteOffset: 1 }, { rowPitch: 11 }, {}])
      assert.throws(
        () =>
          fillPitched(
            { ...device, ...place },
            1,
            { width: 'rowPitch' in place ? 10 : 9, height: 2 },
            {
              elementByteLength: 2,
            },
          ),
        /not whole, aligned elements of 2 bytes/,
      );
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('an empty extent copies and sets nothing', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    const [device, host] = [{ memory: buffer }, { memory: new Uint8Array(16) }];
    const recorder = recordCalls();
    for (const nothing of [
      { width: 0, height: 9, depth: 9 },
      { width: 100, height: 0 },
      { width: 100, depth: 0 },
    ]) {
      await copyPitched(device, host, nothing);
      copyPitchedSync(host, device, nothing);
      queuePitchedCopy(device, device, nothing);
      fillPitched(device, 1, nothing);
    }
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    buffer.close();
    await assert.rejects(copyPitched(device, host, { width: 0 }), { name: 'ClosedError' });
    await Context.primary().flush();
  });
});

describe('splitBox', () => {
  test('the parts cover each byte once, cross no split offset, and stay below the maximum', () => {
    const cut = boxes.chain((box) =>
      fc.record({
        box: fc.constant(box),
        to: layoutOf(box),
        from: layoutOf(box),
        cuts: fc.uniqueArray(fc.integer({ min: 1, max: 300 }), { maxLength: 5 }),
        most: fc.constantFrom(1, 7, 50, Infinity),
      }),
    );
    fc.assert(
      fc.property(cut, ({ box, to, from, cuts, most }) => {
        const sorted = cuts.sort((a, b) => a - b);
        const region = (layout: Layout, at: readonly number[]): Region => ({
          memory: new Uint8Array(0),
          byteLength: spanOf(box, layout) - layout.byteOffset,
          ...layout,
          splitOffsets: at,
        });
        const regions = [
          region({ ...to, byteOffset: 0 }, sorted),
          region({ ...from, byteOffset: 0 }, []),
        ];
        const flat = flatten(box, regions);
        const moved = new Map<number, number>();
        for (const part of splitBox(flat, regions, most)) {
          assert.ok(part.box.width * part.box.height * part.box.depth <= most);
          const [t = 0, s = 0] = part.offsets;
          const layouts = [t, s].map((byteOffset, side) => ({
            ...(regions[side] as Region),
            byteOffset,
          }));
          const end = spanOf(part.box, layouts[0] as Layout);
          assert.ok(!sorted.some((border) => t < border && border < end), 'goes over a cut');
          for (const [target = 0, source = 0] of bytesOf(part.box, ...(layouts as Layout[]))) {
            assert.ok(!moved.has(target));
            moved.set(target, source);
          }
        }
        const zero = (layout: Layout): Layout => ({ ...layout, byteOffset: 0 });
        const wanted = [...bytesOf(box, zero(to), zero(from))] as [number, number][];
        assert.deepEqual(moved, new Map(wanted.sort(([a], [b]) => a - b)));
      }),
      trials(300, 5000),
    );
  });

  test('a box that one call can process is not split: the largest pitch and row, and rows that end at a split offset', () => {
    const region = (
      rowPitch: number,
      slicePitch: number,
      splitOffsets: readonly number[] = [],
    ): Region => ({
      memory: new Uint8Array(0),
      byteOffset: 0,
      byteLength: 2 ** 40,
      rowPitch,
      slicePitch,
      splitOffsets,
    });
    const MAX_PITCH = 2 ** 31 - 1;
    const box = { width: 100, height: 3, depth: 2 };
    const whole = [...splitBox(box, [region(MAX_PITCH, MAX_PITCH * 3), region(100, 300)])];
    assert.deepEqual(whole, [{ box, offsets: [0, 0] }]);
    const longest = { width: 2 ** 30, height: 2, depth: 2 };
    const [row, ...others] = splitBox(longest, [region(2 ** 30, 2 ** 32)]);
    assert.deepEqual([row, others], [{ box: longest, offsets: [0] }, []]);
    // Three rows, with a split offset directly after the second.
    const flat = { width: 100, height: 3, depth: 1 };
    const atCut = [...splitBox(flat, [region(128, 384, [228]), region(100, 300)])];
    assert.deepEqual(
      atCut.map((part) => [part.box.width, part.box.height, ...part.offsets]),
      [
        [100, 2, 0, 0],
        [100, 1, 256, 200],
      ],
    );
    const withGaps = [...splitBox(flat, [region(MAX_PITCH, MAX_PITCH * 3, [5 * MAX_PITCH])])];
    assert.deepEqual(
      withGaps.map((part) => part.box.height),
      [3],
    );
  });
});
