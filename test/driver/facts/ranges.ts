/** Ranges of memory: registered, mapped side by side, overlapping, fresh, with wide rows. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Argument, struct } from '../../support/calls.ts';
import { Asked, MANY, question, questions } from './asked.ts';
import type { FactGroup } from './facts.ts';
import { access, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

type Call = [FunctionName, ...Argument[]];

const PAGE = 4096;
const DISABLE_TIMING = 2;
const READ_ONLY = 8;

/** Times between events: of two contexts, backwards, recorded again. */
export const elapsedFacts: FactGroup = async (note) => {
  await question(note, 'elapsed time', async (named) => {
    await using asked = await Asked.start(named);
    const make = async () => {
      const stream = await asked.stream();
      const event = await asked.made('cuEventCreate', 'OUT0', 0);
      await asked.made('cuEventRecord', event, stream);
      await asked.made('cuStreamSynchronize', stream);
      return { event, stream };
    };
    const first = await make();
    await asked.made('cuMemsetD8Async', await asked.memory(64 * MIB), 1, 64 * MIB, first.stream);
    const second = await make();
    const elapsed = async (what: string, from: number, to: number): Promise<void> => {
      const answer = await asked.ask(what, 'cuEventElapsedTime', 'OUT0', from, to);
      const bits = Buffer.alloc(4);
      bits.writeInt32LE(answer?.int0 ?? 0);
      if (answer?.status === 0) named(`${what} is below zero`, bits.readFloatLE() < 0 ? 1 : 0);
    };
    await elapsed('of two streams', first.event, second.event);
    await elapsed('backwards', second.event, first.event);
    await elapsed('of an event and itself', first.event, first.event);
    await asked.hold(second.stream);
    await asked.made('cuEventRecord', second.event, second.stream);
    await elapsed('to an event that is recorded again', first.event, second.event);
    asked.release();
    await asked.made('cuStreamSynchronize', second.stream);
    await asked.made('cuCtxCreate_v2', 'OUT0', 0, 0);
    const third = await make();
    await elapsed('of two contexts', first.event, third.event);
    await elapsed('of two contexts, backwards', third.event, first.event);
    const [stream, event] = [first.stream, third.event];
    await asked.ask(
      'an event recorded in a stream of another context',
      'cuEventRecord',
      event,
      stream,
    );
    await asked.ask(
      'an event of another context waited for',
      'cuStreamWaitEvent',
      stream,
      event,
      0,
    );
    const untimed = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
    await elapsed('to an untimed event', first.event, untimed);
  });
};

