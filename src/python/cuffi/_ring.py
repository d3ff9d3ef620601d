"""The ring of a channel: what the producer writes, and all consumers read."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Optional

from ._dtypes import Dtype, check_shape, dtype_of, received_dtype
from ._errors import IpcError
from ._files import whole_pages
from ._protocol import (
    END_OF_WAITS,
    MAX_AXES,
    MAX_META_BYTE_LENGTH,
    RECORD_AT_DTYPE,
    RECORD_AT_META,
    RECORD_AT_NDIM,
    RECORD_AT_SHAPE,
    RECORD_BYTE_LENGTH,
    RECORD_FLAG_LAYOUT,
    RECORD_FLAG_SKIPPED,
    RING_CLOSED_AT,
    RING_FILLED,
    SEAT_RELEASED,
)
from ._words import INFINITE, SharedWords

SlotLayout = tuple[Dtype, tuple[int, ...]]


class Ring(SharedWords):
    """What the producer of a channel writes, and all consumers read. Message n is in slot n modulo `slots`."""

    def __init__(self, fd: int, slots: int, has_records: bool) -> None:
        super().__init__(fd, self.length(slots, has_records))
        self.slots, self.has_records = slots, has_records

    @staticmethod
    def length(slots: int, has_records: bool) -> int:
        return whole_pages((RING_FILLED + 2 * slots) * 8 + (slots * RECORD_BYTE_LENGTH if has_records else 0))

    @property
    def closed_at(self) -> Optional[int]:
        """How many messages there are in all; None while the channel is open."""
        value = self.read(RING_CLOSED_AT)
        return int(value) - 1 if 0 < value < INFINITE else None

    def is_filled(self, message: int) -> bool:
        """Whether the work before a message is done."""
        if self.words[RING_FILLED + message % self.slots] <= message:
            return False
        value = self.read(RING_FILLED + message % self.slots)
        if value == INFINITE:
            # After the end of the producer the last value stands beside it.
            value = self.read(RING_FILLED + self.slots + message % self.slots)
        return message < value < INFINITE

    def end_unfilled(self) -> None:
        """Ends the waits of streams for messages that will not come. May be called by several processes."""
        for index in range(RING_FILLED, RING_FILLED + self.slots):
            value = self.read(index)
            if value != INFINITE:
                self.write(index + self.slots, max(int(value), 0))
                self.write(index, END_OF_WAITS)

    def record_at(self, message: int) -> int:
        return (RING_FILLED + 2 * self.slots) * 8 + message % self.slots * RECORD_BYTE_LENGTH

    def write_record(self, message: int, layout: Optional[SlotLayout], meta: bytes, is_skipped: bool = False) -> None:
        bits, at = (RECORD_FLAG_SKIPPED if is_skipped else 0) | (RECORD_FLAG_LAYOUT if layout else 0), self.record_at(message)
        struct.pack_into('<II', self._map, at, bits, len(meta))
        self._map[at + RECORD_AT_META : at + RECORD_AT_META + len(meta)] = meta
        if layout:
            dtype, shape = layout
            struct.pack_into('<I', self._map, at + RECORD_AT_NDIM, len(shape))
            struct.pack_into(f'<16s{len(shape)}q', self._map, at + RECORD_AT_DTYPE, dtype.name.encode(), *shape)

    def read_record(self, message: int, byte_length: int) -> tuple[bool, Optional[SlotLayout], Any]:
        """Whether there is no message, its own layout if any, and its `meta`. Raises IpcError for nonsense."""
        at = self.record_at(message)
        # Once, as another process may change it meanwhile.
        data = self._map[at : at + RECORD_BYTE_LENGTH]
        bits, length, ndim = struct.unpack_from('<III', data)
        if bits & RECORD_FLAG_SKIPPED:
            return True, None, None
        layout = None
        try:
            if bits & RECORD_FLAG_LAYOUT:
                if ndim > MAX_AXES:
                    raise ValueError(f'it has {ndim} axes, of at most {MAX_AXES}')
                name = data[RECORD_AT_DTYPE:RECORD_AT_SHAPE].rstrip(b'\0').decode('latin-1')
                layout = check_layout(struct.unpack_from(f'<{ndim}q', data, RECORD_AT_SHAPE), received_dtype(name), byte_length)
            if length > MAX_META_BYTE_LENGTH:
                raise ValueError(f'its meta has {length} bytes, of at most {MAX_META_BYTE_LENGTH}')
            return False, layout, _decode_meta(data[RECORD_AT_META : RECORD_AT_META + length]) if length else None
        except (TypeError, ValueError, RecursionError) as error:
            raise IpcError(f'received a message whose record is invalid: {error}') from None


def check_layout(shape: Any, dtype: Any, byte_length: Optional[int]) -> SlotLayout:
    lengths, kind = check_shape(shape), dtype_of(dtype)
    needed = math.prod(lengths) * kind.itemsize
    if byte_length is not None and needed > byte_length:
        raise ValueError(f'an array of {needed} bytes does not fit into a slot of {byte_length}')
    return kind, lengths


def encode_meta(meta: Any) -> bytes:
    if meta is None:
        return b''
    try:
        text = json.dumps(meta, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
        # A lone surrogate becomes an escape of JSON, as in Node.
        data = text.encode('utf-8', 'backslashreplace')
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f'meta cannot be written as JSON: {error}') from None
    if len(data) > MAX_META_BYTE_LENGTH:
        raise ValueError(f'meta takes {len(data)} bytes as JSON: at most {MAX_META_BYTE_LENGTH} are allowed')
    return data


def _decode_meta(data: bytes) -> Any:
    """Raises ValueError for what is not JSON, which Python's own reader takes: NaN, infinities and other encodings."""
    return json.loads(data.decode('utf-8'), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f'{name} is not a JSON value')


def seat_length(slots: int) -> int:
    return whole_pages((SEAT_RELEASED + 3 * slots) * 8)
