/**
 * Every fact of the protocol. Generated from src/protocol/protocol.json by `npm run protocol`: change that.
 * docs/protocol.md says what they mean.
 */

/** The versions that this package speaks. */
export const VERSIONS = {'min':4,'max':4} as const;

/** The most bytes of a packet, which is one frame. */
export const PACKET_BYTE_LENGTH = 65536;

/** The most file descriptors of a packet. */
export const PACKET_FDS = 253;

/** The bytes that each frame begins with. */
export const HEADER_BYTE_LENGTH = 20;

/** The first bytes of each frame. */
export const FRAME_MAGIC = 'cu';

/** The first bytes of a descriptor that a program passes on as bytes. */
export const DESCRIPTOR_MAGIC = 'cufd';

/** The environment variable that gives a child its end of the connection: the number of the descriptor and the socket's inode. */
export const PARENT_VARIABLE = 'CUFFI_PARENT';

/** How long an end waits before it says that it takes no requests, or no values. */
export const READINESS_WAIT_MS = 200;

/** The bytes of a handle of the driver. */
export const HANDLE_BYTE_LENGTH = 64;

/** The bytes of a random identity, and of a UUID. */
export const ID_BYTE_LENGTH = 16;

/** The bytes of a shared word. */
export const WORD_BYTE_LENGTH = 8;

/** The size of a page of shared words; the ring and the seats of a channel end at a whole page. */
export const PAGE_BYTE_LENGTH = 4096;

/** The counters of a connection's page. */
export const COUNTER_COUNT = 512;

/** 2^63 - 1: the value that ends all waits for a word. */
export const END_OF_WAITS = 0x7fffffffffffffffn;

/** The bytes of a message's record in a ring. */
export const RECORD_BYTE_LENGTH = 1600;

/** The distance from slot to slot is a multiple of so many bytes. */
export const SLOT_ALIGNMENT = 256;

/** The most bytes of a value. */
export const MAX_VALUE_BYTE_LENGTH = 16777216;

/** The most parts of a value, counting each null and number. */
export const MAX_VALUE_PARTS = 1048576;

/** The most levels of arrays, objects, Maps, Sets and errors. */
export const MAX_VALUE_DEPTH = 64;

/** The most parts of binary data in a value. */
export const MAX_VALUE_BINARIES = 131072;

/** The most Maps, Sets and errors in a value. */
export const MAX_VALUE_COLLECTIONS = 131072;

/** The most hexadecimal digits of a bigint. */
export const MAX_BIGINT_DIGITS = 1048576;

/** The most UTF-16 code units of the name of a property. */
export const MAX_NAME_LENGTH = 16383;

/** The most collisions of the keys of a Map or the members of a Set. */
export const MAX_COLLISIONS = 2048;

/** The most further collisions for each key. */
export const MAX_COLLISIONS_PER_KEY = 16;

/** The most further steps for each key, for an end that counts the steps of its own table. */
export const MAX_STEPS_PER_KEY = 32;

/** The most keys whose collisions are not counted. */
export const MAX_UNCOUNTED_KEYS = 64;

/** The most GPU objects of a value. */
export const MAX_VALUE_OBJECTS = 4096;

/** The most bytes of the table of objects of a value. */
export const MAX_TABLE_BYTE_LENGTH = 4194304;

/** The most bytes of the fields of an object. */
export const MAX_OBJECT_BYTE_LENGTH = 4096;

/** The most axes of an array. */
export const MAX_AXES = 64;

/** The most bytes of a control block. */
export const MAX_CONTROL_BYTE_LENGTH = 1048576;

/** The most entries of a list in a control block. */
export const MAX_CONTROL_ENTRIES = 4096;

/** The most points in all releases of a message. */
export const MAX_RELEASE_POINTS = 2048;

/** The most bytes of a question about a descriptor, and of its answer. */
export const MAX_VERIFICATION_BYTE_LENGTH = 32768;

/** The most bytes of text in a hello. */
export const MAX_PACKAGE_NAME_BYTE_LENGTH = 1024;