/** Registrations that share pages, overlap, or are of memory that may not be written. */
export const registrationFacts: FactGroup = async (note) => {
  const two: Readonly<Record<string, readonly [[number, number], [number, number]]>> = {
    'two ranges of a page': [
      [0, 100],
      [200, 100],
    ],
    'a range twice': [
      [0, PAGE],
      [0, PAGE],
    ],
    'a range within another': [
      [0, 2 * PAGE],
      [PAGE, PAGE],
    ],
    'a range around another': [
      [PAGE, PAGE],
      [0, 3 * PAGE],
    ],
    'a range over the end of another': [
      [0, 2 * PAGE],
      [PAGE, 2 * PAGE],
    ],
    'ranges side by side': [
      [0, PAGE],
      [PAGE, PAGE],
    ],
    'ranges side by side within a page': [
      [0, PAGE + 100],
      [PAGE + 100, PAGE],
    ],
  };
  await questions(
    note,
    'registering',
    Object.keys(two),
    async (asked, what) => {
      const memory = await asked.map(4 * PAGE);
      const [one, other] = two[what] as (typeof two)[string];
      await asked.ask(`${what}, the first`, 'cuMemHostRegister_v2', memory + one[0], one[1], 3);
      await asked.ask(
        `${what}, the second`,
        'cuMemHostRegister_v2',
        memory + other[0],
        other[1],
        3,
      );
      const device = 'cuMemHostGetDevicePointer_v2';
      await asked.ask(`${what}, the second’s pointer`, device, 'OUT0', memory + other[0], 0);
      await asked.ask(`${what}, the first undone`, 'cuMemHostUnregister', memory + one[0]);
      await asked.ask(
        `${what}, the second’s flags`,
        'cuMemHostGetFlags',
        'OUT0',
        memory + other[0],
      );
      await asked.ask(`${what}, the second undone`, 'cuMemHostUnregister', memory + other[0]);
    },
    MANY,
  );
  const folder = mkdtempSync(join(tmpdir(), 'cuffi-registered-'));
  try {
    const kinds = {
      'memory that may only be read': { isReadOnly: true },
      'a file': { file: join(folder, 'file') },
      'a file that may only be read': { isReadOnly: true, file: join(folder, 'read-only') },
    };
    for (const [kind, options] of Object.entries(kinds))
      for (const flags of [0, 3, READ_ONLY, 3 | READ_ONLY])
        await question(note, `registering ${kind}, flags ${flags}`, async (named) => {
          await using asked = await Asked.start(named);
          const memory = await asked.map(2 * PAGE, options);
          const answer = await asked.ask(
            'answers',
            'cuMemHostRegister_v2',
            memory,
            2 * PAGE,
            flags,
          );
          if (answer?.status !== 0) return;
          const on = await asked.memory(PAGE);
          await asked.ask('copied from', 'cuMemcpyHtoD_v2', on, memory, PAGE);
          await asked.ask('copied to', 'cuMemcpyDtoH_v2', memory, on, PAGE);
          await asked.ask('undone', 'cuMemHostUnregister', memory);
        });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  await question(note, 'a registration', async (named) => {
    await using asked = await Asked.start(named);
    const memory = await asked.map(4 * PAGE);
    await asked.made('cuMemHostRegister_v2', memory, 4 * PAGE, 3);
    await asked.ask('undone by an interior pointer', 'cuMemHostUnregister', memory + PAGE);
    await asked.ask('undone', 'cuMemHostUnregister', memory);
    await asked.ask('undone twice', 'cuMemHostUnregister', memory);
    await asked.ask('of no bytes', 'cuMemHostRegister_v2', memory, 0, 3);
    await asked.ask('of memory that is not there', 'cuMemHostRegister_v2', PAGE, PAGE, 3);
  });
};

/** Copies to the host that go over the border of two mappings. */
export const borderFacts: FactGroup = async (note) => {
  const sizes = [64, 65, 4096, 65_537];
  for (const neighbour of ['another mapping', 'a mapping without access', 'nothing'])
    await questions(
      note,
      `a copy over the border to ${neighbour}`,
      ['to the host', 'to the host, asynchronous', 'to pinned memory', 'to the device', 'within'],
      async (asked, way) => {
        const reserved = await asked.made('cuMemAddressReserve', 'OUT0', 2 * UNIT, 0, 0, 0);
        for (const at of neighbour === 'nothing' ? [0] : [0, UNIT]) {
          const physical = await asked.made('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0);
          await asked.made('cuMemMap', reserved + at, UNIT, 0, physical, 0);
          if (at === 0 || neighbour === 'another mapping')
            await asked.made('cuMemSetAccess', reserved + at, UNIT, access(3), 1);
        }
        const host = await asked.map(MIB);
        const pinned = await asked.made('cuMemHostAlloc', 'OUT0', MIB, 3);
        const plain = await asked.memory(MIB);
        const stream = await asked.stream();
        for (const byteLength of sizes) {
          const from = reserved + UNIT - Math.ceil(byteLength / 2);
          const calls: Record<string, Call> = {
            'to the host': ['cuMemcpyDtoH_v2', host, from, byteLength],
            'to the host, asynchronous': ['cuMemcpyDtoHAsync_v2', host, from, byteLength, stream],
            'to pinned memory': ['cuMemcpyDtoHAsync_v2', pinned, from, byteLength, stream],
            'to the device': ['cuMemcpyHtoD_v2', from, host, byteLength],
            within: ['cuMemcpyDtoDAsync_v2', plain, from, byteLength, stream],
          };
          const what = `${way}, ${byteLength} bytes`;
          await asked.ask(what, ...(calls[way] as Call));
          await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', stream);
        }
      },
      MANY,
    );
};

/** Copies within memory whose two ends overlap. */
export const overlapFacts: FactGroup = async (note) => {
  await question(note, 'a copy that overlaps itself', async (named) => {
    await using asked = await Asked.start(named);
    const pattern = Buffer.from(Array.from({ length: 64 }, (_, n) => n + 1));
    const memory = await asked.memory(MIB);
    const stream = await asked.stream();
    for (const [what, to, from] of [
      ['4 bytes up', 4, 0],
      ['4 bytes down', 0, 4],
    ] as const) {
      const bytes = { bytes: pattern.toString('base64') };
      await asked.made('cuMemcpyHtoD_v2', memory, bytes, 64);
      await asked.ask(what, 'cuMemcpyDtoDAsync_v2', memory + to, memory + from, 60, stream);
      await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', stream);
      const { block } = await asked.call('cuMemcpyDtoH_v2', 'BLOCK', memory, 64);
      const right = Buffer.from(pattern);
      right.copyWithin(to, from, from + 60);
      named(`${what} is as memmove`, Buffer.from(block, 'base64').equals(right) ? 'yes' : 'no');
    }
    for (const [what, to, from] of [
      ['of a megabyte, 4 bytes up', 4, 0],
      ['of a megabyte, 4 bytes down', 0, 4],
    ] as const)
      await asked.ask(what, 'cuMemcpyDtoDAsync_v2', memory + to, memory + from, MIB - 4, stream);
    const rows = {
      srcMemoryType: 2,
      dstMemoryType: 2,
      srcPitch: 64,
      dstPitch: 64,
      WidthInBytes: 60,
    };
    const at = { srcDevice: memory, dstDevice: memory + 4, Height: 100 };
    const copy = struct('CUDA_MEMCPY2D', { ...rows, ...at });
    await asked.ask('of rows', 'cuMemcpy2DAsync_v2', copy, stream);
    await asked.ask('the stream', 'cuStreamSynchronize', stream);
  });
};

/** What fresh memory holds, and memory that was freed before. */
export const freshFacts: FactGroup = async (note) => {
  const size = 8 * MIB;
  const kinds: Readonly<
    Record<string, { make: (asked: Asked) => Promise<number>; free: (at: number) => Call }>
  > = {
    'plain memory': {
      make: (asked) => asked.memory(size),
      free: (at) => ['cuMemFree_v2', at],
    },
    'small plain memory': {
      make: (asked) => asked.memory(4096),
      free: (at) => ['cuMemFree_v2', at],
    },
    'memory of a pool': {
      make: async (asked) =>
        asked.made(
          'cuMemAllocFromPoolAsync',
          'OUT0',
          size,
          await asked.made('cuMemPoolCreate', 'OUT0', poolProperties({ maxSize: 0 })),
          0,
        ),
      free: (at) => ['cuMemFreeAsync', at, 0],
    },
    'managed memory': {
      make: (asked) => asked.made('cuMemAllocManaged', 'OUT0', size, 1),
      free: (at) => ['cuMemFree_v2', at],
    },
    'pinned memory': {
      make: (asked) => asked.made('cuMemHostAlloc', 'OUT0', size, 3),
      free: (at) => ['cuMemFreeHost', at],
    },
  };
  await questions(note, 'fresh', Object.keys(kinds), async (asked, kind, named) => {
    const { make, free } = kinds[kind] as (typeof kinds)[string];
    const isZero = async (at: number): Promise<string> => {
      const { block } = await asked.call('cuMemcpyDtoH_v2', 'BLOCK', at, 64);
      return Buffer.from(block, 'base64').every((byte) => byte === 0) ? 'zeros' : 'something';
    };
    const memory = await make(asked);
    named(`${kind} holds`, await isZero(memory));
    await asked.made('cuMemsetD8Async', memory, 0xab, 4096, 0);
    await asked.made('cuCtxSynchronize');
    await asked.made(...free(memory));
    await asked.made('cuCtxSynchronize');
    const again = await make(asked);
    named(`${kind} after a free is`, again === memory ? 'at the same address' : 'elsewhere');
    if (again === memory) named(`${kind} used before holds`, await isZero(again));
  });
};

/** Rows with pitches, widths and heights at the bounds of what hardware counts. */
export const pitchFacts: FactGroup = async (note) => {
  const HALF = 2 ** 31;
  const copy = (values: object): Argument =>
    struct('CUDA_MEMCPY2D', { srcMemoryType: 2, dstMemoryType: 2, Height: 2, ...values });
  const wide: Record<string, (at: number, stream: number) => Call> = {};
  for (const pitch of [HALF - 1, HALF, HALF + 1]) {
    const tight = { srcPitch: pitch, dstPitch: 64, WidthInBytes: 16 };
    wide[`copy from a pitch of ${pitch}`] = (at, stream) => [
      'cuMemcpy2DAsync_v2',
      copy({ srcDevice: at, dstDevice: at + 4096, ...tight }),
      stream,
    ];
    wide[`copy to a pitch of ${pitch}`] = (at, stream) => [
      'cuMemcpy2DAsync_v2',
      copy({ srcDevice: at, dstDevice: at + 4096, ...tight, srcPitch: 64, dstPitch: pitch }),
      stream,
    ];
    wide[`memset of a pitch of ${pitch}`] = (at, stream) => [
      'cuMemsetD2D8Async',
      at,
      pitch,
      1,
      16,
      2,
      stream,
    ];
  }
  for (const width of [HALF - 1, HALF, HALF + 16]) {
    wide[`memset of a row of ${width}`] = (at, stream) => [
      'cuMemsetD2D8Async',
      at,
      width,
      1,
      width,
      1,
      stream,
    ];
    wide[`copy of a row of ${width}`] = (at, stream) => [
      'cuMemcpy2DAsync_v2',
      copy({
        srcDevice: at,
        dstDevice: at + HALF + 64,
        srcPitch: width,
        dstPitch: width,
        WidthInBytes: width,
        Height: 1,
      }),
      stream,
    ];
  }
  for (const height of [65_535, 65_536, 2 ** 20]) {
    wide[`memset of ${height} rows`] = (at, stream) => [
      'cuMemsetD2D8Async',
      at,
      64,
      1,
      16,
      height,
      stream,
    ];
    wide[`copy of ${height} rows`] = (at, stream) => [
      'cuMemcpy2DAsync_v2',
      copy({
        srcDevice: at,
        dstDevice: at + 32,
        srcPitch: 64,
        dstPitch: 64,
        WidthInBytes: 16,
        Height: height,
      }),
      stream,
    ];
  }
  await questions(
    note,
    'rows',
    Object.keys(wide),
    async (asked, what) => {
      const memory = await asked.memory(2 * HALF + 4 * MIB);
      const stream = await asked.stream();
      await asked.ask(what, ...(wide[what] as (typeof wide)[string])(memory, stream));
      await asked.ask(`${what}: the stream`, 'cuStreamSynchronize', stream);
    },
    MANY,
  );
};
