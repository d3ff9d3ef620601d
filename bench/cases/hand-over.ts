/**
 * Hand-overs: one word of a buffer is changed, and the buffer goes to another process, which reads
 * that word on the device and replies with it. There are three kinds of row: the receiver has the
 * buffer mapped; it knows the pool of a new buffer; it sees the memory for the first time.
 */
import { sizeName } from '../format.ts';
import type { DriverChoice } from '../results.ts';
import type { Children } from '../ways/children.ts';
import { copiedBySocket, copiedInPageLockedMemory, copiedInSharedMemory } from '../ways/copying.ts';
import { withSubscriber } from '../ways/diagnostics.ts';
import {
  bareNode,
  emptyMessage,
  emptyMessageBusyPolling,
  nodeNet,
  smallMessage,
  smallMessageByProcessSend,
  smallMessagesInFlight,
} from '../ways/messages.ts';
import {
  firstPool,
  legacy,
  mapped,
  mappedBusyPolling,
  mappedByNode,
  mappedByPython,
  mappedByPythonPolling,
  mappedPoints,
  newLegacy,
  newPool,
  newVirtual,
  POINTS,
  pool,
  processSend,
  virtual,
} from '../ways/sharing.ts';
import { polled, queuedAhead, queuedAheadRaw } from '../ways/timelines.ts';
import { openWays, type Way } from '../ways/way.ts';
import { type Case, inPeers, messageFloors } from './case.ts';

const MIB = 1 << 20;
const SIZES = [4 << 10, MIB, 64 * MIB, 1024 * MIB];
/** The emulated driver takes no buffer of this size. */
const LARGE = 1024 * MIB;

/**
 * Two processes that slept during other batches are slow to wake: on an H200 host the first call took
 * 0.5 ms longer, the twentieth none. A server that is busy does not sleep.
 */
const UNTIMED = 20;

type Row = Omit<Case, 'open'> & { readonly ways: readonly Way[] };

const connection: Row = {
  name: 'connection',
  what: 'an empty message to another process and back; the others: a byte through node:net, 21 bytes by the calls of a connection alone, and in C',
  calls: 500,
  ways: [emptyMessage, emptyMessageBusyPolling, nodeNet, bareNode],
  peers: messageFloors,
};

const message: Row = {
  name: 'connection.message',
  what: 'a message of ten short names and values to another process and back',
  calls: 500,
  ways: [smallMessage, smallMessagesInFlight, smallMessageByProcessSend],
  peers: [],
};

/** Rows that are measured with all sizes. */
const rows: readonly Row[] = [
  {
    name: 'hand-over.mapped',
    what: 'a buffer that the receiver has mapped, and its acknowledgement',
    calls: 100,
    untimed: UNTIMED,
    budgetMs: 1500,
    ways: [
      mapped,
      mappedBusyPolling,
      mappedPoints,
      copiedBySocket,
      copiedInSharedMemory,
      copiedInPageLockedMemory,
    ],
    peers: [
      { peer: 'C', batch: 'handOver.mapped' },
      { peer: 'C', batch: 'handOver.mappedPoints', name: `C, ${POINTS}` },
      ...inPeers('handOver.mapped', 'numba', 'cuda.core', 'torch'),
    ],
  },
  {
    name: 'hand-over.pool',
    what: 'a new buffer of a pool that the receiver knows, and its acknowledgement',
    calls: 50,
    untimed: UNTIMED,
    budgetMs: 1500,
    ways: [pool],
    peers: inPeers('handOver.pool', 'C', 'cuda.core'),
  },
  {
    name: 'hand-over.first.legacy',
    what: 'a buffer that the receiver opens by its legacy handle, and closes',
    calls: 30,
    untimed: UNTIMED,
    budgetMs: 1500,
    ways: [legacy, processSend],
    peers: inPeers('handOver.legacy', 'C', 'numba', 'torch'),
  },
  {
    name: 'hand-over.first.pool',
    what: 'a buffer of a new pool: the receiver imports both, and closes them',
    calls: 20,
    untimed: UNTIMED,
    budgetMs: 1500,
    ways: [firstPool],
    peers: inPeers('handOver.firstPool', 'C', 'cuda.core'),
  },
  {
    name: 'hand-over.first.virtual',
    what: 'new virtual memory: the receiver maps it by file descriptor, and unmaps it',
    calls: 20,
    untimed: UNTIMED,
    budgetMs: 1500,
    ways: [virtual],
    peers: inPeers('handOver.virtual', 'C'),
  },
];

