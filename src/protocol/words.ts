/** Test vectors of words of shared memory: operations, the words after them, and what a reader then finds. */
import type { Json, PlainWriter, Vector } from './writer.ts';

export function* words(writer: PlainWriter): Iterable<Vector> {
  const end = String(BigInt(writer.constant('endOfWaits')));
  const ring = writer.members('RingWord') as Record<string, number>;
  const seat = writer.members('SeatWord') as Record<string, number>;
  const line = writer.members('TimelineWord') as Record<string, number>;
  const outcome = writer.members('Outcome');
  type Word = readonly [name: string | number, value: number | string | undefined];
  const at = (names: Record<string, number>, entries: readonly Word[]) =>
    Object.fromEntries(
      entries.map(([name, value]) => [
        typeof name === 'string' ? names[name] : name,
        String(value),
      ]),
    );
  const filled = (slot: number): number => (ring['filled'] as number) + slot;
  const released = (slot: number): number => (seat['released'] as number) + slot;

  const ringVector = (
    name: string,
    operations: readonly (readonly Json[])[],
    entries: readonly Word[],
    reads: object,
    records = true,
  ): Vector => ({
    name,
    of: 'ring',
    slots: 3,
    records,
    byteLength: 2 * 4096 - (records ? 0 : 4096),
    operations,
    // Which process it is.
    ignore: [ring['producerPid'], ring['producerNamespace']],
    words: at(ring, entries),
    reads: { published: 0, closedAt: null, producerSleeps: false, ...reads },
  });
  yield ringVector('a new ring', [], [], { filled: [0, 0, 0].map((_, n) => [n, false]) });
  yield ringVector('a producer that sleeps', [['sleep', true]], [['producerSleeps', 1]], {
    producerSleeps: true,
    filled: [],
  });
  yield ringVector(
    'three messages are published and two filled',
    [
      ['publish', 3],
      ['fill', 0],
      ['fill', 1],
    ],
    [
      ['published', 3],
      [filled(0), 1],
      [filled(1), 2],
    ],
    {
      published: 3,
      filled: [
        [0, true],
        [1, true],
        [2, false],
        [3, false],
      ],
    },
  );
  yield ringVector(
    'slots are used again',
    [
      ['publish', 3],
      ['fill', 0],
      ['fill', 1],
      ['fill', 2],
      ['publish', 5],
      ['fill', 3],
      ['fill', 4],
    ],
    [
      ['published', 5],
      [filled(0), 4],
      [filled(1), 5],
      [filled(2), 3],
    ],
    {
      published: 5,
      filled: [
        [0, true],
        [2, true],
        [3, true],
        [4, true],
        [5, false],
      ],
    },
  );
  yield ringVector(
    'a ring is closed after one message',
    [
      ['publish', 1],
      ['fill', 0],
      ['close', 1],
    ],
    [
      ['published', 1],
      ['closedAt', 2],
      [filled(0), 1],
    ],
    { published: 1, closedAt: 1, filled: [[0, true]] },
  );
  yield ringVector('a ring is closed without a message', [['close', 0]], [['closedAt', 1]], {
    closedAt: 0,
    filled: [],
  });
  yield ringVector(
    'the producer ends the waits of streams',
    [['publish', 4], ['fill', 0], ['fill', 1], ['fill', 3], ['endWaits']],
    [
      ['published', 4],
      [filled(0), end],
      [filled(1), end],
      [filled(2), end],
      [filled(3), 4],
      [filled(4), 2],
    ],
    {
      published: 4,
      filled: [
        [3, true],
        [1, true],
        [2, false],
        [4, false],
      ],
    },
    false,
  );
  yield ringVector(
    'words that are no values',
    [
      ['store', ring['published'] as number, '9007199254740992'],
      ['store', filled(0), '18446744073709551615'],
      ['store', filled(1), '9007199254740991'],
    ],
    [
      ['published', '9007199254740992'],
      [filled(0), '18446744073709551615'],
      [filled(1), '9007199254740991'],
    ],
    {
      published: null,
      filled: [
        [0, false],
        [1, true],
      ],
    },
  );

  const seatVector = (
    name: string,
    start: number,
    operations: readonly (readonly Json[])[],
    entries: readonly Word[],
    reads: object,
  ): Vector => ({
    name,
    of: 'seat',
    slots: 3,
    byteLength: 4096,
    start,
    operations,
    words: at(seat, start > 0 ? [['start', start], ...entries] : entries),
    reads: {
      start,
      asleep: false,
      wanted: 0,
      granted: 0,
      grants: [],
      released: [],
      finished: false,
      ...reads,
    },
  });
  yield seatVector('a new seat', 17, [], [], {});
  yield seatVector(
    'a consumer sleeps, and wants two messages',
    0,
    [
      ['sleep', true],
      ['want', 2],
    ],
    [
      ['asleep', 1],
      ['wanted', 2],
    ],
    { asleep: true, wanted: 2 },
  );
  yield seatVector(
    'messages are granted',
    0,
    [
      ['want', 4],
      ['grant', 0, false],
      ['grant', 2, false],
      ['grant', 1, true],
      ['grant', 5, false],
    ],
    [
      ['wanted', 4],
      ['granted', 4],
      [released(3), 5],
      [released(5), 2],
      [released(7), 1],
      [released(8), 1],
    ],
    {
      wanted: 4,
      granted: 4,
      grants: [
        [1, 2, false],
        [2, 1, true],
        [3, 5, false],
      ],
    },
  );
  yield seatVector(
    'messages are released',
    2,
    [
      ['release', 2],
      ['release', 4],
      ['release', 3],
      ['release', 5],
    ],
    [
      [released(0), 4],
      [released(1), 5],
      [released(2), 6],
    ],
    {
      released: [
        [2, true],
        [3, true],
        [4, true],
        [5, true],
        [6, false],
      ],
    },
  );
  yield seatVector(
    'a consumer ends the waits of streams',
    0,
    [['release', 0], ['endWaits']],
    [
      [released(0), end],
      [released(1), end],
      [released(2), end],
    ],
    {
      released: [
        [0, true],
        [1, true],
        [2, true],
      ],
    },
  );
  yield seatVector('no further grants', 0, [['finish']], [['isFinished', 1]], { finished: true });

  const timelineVector = (
    name: string,
    operations: readonly (readonly Json[])[],
    entries: readonly Word[],
    value: number,
    ended: false | 'closed' | 'abandoned',
  ): Vector => ({
    name,
    of: 'timeline',
    byteLength: 4096,
    operations,
    ignore: [line['pid'], line['pidNamespace']],
    words: at(line, entries),
    reads: { value, ended: ended !== false, abandoned: ended === 'abandoned' },
  });
  const closed = ['outcome', outcome['closed']] as const;
  const abandoned = ['outcome', outcome['abandoned']] as const;
  yield timelineVector('a new timeline', [], [], 0, false);
  yield timelineVector('a timeline at 7', [['signal', 7]], [['value', 7]], 7, false);
  yield timelineVector(
    'a timeline ends at 7',
    [['signal', 7], ['end']],
    [['value', end], ['last', 7], closed],
    7,
    'closed',
  );
  yield timelineVector(
    'a timeline ends without a value',
    [['end']],
    [['value', end], closed],
    0,
    'closed',
  );
  yield timelineVector(
    'a timeline ends twice',
    [['signal', 7], ['end'], ['end']],
    [['value', end], ['last', 7], closed],
    7,
    'closed',
  );
  yield timelineVector(
    'a timeline whose promise is broken',
    [['signal', 7], ['abandon']],
    [['value', end], ['last', 7], abandoned],
    7,
    'abandoned',
  );
  yield timelineVector(
    'a device stores behind the end',
    [['signal', 7], ['end'], ['store', 0, '9']],
    [['value', 9], ['last', 7], closed],
    7,
    'closed',
  );
  yield timelineVector(
    'the end is stored again behind a late value',
    [['signal', 7], ['end'], ['store', 0, '9'], ['end']],
    [['value', end], ['last', 9], closed],
    9,
    'closed',
  );
  yield timelineVector(
    'a late value behind a broken promise counts for nobody',
    [['signal', 7], ['abandon'], ['store', 0, '9'], ['abandon']],
    [['value', end], ['last', 7], abandoned],
    7,
    'abandoned',
  );

  const most = writer.constant('counterCount') - 1;
  yield {
    name: 'the counters of a connection',
    of: 'counters',
    byteLength: 4096,
    operations: [
      ['advance', 0, 1],
      ['advance', most, 300],
      ['advance', most, 299],
      ['advance', 5, 2 ** 31],
    ],
    words: { 0: '1', 5: String(2 ** 31), [most]: '300' },
    reads: {
      reached: [
        [0, 1, true],
        [0, 2, false],
        [1, 1, false],
        [most, 300, true],
        [most, 301, false],
        [5, 2 ** 31, true],
      ],
    },
  };
}
