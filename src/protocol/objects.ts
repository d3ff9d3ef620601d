/** Descriptors for the test vectors: an object of each kind, and variations of them. */
import { byte, type Fields, type PlainWriter } from './writer.ts';

/** The fields of a kind. */
type Sample = Fields & { readonly kind: string };

const exporter = {
  device: 'GPU-00112233-4455-6677-8899-aabbccddeeff',
  machine: '0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0',
  pid: 4242,
  startTime: 123_456_789,
  pidNamespace: 4_026_531_836,
};

const base64 = (byteOf: (index: number) => number): string =>
  Buffer.from(Uint8Array.from({ length: 64 }, (_, index) => byteOf(index))).toString('base64');
const handle = base64((index) => index);
const otherHandle = base64((index) => 255 - index);

const range = {
  baseByteLength: 2_097_152,
  byteOffset: 4096,
  byteLength: 1024,
  access: 'read-write',
  bufferId: 77,
  generation: 281_474_976_710_655,
};
const layout = { dtype: 'float32', shape: [16, 16], strides: [64, 4] };
const id = '000102030405060708090a0b0c0d0e0f';

const event: Sample = { kind: 'event', ...exporter, handle: otherHandle };
const legacy: Sample = { kind: 'legacy', ...exporter, handle, ...range };
const pool: Sample = { kind: 'pool', ...exporter, pool: id, handle, ...range };
const virtual: Sample = {
  kind: 'virtual',
  ...exporter,
  memory: id,
  firstPiece: 2,
  pieces: [2_097_152, 4_194_304, 2_097_152],
  ...range,
  baseByteLength: 8_388_608,
  byteLength: 8_384_512,
  access: 'read',
};
const slots: Sample = {
  ...virtual,
  firstPiece: 0,
  pieces: [2_097_152],
  baseByteLength: 2_097_152,
  byteOffset: 0,
  byteLength: 2_097_152,
  access: 'read-write',
};
const channel: Sample = {
  kind: 'channel',
  slots: 4,
  stride: 524_288,
  byteLength: 524_288,
  layout: { dtype: 'uint8', shape: [512, 1024], strides: [1024, 1] },
  flags: 0,
  memory: slots,
};

/** A valid object of each kind. */
export const samples = {
  legacy,
  array: { ...legacy, layout } as Sample,
  pool,
  wholePool: {
    ...pool,
    handle: null,
    baseByteLength: 0,
    byteOffset: 0,
    byteLength: 0,
  } as Sample,
  virtual,
  event,
  timeline: { kind: 'timeline' } as Sample,
  signaler: { kind: 'signaler', last: 2 ** 53 - 1 } as Sample,
  pinned: { kind: 'pinned', byteLength: 10_000 } as Sample,
  channel,
} as const;

/** The vectors of valid descriptors. */
export function* objects(
  writer: PlainWriter,
): Iterable<{ readonly name: string; readonly [field: string]: unknown }> {
  const most = 2 ** 53 - 1;
  const cases: readonly (readonly [string, Sample])[] = [
    ['plain device memory', legacy],
    ['the whole of an allocation', { ...legacy, byteOffset: 0, byteLength: range.baseByteLength }],
    ['an array', samples.array],
    ['an array with a ready event', { ...samples.array, readyEvent: event }],
    [
      'an array of no axes',
      { ...legacy, byteLength: 8, layout: { dtype: 'complex64', shape: [], strides: [] } },
    ],
    [
      'an array with negative strides',
      { ...legacy, layout: { dtype: 'int16', shape: [4, 8], strides: [-16, 2] } },
    ],
    [
      'an array whose items are one',
      { ...legacy, layout: { dtype: 'V12', shape: [1000], strides: [0] } },
    ],
    ['memory on a slice of a GPU', { ...legacy, device: exporter.device.replace('GPU', 'MIG') }],
    [
      'the greatest numbers',
      {
        ...legacy,
        pid: 2 ** 32 - 1,
        startTime: most,
        pidNamespace: most,
        baseByteLength: most,
        byteOffset: most - 1,
        byteLength: 1,
        bufferId: most,
        generation: most,
      },
    ],
    ['memory of a pool', pool],
    ['an array in memory of a pool', { ...pool, layout, readyEvent: event }],
    ['a pool', samples.wholePool],
    ['virtual memory of three pieces', virtual],
    ['virtual memory of one piece', slots],
    [
      'virtual memory of 253 pieces',
      {
        ...virtual,
        pieces: new Array(253).fill(1),
        baseByteLength: 253,
        byteOffset: 0,
        byteLength: 253,
      },
    ],
    ['an event', event],
    ['a timeline', samples.timeline],
    ['a signaler', samples.signaler],
    ['page-locked memory', samples.pinned],
    ['a channel', channel],
    ['a channel to one consumer each', { ...channel, flags: 1 }],
    [
      'a channel for streams',
      {
        ...channel,
        flags: 2,
        byteLength: 1000,
        layout: { dtype: 'V10', shape: [100], strides: [10] },
      },
    ],
    [
      'a channel of 1,024 slots',
      {
        ...channel,
        slots: 1024,
        stride: 256,
        byteLength: 256,
        layout: { dtype: 'uint8', shape: [256], strides: [1] },
      },
    ],
  ];
  for (const [name, fields] of cases) {
    const hex = writer.object(fields);
    const hasForms = writer.facts.kinds.some(
      (kind) => kind.name === fields.kind && kind.hasExporter,
    );
    const forms = hasForms && { bytes: writer.descriptor(hex), json: writer.message(fields) };
    yield { name, kind: fields.kind, hex, fields, ...forms, roundtrip: true };
  }
}

/** Replaces so many bytes of hexadecimal text. */
export const altered = (hex: string, at: number, bytes: string): string => {
  const begin = 2 * (at < 0 ? hex.length / 2 + at : at);
  return hex.slice(0, begin) + bytes + hex.slice(begin + bytes.length);
};

/** Returns the first so many bytes of hexadecimal text; with a negative number, all but the last. */
export const cut = (hex: string, byteLength: number): string => hex.slice(0, 2 * byteLength);

/** Returns the same with one byte more. */
export const longer = (hex: string): string => hex + byte(0);
