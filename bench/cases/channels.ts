/** Messages through channels: a slot to another process and back, and slots that streams wait for. */
import { sizeName } from '../format.ts';
import type { DriverChoice } from '../results.ts';
import { busyChannel, channelAhead, quietChannel } from '../ways/channels.ts';
import type { Children } from '../ways/children.ts';
import { emptyMessage } from '../ways/messages.ts';
import { mapped } from '../ways/sharing.ts';
import { openWays, type Way } from '../ways/way.ts';
import { type Case, inPeers } from './case.ts';

const MIB = 1 << 20;
const LARGE = 1024 * MIB;
const SLOTS = [1, 8, 64];
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
  what: 'a slot is published, and released by another process; the others hand over a buffer that it has mapped',
  calls: 200,
  untimed: 20,
  needsGpu: byteLength >= LARGE,
  peers: inPeers('handOver.mapped', 'C', 'numba', 'cuda.core', 'torch'),
  open: openCase(
    [
      quietChannel,
      busyChannel,
      named('cuffi, peer.send', mapped),
      named('cuffi, an empty message', emptyMessage),
    ],
    byteLength,
  ),
});

const ahead = (slots: number): Case => ({
  name: 'channel.ahead',
  variant: slots === 1 ? '1 slot' : `${slots} slots`,
  count: { of: 'slots', value: slots },
  what: 'the streams of two processes wait for the slots; the time of one slot. C waits for counters alone',
  calls: AHEAD,
  untimed: AHEAD,
  peers: [{ peer: 'C', batch: `handOver.ring.${slots}` }],
  open: openCase([channelAhead(slots)], 0),
});

export const channelCases: readonly Case[] = [...[MIB, LARGE].map(roundTrip), ...SLOTS.map(ahead)];
