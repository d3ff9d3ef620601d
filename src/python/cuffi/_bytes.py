"""Reads and writes the parts of messages."""

from __future__ import annotations

import math
import struct

from ._errors import IpcError
from ._protocol import COUNTER_COUNT, TAG_LATIN1, TAG_UTF16

SAFE = 2**53 - 1
pack_double, pack_int = struct.Struct('<d').pack, struct.Struct('<i').pack
_unpack_double, unpack_int = struct.Struct('<d').unpack_from, struct.Struct('<i').unpack_from

_CUT = 'the bytes end in the middle of a value'


def write_length(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def limit_exceeded(why: str) -> IpcError:
    """The error for what exceeds a limit of the protocol."""
    return IpcError(why, 'limit-exceeded')


class Reader:
    """Reads what another process has sent. Raises IpcError for anything that is not what it should be."""

    __slots__ = ('data', 'at', 'end')

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.end = data, 0, len(data)

    def skip(self, count: int) -> int:
        """Returns where so many bytes begin, and goes behind them."""
        at = self.at
        if count > self.end - at:
            raise IpcError(_CUT)
        self.at = at + count
        return at

    def take(self, count: int) -> bytes:
        # These are called for each part of a message: without calls of others.
        at, end = self.at, self.at + count
        if end > self.end:
            raise IpcError(_CUT)
        self.at = end
        return self.data[at:end]

    def byte(self) -> int:
        at = self.at
        if at >= self.end:
            raise IpcError(_CUT)
        self.at = at + 1
        return self.data[at]

    def flag(self) -> bool:
        value = self.byte()
        if value > 1:
            raise IpcError(f'{value} is neither 0 nor 1')
        return value == 1

    def length(self, least_each: int = 1) -> int:
        """Reads a length of things that take so many bytes each at least."""
        at = self.at
        if at < self.end and (value := self.data[at]) < 0x80 and value * least_each < self.end - at:
            # Most lengths have one byte, and what they count follows.
            self.at = at + 1
            return value
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 21:
                raise IpcError('a length has more than 4 bytes')
        if value * least_each > self.end - self.at:
            raise IpcError(f'a count of {value} needs more than the {self.end - self.at} bytes that are left')
        return value

    def double(self) -> float:
        return _unpack_double(self.data, self.skip(8))[0]

    def number(self, least: int = 0) -> int:
        """Reads an integer that was sent as a number."""
        value = _unpack_double(self.data, self.skip(8))[0]
        if not (value >= least and value <= SAFE and value == math.floor(value)):
            raise IpcError(f'{value} is not an integer of at least {least}')
        return int(value)

    def size(self, least: int = 0, most: int = SAFE, form: str = '<q') -> int:
        value = struct.unpack_from(form, self.data, self.skip(struct.calcsize(form)))[0]
        if not least <= value <= most:
            raise IpcError(f'{value} is not from {least} to {most}')
        return value

    def string(self) -> str:
        tag = self.byte()
        if tag == TAG_LATIN1:
            return self.take(self.length()).decode('latin-1')
        if tag != TAG_UTF16:
            raise IpcError('a name is not a string')
        data = self.take(self.length())
        if len(data) % 2:
            raise IpcError('a string ends in the middle of a character')
        return data.decode('utf-16-le', 'surrogatepass')

    def points(self) -> list[tuple[int, int]]:
        count = self.length(9)
        if count > COUNTER_COUNT:
            raise limit_exceeded(f'a list of {count} points is too long')
        points: list[tuple[int, int]] = []
        for _ in range(count):
            index = self.length(0)
            if index >= COUNTER_COUNT:
                raise IpcError(f'a page has no counter {index}')
            points.append((index, self.number(1)))
        return points
