/** What a reset of the primary context does to what was made before. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup, FactValue, Note } from './facts.ts';
import {
  access,
  attributeIn,
  MIB,
  outOf,
  physicalProperties,
  poolProperties,
  statusIn,
} from './kinds.ts';

/** Far more than what two contexts of a device differ by. */
const SIZE = 256 * MIB;
const LAZY_PEER_ACCESS = 1;
const MEMORY_TYPE = 2;

/** Something that is made before the reset, and asked about after it. */
interface Kind {
  readonly name: string;
  /** Whether it takes `SIZE` bytes of the device, which are asked about first and last. */
  readonly isOnDevice?: boolean;
  /** Whether the questions are asked without a current context. Default false. */
  readonly isOutside?: boolean;
  readonly make: (peer: DriverProcess) => Promise<readonly number[]>;
  /** Asked in their order, in one process as long as none ends it. */
  readonly questions: Readonly<Record<string, Question>>;
}

type Question = (peer: DriverProcess, made: readonly number[]) => Promise<FactValue>;

const freeIn = (peer: DriverProcess): Promise<number> =>
  outOf(peer)('cuMemGetInfo_v2', 'OUT0', 'OUT1');

async function reset(peer: DriverProcess): Promise<number> {
  const status = statusIn(peer);
  await status('cuCtxPopCurrent_v2', 'OUT0');
  await status('cuDevicePrimaryCtxRelease_v2', 0);
  return status('cuDevicePrimaryCtxReset_v2', 0);
}

/** Asks the questions that are left, and takes them out; one that ends the process is the last. */
async function askIn(
  peer: DriverProcess,
  kind: Kind,
  left: Map<string, Question>,
  note: Note,
): Promise<void> {
  await enterContext(peer);
  const before = await freeIn(peer);
  const made = await kind.make(peer);
  const status = await reset(peer);
  if (status !== 0) throw new Error(`cuDevicePrimaryCtxReset_v2: ${status}`);
  if (!kind.isOutside) await enterContext(peer);
  const isFirst = left.size === Object.keys(kind.questions).length;
  const noteMemory = async (when: string): Promise<void> => {
    const taken = before - (await freeIn(peer));
    note(`after a reset, ${kind.name}: ${when}`, taken < SIZE / 2 ? 'is free' : 'is taken');
  };
  if (isFirst && kind.isOnDevice) await noteMemory('its memory');
  for (const [name, question] of left) {
    left.delete(name);
    const { value, hasEnded } = await question(peer, made).then(
      (answer) => ({ value: answer, hasEnded: false }),
      (error: Error) => ({
        value: error.message.includes('SIGKILL') ? 'does not return' : 'crashes',
        hasEnded: true,
      }),
    );
    note(`after a reset, ${kind.name}: ${name}`, value);
    if (hasEnded) return;
  }
  if (isFirst && kind.isOnDevice) await noteMemory('its memory in the end');
}

