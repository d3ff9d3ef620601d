/** Messages through channels: a slot to another process and back, and slots that streams wait for. */
import { sizeName } from '../format.ts';
import type { DriverChoice } from '../results.ts';
import {
  busyChannel,
  channelAhead,
  channelFromPython,
  channelToMany,
  channelToNode,
  channelToPython,
  quietChannel,
  readChannel,
} from '../ways/channels.ts';
import type { Children } from '../ways/children.ts';
import { copiedInPageLockedMemory, copiedInSharedMemory } from '../ways/copying.ts';
import { withSubscriber } from '../ways/diagnostics.ts';
import { emptyMessage } from '../ways/messages.ts';
import { mapped } from '../ways/sharing.ts';
import { ringRaw } from '../ways/timelines.ts';
import { openWays, type Way } from '../ways/way.ts';
import { type Case, inPeers, messageFloors } from './case.ts';

const MIB = 1 << 20;
const LARGE = 1024 * MIB;
const SLOTS = [1, 8, 64];
const WORK_US = [10, 200];
const CONSUMERS = [1, 4, 12, 16];
const UNTIMED = 20;
/** As many slots as a consumer takes ahead. */
const AHEAD = 64;

const openCase =
  (ways: readonly Way[], byteLength: number) => (driver: DriverChoice, children: Children) =>
    openWays(ways, { driver, byteLength, children });

const named = (name: string, way: Way): Way => ({ ...way, name });

const roundTrip = (byteLength: number): Case => ({
  name: 'channel.roundTrip',
  variant: sizeName(byteLength),
  byteLength,
  what: 'a slot is published, and released by another process; the others hand over a buffer that it has mapped, and it reads a word',
  calls: 200,
  untimed: UNTIMED,
  needsGpu: byteLength >= LARGE,
  peers: [...inPeers('handOver.mapped', 'C', 'numba', 'cuda.core', 'torch'), ...messageFloors],
  open: openCase(
    [
      quietChannel,
      busyChannel,
      readChannel,
      named('cuffi, peer.send', mapped),
      named('cuffi, an empty message', emptyMessage),
      copiedInSharedMemory,
      copiedInPageLockedMemory,
    ],
    byteLength,
  ),
});

const ahead = (slots: number): Case => ({
  name: 'channel.ahead',
  variant: slots === 1 ? '1 slot' : `${slots} slots`,
  count: { of: 'slots', value: slots },
  what: 'the streams of two processes wait for the slots; the time of one slot. The others wait for counters alone',
  calls: AHEAD,
  untimed: UNTIMED,
  peers: [{ peer: 'C', batch: `handOver.ring.${slots}` }],
  open: openCase([channelAhead(slots), ringRaw(slots)], 0),
});

const python: Case = {
  name: 'channel.python',
  variant: '8 slots',
  what: 'as channel.ahead, between Node and Python: from Node to Python, from Python to Node, and between two of Node',
  calls: AHEAD,
  untimed: UNTIMED,
  needsGpu: true,
  peers: [],
  open: openCase([channelToPython(8), channelFromPython(8), channelToNode(8)], 0),
};

const diagnostics: Case = {
  name: 'diagnostics.channel',
  variant: sizeName(MIB),
  byteLength: MIB,
  what: 'as channel.roundTrip: nobody subscribes to what cuffi publishes, the same once more, and somebody subscribes',
  calls: 200,
  untimed: UNTIMED,
  peers: [],
  open: openCase(withSubscriber(quietChannel), MIB),
};

/** On one GPU the two kernels take turns. */
const working = (workUs: number): Case => ({
  name: 'channel.work',
  variant: `kernels of ${workUs} us`,
  count: { of: 'microseconds', value: workUs },
  what: 'as channel.ahead with 8 slots, and a kernel in both processes for each slot',
  calls: AHEAD,
  untimed: UNTIMED,
  needsGpu: true,
  peers: [],
  open: openCase([channelAhead(8, workUs)], 0),
});

const toMany = (consumers: number): Case => ({
  name: 'channel.consumers',
  variant: `${consumers}`,
  count: { of: 'consumers', value: consumers },
  what: 'a slot of 1 MiB goes to so many processes, until all have released it',
  calls: 100,
  untimed: UNTIMED,
  isOnce: true,
  peers: [],
  open: openCase([channelToMany(consumers)], MIB),
});

export const channelCases: readonly Case[] = [
  ...[MIB, LARGE].map(roundTrip),
  ...SLOTS.map(ahead),
  diagnostics,
  python,
  ...WORK_US.map(working),
  ...CONSUMERS.map(toMany),
];
