"""Every fact of the protocol. Generated from src/protocol/protocol.json by `npm run protocol`: change that."""

# The versions that this package speaks.
MIN_VERSION, MAX_VERSION = 4, 4

# The most bytes of a packet, which is one frame.
PACKET_BYTE_LENGTH = 65536
# The most file descriptors of a packet.
PACKET_FDS = 253
# The bytes that each frame begins with.
HEADER_BYTE_LENGTH = 20
# The first bytes of each frame.
FRAME_MAGIC = 'cu'
# The first bytes of a descriptor that a program passes on as bytes.
DESCRIPTOR_MAGIC = 'cufd'
# The environment variable that gives a child its end of the connection: the number of the descriptor and the socket's inode.
PARENT_VARIABLE = 'CUFFI_PARENT'
# How long an end waits before it says that it takes no requests, or no values.
READINESS_WAIT_MS = 200
# The bytes of a handle of the driver.
HANDLE_BYTE_LENGTH = 64
# The bytes of a random identity, and of a UUID.
ID_BYTE_LENGTH = 16
# The bytes of a shared word.
WORD_BYTE_LENGTH = 8
# The size of a page of shared words; the ring and the seats of a channel end at a whole page.
PAGE_BYTE_LENGTH = 4096
# The counters of a connection's page.
COUNTER_COUNT = 512
# 2^63 - 1: the value that ends all waits for a word.
END_OF_WAITS = 0x7fffffffffffffff
# The bytes of a message's record in a ring.
RECORD_BYTE_LENGTH = 1600
# The distance from slot to slot is a multiple of so many bytes.
SLOT_ALIGNMENT = 256
# The most bytes of a value.
MAX_VALUE_BYTE_LENGTH = 16777216
# The most parts of a value, counting each null and number.
MAX_VALUE_PARTS = 1048576
# The most levels of arrays, objects, Maps, Sets and errors.
MAX_VALUE_DEPTH = 64
# The most parts of binary data in a value.
MAX_VALUE_BINARIES = 131072
# The most Maps, Sets and errors in a value.
MAX_VALUE_COLLECTIONS = 131072
# The most hexadecimal digits of a bigint.
MAX_BIGINT_DIGITS = 1048576
# The most UTF-16 code units of the name of a property.
MAX_NAME_LENGTH = 16383
# The most collisions of the keys of a Map or the members of a Set.
MAX_COLLISIONS = 2048
# The most further collisions for each key.
MAX_COLLISIONS_PER_KEY = 16
# The most further steps for each key, for an end that counts the steps of its own table.
MAX_STEPS_PER_KEY = 32
# The most keys whose collisions are not counted.
MAX_UNCOUNTED_KEYS = 64
# The most GPU objects of a value.
MAX_VALUE_OBJECTS = 4096
# The most bytes of the table of objects of a value.
MAX_TABLE_BYTE_LENGTH = 4194304
# The most bytes of the fields of an object.
MAX_OBJECT_BYTE_LENGTH = 4096
# The most axes of an array.
MAX_AXES = 64
# The most bytes of a control block.
MAX_CONTROL_BYTE_LENGTH = 1048576
# The most entries of a list in a control block.
MAX_CONTROL_ENTRIES = 4096
# The most points in all releases of a message.
MAX_RELEASE_POINTS = 2048
# The most bytes of a question about a descriptor, and of its answer.
MAX_VERIFICATION_BYTE_LENGTH = 32768
# The most bytes of text in a hello.
MAX_PACKAGE_NAME_BYTE_LENGTH = 1024
# The most requests that wait for their answers.
MAX_PENDING_REQUESTS = 1024
# The most bytes of requests that wait for their answers.
MAX_PENDING_REQUEST_BYTE_LENGTH = 67108864
# The most values that wait for `receive`, before an end stops reading.
MAX_QUEUED_VALUES = 64
# The most bytes of values that wait for `receive`, before an end stops reading.
MAX_QUEUED_BYTE_LENGTH = 16777216
# The most file descriptors of values that wait for `receive`, before an end stops reading.
MAX_QUEUED_FDS = 64
# The most slots of a channel.
MAX_SLOTS = 1024
# The most bytes of the JSON of `meta`.
MAX_META_BYTE_LENGTH = 1024