/** As the rows `first`, in processes that have handed over much new memory before. */
const newRows: readonly Row[] = [
  {
    name: 'hand-over.new.legacy',
    what: 'new memory that the receiver opens by its legacy handle, and closes, after 500 others',
    calls: 30,
    untimed: UNTIMED,
    ways: [newLegacy],
    peers: inPeers('handOver.newLegacy', 'C'),
  },
  {
    name: 'hand-over.new.pool',
    what: 'a buffer of a new pool, after 500 others',
    calls: 20,
    untimed: UNTIMED,
    ways: [newPool],
    peers: inPeers('handOver.firstPool', 'C'),
  },
  {
    name: 'hand-over.new.virtual',
    what: 'new virtual memory, after 500 others',
    calls: 20,
    untimed: UNTIMED,
    ways: [newVirtual],
    peers: inPeers('handOver.virtual', 'C'),
  },
];

const diagnostics: Row = {
  name: 'diagnostics.hand-over',
  what: 'a buffer that the receiver has mapped: nobody subscribes to what cuffi publishes, the same once more, and somebody subscribes',
  calls: 100,
  untimed: UNTIMED,
  ways: withSubscriber(mapped),
  peers: [],
};

const python: Row = {
  name: 'hand-over.python',
  what: 'a buffer from Node to Python, which has mapped it, and its acknowledgement; the others are pairs of Python',
  calls: 100,
  untimed: UNTIMED,
  budgetMs: 1500,
  needsGpu: true,
  ways: [mappedByPython, mappedByPythonPolling, mappedByNode],
  peers: inPeers('handOver.mapped', 'numba', 'cuda.core', 'torch'),
};

const polling: Row = {
  name: 'hand-over.polled',
  what: 'the stream of one process to that of another and back, by two timelines; the CPU polls for the value',
  calls: 100,
  ways: [polled],
  peers: inPeers('handOver.polled', 'C'),
};

const queued: Row = {
  name: 'hand-over.queued',
  what: 'the same, from stream to stream: 100 rounds are queued in both processes; the time of one',
  calls: 100,
  ways: [queuedAhead, queuedAheadRaw],
  peers: inPeers('handOver.queued', 'C'),
};

/** Mapping a GiB takes milliseconds. */
const FEW_CALLS = 10;

/** The ways of each row. */
export const handOverWays = [
  connection,
  message,
  ...rows,
  ...newRows,
  diagnostics,
  python,
  polling,
  queued,
].map(({ ways }) => ways);

export const handOverCases: readonly Case[] = [
  caseOf(connection),
  caseOf(message),
  ...rows.flatMap((row) =>
    SIZES.map((byteLength) =>
      caseOf({
        ...row,
        variant: sizeName(byteLength),
        byteLength,
        ...(byteLength >= LARGE && row.name.includes('pool') && { calls: FEW_CALLS }),
        needsGpu: byteLength >= LARGE,
      }),
    ),
  ),
  ...[...newRows, diagnostics].map((row) =>
    caseOf({ ...row, variant: sizeName(MIB), byteLength: MIB }),
  ),
  caseOf({ ...python, variant: sizeName(MIB), byteLength: MIB }),
  caseOf(polling),
  caseOf(queued),
];

function caseOf({ ways, ...row }: Row): Case {
  const { byteLength = 0 } = row;
  return {
    ...row,
    open: (driver: DriverChoice, children: Children) =>
      openWays(ways, { driver, byteLength, children }),
  };
}
