/** What arrays cost: making a view of one, and bringing one of a few bytes to the host. */
import { deviceArray, float32, toDeviceSync } from 'cuffi';
import { inProcess } from '../measure.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { PUBLIC, requireSuccess } from './names.ts';

const SHAPE = [64, 64] as const;
const BYTE_LENGTH = 4;

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
];

function openSlice(): OpenCase {
  const array = deviceArray(SHAPE, float32);
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        let size = 0;
        for (let call = 0; call < calls; call += 1)
          size += array.slice({ start: 2, stop: 10 }, 3).size;
        requireSuccess(size === 8 * calls, 'slice');
      }),
    ],
    close: () => array.close(),
  };
}

function openReshape(): OpenCase {
  const array = deviceArray(SHAPE, float32);
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        let ndim = 0;
        for (let call = 0; call < calls; call += 1) ndim += array.reshape([16, 256]).ndim;
        requireSuccess(ndim === 2 * calls, 'reshape');
      }),
    ],
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