# What a frame belongs to.
FRAME_HELLO = 0
FRAME_VALUE = 1
FRAME_CONTROL = 2
FRAME_VERIFICATION = 3
FRAME_REQUEST = 5
FRAME_RESPONSE = 6
FRAME_FAILURE = 7
FRAME_CANCELLATION = 8
FRAME_UNSERVED = 9

# Where the numbers of a frame's header begin.
HEADER_AT_MAGIC = 0
HEADER_AT_VERSION = 2
HEADER_AT_KIND = 3
HEADER_AT_SEQUENCE = 4
HEADER_AT_BYTE_LENGTH = 8
HEADER_AT_OFFSET = 12
HEADER_AT_REQUEST = 16

# The first byte of each part of a value.
TAG_UNDEFINED = 0
TAG_NULL = 1
TAG_FALSE = 2
TAG_TRUE = 3
TAG_INT32 = 4
TAG_FLOAT64 = 5
TAG_LATIN1 = 6
TAG_UTF16 = 7
TAG_BIGINT64 = 8
TAG_BIGINT = 9
TAG_ARRAY = 10
TAG_OBJECT = 11
TAG_BINARY = 12
TAG_GPU_OBJECT = 13
TAG_HOLE = 14
TAG_DATE = 15
TAG_MAP = 16
TAG_SET = 17
TAG_ERROR = 18

# What an encoded error has, as bits, in this order. All but the cause are strings.
ERROR_NAME = 1
ERROR_MESSAGE = 2
ERROR_STACK = 4
ERROR_CODE = 8
ERROR_CAUSE = 16

# The fields of a control block, in their order.
CONTROL_TIMELINE_PAGE = 1
CONTROL_POINTS = 2
CONTROL_RELEASED = 3
CONTROL_REVOKED = 4
CONTROL_CLOSING = 5
CONTROL_FORWARD_REQUESTS = 6
CONTROL_CLOSED_POOLS = 7
CONTROL_DONE = 8
CONTROL_BEGUN = 9

# What an end has begun, as bits. Allowed are 1, 2, 3 and 6.
BEGUN_RECEIVING = 1
BEGUN_SERVING = 2
BEGUN_IGNORING_VALUES = 4

# The words of a timeline's page.
TIMELINE_VALUE = 0
TIMELINE_LAST = 1
TIMELINE_PID = 2
TIMELINE_PID_NAMESPACE = 3
TIMELINE_OUTCOME = 4

# How a timeline has ended.
OUTCOME_OPEN = 0
OUTCOME_CLOSED = 1
OUTCOME_ABANDONED = 2

# The words of a channel's ring. All are the producer's.
RING_PUBLISHED = 0
RING_CLOSED_AT = 1
RING_PRODUCER_SLEEPS = 2
RING_PRODUCER_PID = 3
RING_PRODUCER_NAMESPACE = 4
RING_FILLED = 8

# The words of a consumer's seat. The first two, and what is released, are the consumer's, the others the producer's.
SEAT_ASLEEP = 0
SEAT_WANTED = 1
SEAT_START = 4
SEAT_GRANTED = 5
SEAT_IS_FINISHED = 6
SEAT_RELEASED = 8

# Where the fields of a message's record begin.
RECORD_AT_FLAGS = 0
RECORD_AT_META_BYTE_LENGTH = 4
RECORD_AT_NDIM = 8
RECORD_AT_DTYPE = 16
RECORD_AT_SHAPE = 32
RECORD_AT_META = 544

