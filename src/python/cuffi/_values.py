"""The types of values, as JavaScript and Python have them."""

from __future__ import annotations

import datetime
from typing import Any, Callable

from ._protocol import (
    BINARY_TYPES,
    ERROR_CODE,
    ERROR_MESSAGE,
    ERROR_NAME,
    ERROR_STACK,
    ERROR_TYPES,
    MAX_NAME_LENGTH,
    TAG_FALSE,
    TAG_NULL,
    TAG_TRUE,
    TAG_UNDEFINED,
)


class BigInt(int):
    """An int that Node gets as a bigint, whatever its size. Received bigints are of this type."""

    def __repr__(self) -> str:
        # Python refuses to print long ones in decimal, or takes very long.
        return int.__repr__(self) if self.bit_length() < 4096 else hex(self)


class Map(dict[Any, Any]):
    """A dict that Node gets as a Map. Received Maps are of this type."""


# Types of binary data: their format in Python. All others are bytes.
_FORMATS = {
    'Int8Array': 'b', 'Uint16Array': 'H', 'Int16Array': 'h', 'Uint32Array': 'I', 'Int32Array': 'i',
    'Float32Array': 'f', 'Float64Array': 'd', 'BigUint64Array': 'Q', 'BigInt64Array': 'q',
}  # fmt: skip
# By their number: the format, or None, and the bytes of an item. The number of bytes, and of each format and size.
BINARIES = tuple((_FORMATS.get(name), size) for name, size in BINARY_TYPES)
UINT8_ARRAY = [name for name, _ in BINARY_TYPES].index('Uint8Array')
BINARY_OF = {found: number for number, found in enumerate(BINARIES) if found[0]}
# Node has the bits of float16, as in its arrays.
BINARY_OF['e', 2] = BINARY_OF['H', 2]
# Which of these has 4 bytes, and which 8, depends on the machine.
BINARY_OF.update({
    (form, size): number
    for family in ('ilq', 'ILQ')
    for (known, size), number in list(BINARY_OF.items()) if known and known in family
    for form in family
})  # fmt: skip
AGGREGATE_ERROR = ERROR_TYPES.index('AggregateError')
# The fields of an error that are strings, in order.
ERROR_TEXTS = (ERROR_NAME, ERROR_MESSAGE, ERROR_STACK, ERROR_CODE)
CONSTANTS = {TAG_UNDEFINED: None, TAG_NULL: None, TAG_FALSE: False, TAG_TRUE: True}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
Put = Callable[[Any], None]


def utf16_length(text: str) -> int:
    """How many characters a string has in JavaScript."""
    return len(text) if len(text) <= MAX_NAME_LENGTH // 2 else len(text.encode('utf-16-le', 'surrogatepass')) // 2
