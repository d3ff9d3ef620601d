/**
 * Arrays: making a view, copying a few bytes to the host, and copying rows with gaps between them on
 * the device, by cuffi's kernel and by the driver.
 */
import {
  type DeviceArray,
  deviceArray,
  type float32,
  queuePitchedCopy,
  Stream,
  toDeviceSync,
  uint8,
} from 'cuffi';
import { sizeName } from '../format.ts';
import { inProcess } from '../measure.ts';
import { requirePattern, writePattern } from '../ways/pattern.ts';
import { type Case, inPeers, type OpenCase, PUBLIC, requireSuccess } from './case.ts';
import { GpuTimer } from './gpu-timer.ts';

const SHAPE = [64, 64] as const;
const BYTE_LENGTH = 4;

/** Rows of so many bytes, and from one to the next. */
const ROWS = [
  { width: 4, stride: 8 },
  { width: 4, stride: 128 },
  { width: 16, stride: 32 },
  { width: 256, stride: 512 },
  { width: 4096, stride: 8192 },
] as const;
/** Numbers of rows: multiples of 16 and of each of {@link COPIES}. */
const ROW_COUNTS = [48, 96, 192, 768, 12_288];
/** The driver copies them in so many parts. */
const COPIES = [1, 2, 3, 4, 8];
/** The emulated driver copies item by item. */
const MOST_WITHOUT_GPU = 1 << 16;

const MIB = 1 << 20;
const ROWS_SIZES = [MIB, 16 * MIB, 256 * MIB];
/** The emulated driver copies no more than this. */
const MOST_ROWS_WITHOUT_GPU = MIB;

/** Bytes of a row that are copied, and bytes from one row to the next. */
const WIDTH = 256;
const STRIDE = 512;

const rowCases: readonly Case[] = ROWS_SIZES.map((byteLength) => ({
  name: 'array.copyTo.rows',
  variant: sizeName(byteLength),
  what: `copies rows of ${WIDTH} bytes, ${STRIDE} apart, on the device`,
  calls: Math.max(2, Math.min(50, (64 * MIB) / byteLength)),
  rounds: 15,
  budgetMs: 400,
  isOnce: true,
  byteLength,
  isCopy: true,
  clock: 'gpu',
  limit: { by: 'memory', times: 2 },
  needsGpu: byteLength > MOST_ROWS_WITHOUT_GPU,
  peers: inPeers('gpu.rows', 'C', 'torch', 'cupy'),
  open: () => openRows(byteLength),
}));

export const arrayCases: readonly Case[] = [
  {
    name: 'array.slice',
    what: 'makes a view of a part of an array, a[2:10, 3] in Python',
    calls: 5000,
    peers: inPeers('array.slice', 'cupy', 'numba'),
    open: openSlice,
  },
  {
    name: 'array.reshape',
    what: 'makes a view of an array in another shape',
    calls: 5000,
    peers: inPeers('array.reshape', 'cupy', 'numba'),
    open: openReshape,
  },
  {
    name: 'array.copyToHostSync',
    variant: `${BYTE_LENGTH} bytes`,
    what: 'copies a small array to the host, into a new typed array; the driver: cuMemcpyDtoH',
    calls: 500,
    byteLength: BYTE_LENGTH,
    peers: [{ peer: 'C', batch: 'pageable.toHost' }, ...inPeers('array.toHost', 'cupy', 'numba')],
    open: openCopy,
  },
  // For the thresholds of src/array/device-copy.ts.
  ...ROWS.flatMap((row) => ROW_COUNTS.map((rows) => stridedCase(row, rows))),
  ...rowCases,
];

/** An array whose items all differ. */
function countedArray(): DeviceArray<typeof float32> {
  const [rows, columns] = SHAPE;
  return toDeviceSync(
    Float32Array.from({ length: rows * columns }, (_, at) => at),
    { shape: SHAPE },
  );
}

function openSlice(): OpenCase {
  const array = countedArray();
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        let size = 0;
        for (let call = 0; call < calls; call += 1)
          size += array.slice({ start: 2, stop: 10 }, 3).size;
        requireSuccess(size === 8 * calls, 'slice');
      }),
    ],
    verify() {
      const seen = array.slice({ start: 2, stop: 10 }, 3).copyToHostSync();
      const columns = SHAPE[1];
      requireSuccess(
        seen.every((item, at) => item === (2 + at) * columns + 3),
        'slice',
      );
    },
    close: () => array.close(),
  };
}