/** The most requests that wait for their answers. */
export const MAX_PENDING_REQUESTS = 1024;

/** The most bytes of requests that wait for their answers. */
export const MAX_PENDING_REQUEST_BYTE_LENGTH = 67108864;

/** The most values that wait for `receive`, before an end stops reading. */
export const MAX_QUEUED_VALUES = 64;

/** The most bytes of values that wait for `receive`, before an end stops reading. */
export const MAX_QUEUED_BYTE_LENGTH = 16777216;

/** The most file descriptors of values that wait for `receive`, before an end stops reading. */
export const MAX_QUEUED_FDS = 64;

/** The most slots of a channel. */
export const MAX_SLOTS = 1024;

/** The most bytes of the JSON of `meta`. */
export const MAX_META_BYTE_LENGTH = 1024;

/** What a frame belongs to. */
export const FrameKind = {
  hello: 0,
  value: 1,
  control: 2,
  verification: 3,
  request: 5,
  response: 6,
  failure: 7,
  cancellation: 8,
  unserved: 9,
} as const;
export type FrameKind = (typeof FrameKind)[keyof typeof FrameKind];

/** Where the numbers of a frame's header begin. */
export const HeaderOffset = {
  magic: 0,
  version: 2,
  kind: 3,
  sequence: 4,
  byteLength: 8,
  offset: 12,
  request: 16,
} as const;
export type HeaderOffset = (typeof HeaderOffset)[keyof typeof HeaderOffset];

/** The first byte of each part of a value. */
export const Tag = {
  undefined: 0,
  null: 1,
  false: 2,
  true: 3,
  int32: 4,
  float64: 5,
  latin1: 6,
  utf16: 7,
  bigint64: 8,
  bigint: 9,
  array: 10,
  object: 11,
  binary: 12,
  gpuObject: 13,
  hole: 14,
  date: 15,
  map: 16,
  set: 17,
  error: 18,
} as const;
export type Tag = (typeof Tag)[keyof typeof Tag];

/** What an encoded error has, as bits, in this order. All but the cause are strings. */
export const ErrorField = {
  name: 1,
  message: 2,
  stack: 4,
  code: 8,
  cause: 16,
} as const;
export type ErrorField = (typeof ErrorField)[keyof typeof ErrorField];

/** The fields of a control block, in their order. */
export const ControlField = {
  timelinePage: 1,
  points: 2,
  released: 3,
  revoked: 4,
  closing: 5,
  forwardRequests: 6,
  closedPools: 7,
  done: 8,
  begun: 9,
} as const;
export type ControlField = (typeof ControlField)[keyof typeof ControlField];

/** What an end has begun, as bits. Allowed are 1, 2, 3 and 6. */
export const Begun = {
  receiving: 1,
  serving: 2,
  ignoringValues: 4,
} as const;
export type Begun = (typeof Begun)[keyof typeof Begun];

/** The words of a timeline's page. */
export const TimelineWord = {
  value: 0,
  last: 1,
  pid: 2,
  pidNamespace: 3,
  outcome: 4,
} as const;
export type TimelineWord = (typeof TimelineWord)[keyof typeof TimelineWord];

/** How a timeline has ended. */
export const Outcome = {
  open: 0,
  closed: 1,
  abandoned: 2,
} as const;
export type Outcome = (typeof Outcome)[keyof typeof Outcome];

/** The words of a channel's ring. All are the producer's. */
export const RingWord = {
  published: 0,
  closedAt: 1,
  producerSleeps: 2,
  producerPid: 3,
  producerNamespace: 4,
  filled: 8,
} as const;
export type RingWord = (typeof RingWord)[keyof typeof RingWord];

/** The words of a consumer's seat. The first two, and what is released, are the consumer's, the others the producer's. */
export const SeatWord = {
  asleep: 0,
  wanted: 1,
  start: 4,
  granted: 5,
  isFinished: 6,
  released: 8,
} as const;
export type SeatWord = (typeof SeatWord)[keyof typeof SeatWord];

