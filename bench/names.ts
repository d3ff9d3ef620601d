/** What readers see in place of the names of cases and contestants: titles in words, and colours. */
import { byClock } from './format.ts';
import type { CaseResult } from './results.ts';

/** Titles of cases and suites whose names are not those of a call. */
const TITLES: Readonly<Record<string, string>> = {
  connection: 'empty message',
  'connection.message': 'small message',
  'hand-over.mapped': 'mapped buffer',
  'hand-over.pool': 'new buffer of a known pool',
  'hand-over.first.legacy': 'first time, by legacy handle',
  'hand-over.first.pool': 'first time, of a new pool',
  'hand-over.first.virtual': 'first time, virtual memory',
  'hand-over.new.legacy': 'new memory, by legacy handle',
  'hand-over.new.pool': 'new memory, of a new pool',
  'hand-over.new.virtual': 'new virtual memory',
  'diagnostics.hand-over': 'mapped buffer, watched',
  'diagnostics.channel': 'slot of a channel, watched',
  'diagnostics.check': 'asking whether somebody watches',
  'hand-over.python': 'mapped buffer, Node to Python',
  'hand-over.polled': 'timelines, the CPU polls',
  'hand-over.queued': 'timelines, queued before',
  'channel.roundTrip': 'slot of a channel',
  'channel.ahead': 'slots ahead of the work',
  'channel.python': 'slots ahead of the work, Node to Python',
  'channel.work': 'slots ahead of the work, with kernels',
  'channel.consumers': 'slot to several consumers',
  'waits.cpu': 'CPU time while waits are pending',
  'waits.stat': 'fs.stat while waits are pending',
  'copyFrom.pinned': 'copyFrom, page-locked',
  'copyToHost.pinned': 'copyToHost, page-locked',
  'copyTo.gpu': 'copyTo, on the GPU',
  'transfer.toDevice': 'transfer to the device',
  'transfer.toHost': 'transfer to the host',
  'array.copyTo.rows': 'array.copyTo, rows with gaps',
  'kernel.saxpy': 'y = a x + y',
  'scale.consumers': 'buffer to several processes at once',
  'scale.buffers': 'one more buffer of a pool',
  'receiver.killed': 'memory of a killed receiver',
  'startup.process': 'process, until it has allocated',
  'startup.imported': 'process, until it has imported cuffi',
  'startup.import': 'import of cuffi',
  'startup.allocate': 'first allocation',
  'event-loop': 'delay of a timer',
  'event-loop.waits': 'delay of a timer while waits are pending',
};

/** The name of a case in words; calls of cuffi keep theirs. */
export const wordsOf = (name: string): string => TITLES[name] ?? name;

/** As the title of a picture: words begin with a capital letter, the names of calls stay as they are. */
export const titleOfPicture = (name: string): string => {
  const words = wordsOf(name);
  return /^[a-z]+\b(?![.(])/.test(words) && !/^[a-z]+[A-Z]/.test(words)
    ? `${words[0]?.toUpperCase()}${words.slice(1)}`
    : words;
};

/** The same with the size or number, and whose clock timed it. */
export const captionOf = ({ name, variant, clock }: CaseResult): string =>
  `${wordsOf(name)}${variant === undefined || variant === null ? '' : `, ${variant}`}${byClock(clock)}`;

/**
 * The colour of a contestant in every picture. Colour-blind readers can distinguish those that meet in
 * one picture (Okabe and Ito), by their shapes as well. Names alike have one colour: they never meet.
 */
export function colourOf(contestant: string): string {
  const [, colour] = COLOURS.find(([names]) => names.test(contestant)) ?? [];
  return colour ?? '#A9B4BD';
}

/** The shape of a contestant's points in every picture, so that two of a similar colour differ. */
export const shapeOf = (contestant: string): string => {
  const [, , shape] = COLOURS.find(([names]) => names.test(contestant)) ?? [];
  return shape ?? 'circle';
};

const COLOURS: readonly (readonly [names: RegExp, colour: string, shape: string])[] = [
  [
    /^cuffi(, (awaited|PinnedBuffer|node))?$|^mapped already$|^from the cache$/,
    '#0072B2',
    'circle',
  ],
  [/^cuffi, (busy polling|Sync|pin\(\).*|tsx|32 at once)$|^new buffer/, '#56B4E9', 'square'],
  [/^cuffi, (ready and done points|peer\.send|process\.send)$/, '#003F6B', 'triangle-up'],
  [/^cuffi, (a word read|Node to Node|without a graph)$/, '#666600', 'diamond'],
  [/^cuffi, (an empty message|Python to Node)$/, '#41B6C4', 'cross'],
  [/^raw ffi(, PinnedBuffer)?$|^driver, /, '#8C510A', 'triangle-left'],
  [/^raw ffi, |^ctypes$/, '#C49A6C', 'triangle-right'],
  [/^copying, socket$|^a timer of /, '#D55E00', 'square'],
  [/^copying, shared memory$/, '#E69F00', 'triangle-up'],
  [/^copying, page-locked shared memory$/, '#CC79A7', 'diamond'],
  [/^C(, (cuMemHostAlloc|cuStreamQuery))?$/, '#000000', 'cross'],
  [/^C, eventfd$/, '#A0A0A0', 'triangle-up'],
  [/^C, futex$/, '#C4C4C4', 'square'],
  [/^C, spinning$/, '#4A4A4A', 'diamond'],
  [/^C, /, '#7A7A7A', 'triangle-down'],
  [/^bare Node, /, '#8A8A3C', 'triangle-left'],
  [/^numba$/, '#009E73', 'circle'],
  [/^cuda\./, '#7B3FA0', 'square'],
  [/^torch/, '#B2182B', 'triangle-left'],
  [/^cupy/, '#5AAE61', 'triangle-right'],
  [/^node:net$|^process\.send$/, '#555555', 'circle'],
  [/^copy(From|ToHost), /, '#0072B2', 'circle'],
];