const poolQuestions: Kind['questions'] = {
  'bytes used': async (peer, [pool = 0]) =>
    (await peer.call('cuMemPoolGetAttribute', pool, 7, 'OUT0')).status,
  'allocated from': async (peer, [pool = 0]) =>
    statusIn(peer)('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, 0),
  trimmed: (peer, [pool = 0]) => statusIn(peer)('cuMemPoolTrimTo', pool, 0),
  destroyed: (peer, [pool = 0]) => statusIn(peer)('cuMemPoolDestroy', pool),
};

async function makeVirtual(peer: DriverProcess): Promise<readonly number[]> {
  const out = outOf(peer);
  const address = await out('cuMemAddressReserve', 'OUT0', SIZE, 0, 0, 0);
  const handle = await out('cuMemCreate', 'OUT0', SIZE, physicalProperties(), 0);
  await out('cuMemMap', address, SIZE, 0, handle, 0);
  await out('cuMemSetAccess', address, SIZE, access(3), 1);
  return [address, handle];
}

const virtualQuestions: Kind['questions'] = {
  'attribute 2': (peer, [address = 0]) => attributeIn(peer)(MEMORY_TYPE, address),
  unmapped: (peer, [address = 0]) => statusIn(peer)('cuMemUnmap', address, SIZE),
  'its physical memory released': (peer, [, handle = 0]) => statusIn(peer)('cuMemRelease', handle),
  'its addresses freed': (peer, [address = 0]) => statusIn(peer)('cuMemAddressFree', address, SIZE),
};

async function makePool(peer: DriverProcess, byteLength: number): Promise<readonly number[]> {
  const out = outOf(peer);
  const pool = await out('cuMemPoolCreate', 'OUT0', poolProperties({ maxSize: 2 * SIZE }));
  if (byteLength === 0) return [pool];
  const memory = await out('cuMemAllocFromPoolAsync', 'OUT0', byteLength, pool, 0);
  await out('cuCtxSynchronize');
  return [pool, memory];
}

const kinds = (exporter: DriverProcess): readonly Kind[] => [
  {
    name: 'device memory',
    isOnDevice: true,
    make: async (peer) => [await outOf(peer)('cuMemAlloc_v2', 'OUT0', SIZE)],
    questions: {
      freed: (peer, [memory = 0]) => statusIn(peer)('cuMemFree_v2', memory),
    },
  },
  {
    name: 'virtual memory',
    isOnDevice: true,
    make: makeVirtual,
    questions: {
      'copied from': (peer, [address = 0]) =>
        statusIn(peer)('cuMemcpyDtoH_v2', 'BLOCK', address, 64),
      ...virtualQuestions,
    },
  },
  {
    name: 'virtual memory, with no context current',
    isOutside: true,
    make: makeVirtual,
    questions: virtualQuestions,
  },
  {
    name: 'a pool with memory given out',
    isOnDevice: true,
    make: (peer) => makePool(peer, SIZE),
    questions: poolQuestions,
  },
  {
    name: 'memory of a pool',
    make: (peer) => makePool(peer, SIZE),
    questions: {
      'freed in a stream': (peer, [, memory = 0]) => statusIn(peer)('cuMemFreeAsync', memory, 0),
      freed: (peer, [, memory = 0]) => statusIn(peer)('cuMemFree_v2', memory),
    },
  },
  {
    name: 'an unused pool, with no context current',
    isOutside: true,
    make: (peer) => makePool(peer, 0),
    questions: { destroyed: poolQuestions['destroyed'] as Question },
  },
  {
    name: 'registered memory',
    make: async (peer) => [(await peer.latch()).devicePointer],
    questions: {
      'flags told': (peer, [memory = 0]) => statusIn(peer)('cuMemHostGetFlags', 'OUT0', memory),
      unregistered: (peer, [memory = 0]) => statusIn(peer)('cuMemHostUnregister', memory),
      'registered again': (peer, [memory = 0]) =>
        statusIn(peer)('cuMemHostRegister_v2', memory, 4096, 3),
      'unregistered again': (peer, [memory = 0]) => statusIn(peer)('cuMemHostUnregister', memory),
    },
  },
  {
    name: 'memory of cuMemHostAlloc',
    make: async (peer) => [await outOf(peer)('cuMemHostAlloc', 'OUT0', MIB, 3)],
    questions: {
      'flags told': (peer, [memory = 0]) => statusIn(peer)('cuMemHostGetFlags', 'OUT0', memory),
      'attribute 2': (peer, [memory = 0]) => attributeIn(peer)(MEMORY_TYPE, memory),
      freed: (peer, [memory = 0]) => statusIn(peer)('cuMemFreeHost', memory),
    },
  },
  {
    name: 'an imported legacy mapping',
    make: async (peer) => {
      const memory = await outOf(exporter)('cuMemAlloc_v2', 'OUT0', 4 * MIB);
      const { block } = await exporter.call('cuIpcGetMemHandle', 'BLOCK', memory);
      const handle = { base64: block };
      return [await outOf(peer)('cuIpcOpenMemHandle_v2', 'OUT0', handle, LAZY_PEER_ACCESS)];
    },
    questions: {
      'attribute 2': (peer, [memory = 0]) => attributeIn(peer)(MEMORY_TYPE, memory),
      closed: (peer, [memory = 0]) => statusIn(peer)('cuIpcCloseMemHandle', memory),
    },
  },
];

export const resetFacts: FactGroup = async (note) => {
  await using exporter = new DriverProcess();
  await enterContext(exporter);
  for (const kind of kinds(exporter)) {
    const left = new Map(Object.entries(kind.questions));
    while (left.size > 0) {
      await using peer = new DriverProcess();
      await askIn(peer, kind, left, note);
    }
  }
};