/** Where the fields of a message's record begin. */
export const RecordOffset = {
  flags: 0,
  metaByteLength: 4,
  ndim: 8,
  dtype: 16,
  shape: 32,
  meta: 544,
} as const;
export type RecordOffset = (typeof RecordOffset)[keyof typeof RecordOffset];

/** What a record has, as bits. */
export const RecordFlag = {
  skipped: 1,
  layout: 2,
} as const;
export type RecordFlag = (typeof RecordFlag)[keyof typeof RecordFlag];

/** The properties of a channel, as bits. */
export const ChannelFlag = {
  toOne: 1,
  ahead: 2,
} as const;
export type ChannelFlag = (typeof ChannelFlag)[keyof typeof ChannelFlag];

/** The types of binary data, by their number, and the bytes of an item. */
export const binaryTypeFacts = [
    ['ArrayBuffer',1],
    ['DataView',1],
    ['Uint8Array',1],
    ['Int8Array',1],
    ['Uint8ClampedArray',1],
    ['Uint16Array',2],
    ['Int16Array',2],
    ['Uint32Array',4],
    ['Int32Array',4],
    ['Float32Array',4],
    ['Float64Array',8],
    ['BigUint64Array',8],
    ['BigInt64Array',8],
  ] as const;

/** The classes that an error arrives as, by their number. */
export const errorTypeNames = ['Error','TypeError','RangeError','SyntaxError','ReferenceError','EvalError','URIError','AggregateError'] as const;

/** The access that a receiver may have, by its number. */
export const ACCESS = ['read-write','read'] as const;

/** Prefixes of the UUID of a GPU and of a MIG slice, by their number. */
export const DEVICE_PREFIXES = ['GPU-','MIG-'] as const;

/** The types of numbers: bytes, the least and the greatest value. */
export const NUMBERS = {
  uint32: [4, 0, 4294967295],
  positive32: [4, 1, 4294967295],
  size: [8, 0, 9007199254740991],
  positive: [8, 1, 9007199254740991],
  stride: [8, -9007199254740991, 9007199254740991],
} as const;

/** The kinds of objects. The index is the number of the kind. */
export const objectKinds = ['legacy','pool','virtual','event','timeline','signaler','pinned','channel'] as const;

/** The fields of an exporter. */
export const exporterFields = [
    ['device','device'],
    ['machine','uuid'],
    ['pid','positive32'],
    ['startTime','size'],
    ['pidNamespace','size'],
  ] as const;

/** The fields behind those of the exporter. */
export const descriptorFields = {
  legacy: [
    ['handle','handle'],
    ['baseByteLength','positive'],
    ['byteOffset','size'],
    ['byteLength','positive'],
    ['access','access'],
    ['bufferId','size'],
    ['generation','size'],
    ['layout','layout?'],
    ['readyEvent','event?'],
  ],
  pool: [
    ['pool','id'],
    ['handle','handle?'],
    ['baseByteLength','size'],
    ['byteOffset','size'],
    ['byteLength','size'],
    ['access','access'],
    ['bufferId','size'],
    ['generation','size'],
    ['layout','layout?'],
    ['readyEvent','event?'],
  ],
  virtual: [
    ['memory','id'],
    ['firstPiece','uint32'],
    ['pieces','pieces'],
    ['baseByteLength','positive'],
    ['byteOffset','size'],
    ['byteLength','positive'],
    ['access','access'],
    ['bufferId','size'],
    ['generation','size'],
    ['layout','layout?'],
    ['readyEvent','event?'],
  ],
  event: [
    ['handle','handle'],
  ],
} as const;

/** The fields of objects that name no exporter. */
export const hostFields = {
  timeline: [
  ],
  signaler: [
    ['last','size'],
  ],
  pinned: [
    ['byteLength','positive'],
  ],
  channel: [
    ['slots','positive32'],
    ['stride','positive'],
    ['byteLength','positive'],
    ['layout','layout?'],
    ['flags','uint32'],
    ['memory','virtual'],
  ],
} as const;