function openReshape(): OpenCase {
  const array = countedArray();
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        let ndim = 0;
        for (let call = 0; call < calls; call += 1) ndim += array.reshape([16, 256]).ndim;
        requireSuccess(ndim === 2 * calls, 'reshape');
      }),
    ],
    verify() {
      const seen = array.reshape([16, 256]).slice(3).copyToHostSync();
      requireSuccess(
        seen.every((item, at) => item === 3 * 256 + at),
        'reshape',
      );
    },
    close: () => array.close(),
  };
}

function openCopy(): OpenCase {
  const array = toDeviceSync(new Float32Array([1]));
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        let sum = 0;
        for (let call = 0; call < calls; call += 1) sum += array.copyToHostSync()[0] as number;
        requireSuccess(sum === calls, 'copyToHostSync');
      }),
    ],
    close: () => array.close(),
  };
}

function stridedCase({ width, stride }: (typeof ROWS)[number], rows: number): Case {
  return {
    name: 'array.copyTo.strided',
    variant: `${rows} rows of ${width} bytes, ${stride} apart`,
    what: 'copies rows with gaps on the device: by cuffi’s kernel, and by 1 to 8 copies of the driver',
    calls: 50,
    byteLength: rows * width,
    isCopy: true,
    needsGpu: rows * width > MOST_WITHOUT_GPU,
    isLarge: true,
    peers: [],
    open: () => openStrided(rows, width, stride),
  };
}

function openStrided(rows: number, width: number, stride: number): OpenCase {
  const stream = Stream.create({ nonBlocking: true });
  // A gap along each axis, so that none becomes one with the next: a box has two, and four are left
  // to repeat, which is more than arrays have the driver do.
  const [outer, inner] = [4, rows / 16];
  const base = deviceArray([outer + 1, outer + 1, inner + 1, stride], uint8);
  const source = base.slice({ stop: outer }, { stop: outer }, { stop: inner }, { stop: width });
  const target = deviceArray([outer, outer, inner, width], uint8);
  base.copyFromSync(new Uint8Array(Buffer.alloc(base.size, 'a pattern of 23 letters')));
  target.fill(0);
  const wanted = source.copyToHostSync();
  const batch = (copy: () => void) => (calls: number) => {
    for (let call = 0; call < calls; call += 1) copy();
    stream.synchronizeSync();
  };
  const driver = (count: number): void => {
    const height = rows / count;
    for (let n = 0; n < count; n += 1)
      queuePitchedCopy(
        { memory: target.buffer, byteOffset: n * height * width },
        { memory: base.buffer, byteOffset: n * height * stride, rowPitch: stride },
        { width, height },
        { stream },
      );
  };
  return {
    contestants: [
      inProcess(
        `${PUBLIC}, its kernel`,
        batch(() => source.copyTo(target, { stream })),
      ),
      ...COPIES.map((count) =>
        inProcess(
          count === 1 ? 'driver, 1 copy' : `driver, ${count} copies`,
          batch(() => driver(count)),
        ),
      ),
    ],
    verify() {
      const ways = [
        () => source.copyTo(target, { stream }),
        ...COPIES.map((count) => () => driver(count)),
      ];
      for (const copy of ways) {
        target.fill(0);
        target.buffer.context.synchronizeSync();
        batch(copy)(1);
        const copied = target.copyToHostSync();
        requireSuccess(Buffer.compare(wanted, copied) === 0, 'array.copyTo.strided');
      }
    },
    close() {
      for (const resource of [target, base, stream]) resource.close();
    },
  };
}

function openRows(byteLength: number): OpenCase {
  const timer = new GpuTimer();
  const { stream } = timer;
  const rows = byteLength / WIDTH;
  const whole = deviceArray([rows, STRIDE], uint8);
  const source = whole.slice({}, { stop: WIDTH });
  const target = deviceArray([rows, WIDTH], uint8);
  const host = new Uint8Array(byteLength);
  writePattern(host);
  target.copyFromSync(host);
  target.copyTo(source);
  const byArray = (): void => source.copyTo(target, { stream });
  const byDriver = (): void =>
    queuePitchedCopy(
      { memory: target.buffer },
      { memory: whole.buffer, rowPitch: STRIDE },
      { width: WIDTH, height: rows },
      { stream },
    );
  const ways = [
    { name: PUBLIC, copy: byArray },
    { name: 'driver, 1 copy', copy: byDriver },
  ];
  return {
    contestants: ways.map(({ name, copy }) =>
      timer.contestant(name, (calls) => {
        for (let call = 0; call < calls; call += 1) copy();
      }),
    ),
    verify() {
      for (const { name, copy } of ways) {
        target.fill(0);
        target.buffer.context.synchronizeSync();
        copy();
        stream.synchronizeSync();
        target.buffer.copyToHostSync(host.fill(0));
        requirePattern(host, name);
      }
    },
    close() {
      for (const resource of [whole, target, timer]) resource.close();
    },
  };
}
