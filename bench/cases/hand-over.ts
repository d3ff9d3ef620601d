/**
 * A word of a buffer is changed, and the buffer goes to another process, which reads that word on
 * the device and answers with it. Three rows that are never mixed: the receiver has it mapped
 * already; it is new, of a pool that the receiver knows; it comes for the first time. Beside them the
 * connection alone, and a hand-over without one. What each contestant does is a file of bench/ways.
 */
import { sizeName } from '../bytes.ts';
import type { DriverChoice } from '../driver.ts';
import type { HandOverChildren } from '../programs/hand-over-children.ts';
import { copiedBySocket } from '../ways/copied-by-socket.ts';
import { copiedInPageLockedMemory } from '../ways/copied-in-page-locked-memory.ts';
import { copiedInSharedMemory } from '../ways/copied-in-shared-memory.ts';
import { emptyMessage, emptyMessageBusyPolling } from '../ways/empty-message.ts';
import { firstPool } from '../ways/first-pool.ts';
import { legacy } from '../ways/legacy.ts';
import { mapped, mappedBusyPolling } from '../ways/mapped.ts';
import { mappedPoints, POINTS } from '../ways/mapped-points.ts';
import { nodeNet } from '../ways/node-net.ts';
import { openWays } from '../ways/open.ts';
import { polled } from '../ways/polled.ts';
import { pool } from '../ways/pool.ts';
import { processSend } from '../ways/process-send.ts';
import {
  smallMessage,
  smallMessageByProcessSend,
  smallMessagesInFlight,
} from '../ways/small-message.ts';
import { virtual } from '../ways/virtual.ts';
import type { Way } from '../ways/way.ts';
import { type Case, inPeers } from './case.ts';

const MIB = 1 << 20;
const SIZES = [4 << 10, MIB, 64 * MIB, 1024 * MIB];
/** From here on it takes long, and much memory, without a GPU. */
const LARGE = 1024 * MIB;

/**
 * How many calls of each turn are not timed. Two processes that slept while others had their turns
 * are slow to wake: on an H200's host the first call took 0.5 ms longer, and after ten to twenty
 * nothing of it was left. A server that hands over all day does not sleep.
 */
const UNTIMED = 20;

type Row = Omit<Case, 'open'> & { readonly ways: readonly Way[] };

const connection: Row = {
  name: 'connection',
  what: 'an empty message to another process and back; node:net: a byte through a Unix socket',
  calls: 500,
  ways: [emptyMessage, emptyMessageBusyPolling, nodeNet],
  peers: [],
  aims: [{ versus: 'node:net', max: 1.5 }],
};

const message: Row = {
  name: 'connection.message',
  what: 'a message of ten short names and values to another process and back',
  calls: 500,
  ways: [smallMessage, smallMessagesInFlight, smallMessageByProcessSend],
  peers: [],
};

/** Each for all sizes. */
const rows: readonly Row[] = [
  {
    name: 'hand-over.mapped',
    what: 'a buffer that the receiver has mapped, and its acknowledgement',
    calls: 100,
    untimed: UNTIMED,
    budgetMs: 2000,
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
    budgetMs: 2000,
    ways: [pool],
    peers: inPeers('handOver.pool', 'C', 'cuda.core'),
  },
  {
    name: 'hand-over.first.legacy',
    what: 'a buffer that the receiver opens by its legacy handle, and closes',
    calls: 30,
    untimed: UNTIMED,
    budgetMs: 2000,
    ways: [legacy, processSend],
    peers: inPeers('handOver.legacy', 'C', 'numba', 'torch'),
    aims: [{ versus: 'C', max: 1.5 }],
  },
  {
    name: 'hand-over.first.pool',
    what: 'a buffer of a new pool: the receiver imports both, and closes them',
    calls: 20,
    untimed: UNTIMED,
    budgetMs: 2000,
    ways: [firstPool],
    peers: inPeers('handOver.firstPool', 'C', 'cuda.core'),
    aims: [{ versus: 'C', max: 1.5 }],
  },
  {
    name: 'hand-over.first.virtual',
    what: 'new virtual memory: the receiver maps it by file descriptor, and unmaps it',
    calls: 20,
    untimed: UNTIMED,
    budgetMs: 2000,
    ways: [virtual],
    peers: inPeers('handOver.virtual', 'C'),
    aims: [{ versus: 'C', max: 1.5 }],
  },
];

const polling: Row = {
  name: 'hand-over.polled',
  what: 'the stream of one process to that of another and back, by the counters of ready and done points; both CPUs poll',
  calls: 100,
  ways: [polled],
  peers: inPeers('handOver.polled', 'C'),
};

/** Mapping so much takes milliseconds: a turn of fewer calls is as long. */
const FEW_CALLS = 10;

/** The ways of each row. */
export const handOverWays = [connection, message, ...rows, polling].map(({ ways }) => ways);

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
  caseOf(polling),
];

function caseOf({ ways, ...row }: Row): Case {
  const { byteLength = 0 } = row;
  return {
    ...row,
    open: (driver: DriverChoice, children: HandOverChildren) =>
      openWays(ways, { driver, byteLength, children }),
  };
}
