/** Through which doors the bad data of each row of refused.json can come in. */
import type { RefusalVector } from './run-vectors.ts';

/** A way by which data of another process gets in. */
export const doors = [
  'reader',
  'connection',
  'request',
  'answer',
  'bytes',
  'JSON',
  'handle',
  'question',
  'shared memory',
] as const;

export type Door = (typeof doors)[number];

/** For each door true, or why the data cannot come in there. */
type Reach = Readonly<Record<Door, true | string>>;

const NOT_A_VALUE = 'it is not part of a value';
const NOT_PASSED_ON = 'programs pass on descriptors only';
const NOT_WORDS = 'no word of shared memory holds it';
const WHOLE_END = 'only a whole end can refuse it';

const only = (...open: readonly Door[]): Reach => ({
  reader: WHOLE_END,
  connection: 'no message contains it',
  request: NOT_A_VALUE,
  answer: NOT_A_VALUE,
  bytes: NOT_PASSED_ON,
  JSON: NOT_PASSED_ON,
  handle: NOT_PASSED_ON,
  question: NOT_PASSED_ON,
  'shared memory': NOT_WORDS,
  ...Object.fromEntries(open.map((door) => [door, true])),
});

/** By the kind of the row. */
const reach: Readonly<Record<string, Reach>> = {
  value: only('reader', 'connection', 'request', 'answer'),
  control: only('reader', 'connection'),
  message: only('reader', 'connection', 'request', 'answer'),
  fields: only('reader', 'connection', 'request', 'answer', 'bytes', 'JSON', 'handle', 'question'),
  descriptor: only('reader', 'bytes'),
  json: only('reader', 'JSON', 'handle', 'question'),
  hello: only('reader', 'connection'),
  frames: only('reader', 'connection'),
  record: only('reader', 'shared memory'),
  memory: only('reader', 'connection'),
  lifeline: only('reader', 'connection'),
  object: only('reader', 'connection'),
  fds: only('connection', 'request', 'answer'),
  exporter: only('connection', 'request', 'answer', 'bytes', 'JSON', 'handle', 'question'),
  messages: only('connection'),
  channel: only('shared memory'),
};

/** The doors of a row: whether its data can come in there, or why not. */
export function doorsOf(row: RefusalVector): Reach {
  const all = reach[row.of];
  if (!all) throw new Error(`the doors of ${row.of} are not stated`);
  const { json, fields } = row;
  const isLegacy = row.of !== 'exporter' || fields['kind'] === 'legacy';
  if (row.isChannel) return only('connection', 'request', 'answer');
  return {
    ...all,
    ...(row.of === 'fields' && json === undefined && onlyBytes),
    ...(!isLegacy && { handle: 'a handle is of plain memory' }),
  };
}

const onlyBytes = Object.fromEntries(
  (['JSON', 'handle', 'question'] as const).map((door) => [door, 'JSON has no such field']),
);

/** Why the companion for Python has no such doors. */
const notInPython: Partial<Record<Door, string>> = {
  bytes: 'it opens no descriptors that programs pass on',
  JSON: 'it opens no descriptors that programs pass on',
  handle: 'it opens no descriptors that programs pass on',
  question: 'it confirms no descriptors, and reads none',
};

/** The doors of the companion that data of a row can come in through. */
export function doorsInPython(row: RefusalVector): Door[] {
  if (row.of === 'descriptor' || row.of === 'json') return [];
  return openDoors(row).filter((door) => notInPython[door] === undefined);
}

/** The doors of Node that data of a row can come in through. */
export function openDoors(row: RefusalVector): Door[] {
  const reached = doorsOf(row);
  return doors.filter((door) => reached[door] === true);
}

/**
 * The code of the error at a door. An end that is asked for an object says only that it has not got it. To a
 * program, a descriptor of its own process without an object is one of an object that was closed.
 */
export function codeAt({ code }: RefusalVector, door: Door): string {
  if (door === 'question') return 'exporter-gone';
  const isPassedOn = door === 'bytes' || door === 'JSON' || door === 'handle';
  return isPassedOn && code === 'same-process' ? 'exporter-gone' : code;
}

/** What becomes of the connection. An end that is asked for an object answers, and goes on. */
export const outcomeAt = ({ connection }: RefusalVector, door: Door): string | undefined =>
  door === 'question' ? 'goes on' : connection;