# What a record has, as bits.
RECORD_FLAG_SKIPPED = 1
RECORD_FLAG_LAYOUT = 2

# The properties of a channel, as bits.
CHANNEL_FLAG_TO_ONE = 1
CHANNEL_FLAG_AHEAD = 2

# The types of binary data, by their number, and the bytes of an item.
BINARY_TYPES = (
    ('ArrayBuffer', 1),
    ('DataView', 1),
    ('Uint8Array', 1),
    ('Int8Array', 1),
    ('Uint8ClampedArray', 1),
    ('Uint16Array', 2),
    ('Int16Array', 2),
    ('Uint32Array', 4),
    ('Int32Array', 4),
    ('Float32Array', 4),
    ('Float64Array', 8),
    ('BigUint64Array', 8),
    ('BigInt64Array', 8),
)

# The classes of errors, by their number.
ERROR_TYPES = (
    'Error',
    'TypeError',
    'RangeError',
    'SyntaxError',
    'ReferenceError',
    'EvalError',
    'URIError',
    'AggregateError',
)

# The access that a receiver may have, by its number.
ACCESS = (
    'read-write',
    'read',
)

# Prefixes of UUIDs, by their number.
DEVICE_PREFIXES = (
    'GPU-',
    'MIG-',
)

# The types of numbers: bytes, the least and the greatest value.
NUMBERS = {
    'uint32': (4, 0, 4294967295),
    'positive32': (4, 1, 4294967295),
    'size': (8, 0, 9007199254740991),
    'positive': (8, 1, 9007199254740991),
    'stride': (8, -9007199254740991, 9007199254740991),
}

# The fields of an exporter.
EXPORTER_FIELDS = (
    ('device', 'device'),
    ('machine', 'uuid'),
    ('pid', 'positive32'),
    ('startTime', 'size'),
    ('pidNamespace', 'size'),
)

# The kinds of objects by their number: name, whether an exporter comes first, the fields.
KINDS = (
    ('legacy', True, (
        ('handle', 'handle'),
        ('baseByteLength', 'positive'),
        ('byteOffset', 'size'),
        ('byteLength', 'positive'),
        ('access', 'access'),
        ('bufferId', 'size'),
        ('generation', 'size'),
        ('layout', 'layout?'),
        ('readyEvent', 'event?'),
    )),
    ('pool', True, (
        ('pool', 'id'),
        ('handle', 'handle?'),
        ('baseByteLength', 'size'),
        ('byteOffset', 'size'),
        ('byteLength', 'size'),
        ('access', 'access'),
        ('bufferId', 'size'),
        ('generation', 'size'),
        ('layout', 'layout?'),
        ('readyEvent', 'event?'),
    )),
    ('virtual', True, (
        ('memory', 'id'),
        ('firstPiece', 'uint32'),
        ('pieces', 'pieces'),
        ('baseByteLength', 'positive'),
        ('byteOffset', 'size'),
        ('byteLength', 'positive'),
        ('access', 'access'),
        ('bufferId', 'size'),
        ('generation', 'size'),
        ('layout', 'layout?'),
        ('readyEvent', 'event?'),
    )),
    ('event', True, (
        ('handle', 'handle'),
    )),
    ('timeline', False, (
    )),
    ('signaler', False, (
        ('last', 'size'),
    )),
    ('pinned', False, (
        ('byteLength', 'positive'),
    )),
    ('channel', False, (
        ('slots', 'positive32'),
        ('stride', 'positive'),
        ('byteLength', 'positive'),
        ('layout', 'layout?'),
        ('flags', 'uint32'),
        ('memory', 'virtual'),
    )),
)

KIND_LEGACY = 0
KIND_POOL = 1
KIND_VIRTUAL = 2
KIND_EVENT = 3
KIND_TIMELINE = 4
KIND_SIGNALER = 5
KIND_PINNED = 6
KIND_CHANNEL = 7
