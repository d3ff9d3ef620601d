"""Messages and their frames."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, Union

from ._bytes import limit_exceeded, pack_double, write_length
from ._errors import IpcError
from ._protocol import (
    BEGUN_IGNORING_VALUES,
    BEGUN_RECEIVING,
    BEGUN_SERVING,
    CONTROL_BEGUN,
    CONTROL_CLOSED_POOLS,
    CONTROL_CLOSING,
    CONTROL_DONE,
    CONTROL_FORWARD_REQUESTS,
    CONTROL_POINTS,
    CONTROL_RELEASED,
    CONTROL_REVOKED,
    CONTROL_TIMELINE_PAGE,
    FRAME_CANCELLATION,
    FRAME_CONTROL,
    FRAME_FAILURE,
    FRAME_MAGIC,
    FRAME_REQUEST,
    FRAME_RESPONSE,
    FRAME_UNSERVED,
    FRAME_VALUE,
    FRAME_VERIFICATION,
    ID_BYTE_LENGTH,
    MAX_CONTROL_BYTE_LENGTH,
    MAX_CONTROL_ENTRIES,
    MAX_PACKAGE_NAME_BYTE_LENGTH,
    MAX_RELEASE_POINTS,
    MAX_TABLE_BYTE_LENGTH,
    MAX_VALUE_BYTE_LENGTH,
    PACKET_BYTE_LENGTH,
    TAG_NULL,
)
from ._version import __version__
from ._words import Points

if TYPE_CHECKING:
    from ._bytes import Reader
    from ._export import Exported
    from ._waiter import Waiter

HEADER, MAGIC = struct.Struct('<2sBBIIII'), FRAME_MAGIC.encode()
# The value null: what a message without content has.
NULL = bytes((TAG_NULL,))
# Frames behind the hello.
FRAME_KINDS = frozenset(
    (
        FRAME_VALUE,
        FRAME_CONTROL,
        FRAME_VERIFICATION,
        FRAME_REQUEST,
        FRAME_RESPONSE,
        FRAME_FAILURE,
        FRAME_CANCELLATION,
        FRAME_UNSERVED,
    )
)
# Control fields that do not come with a value, and what an end may say that it has begun.
_ALONE = (CONTROL_TIMELINE_PAGE, CONTROL_CLOSING, CONTROL_FORWARD_REQUESTS, CONTROL_DONE, CONTROL_BEGUN)
_BEGUN = (BEGUN_RECEIVING, BEGUN_SERVING, BEGUN_RECEIVING | BEGUN_SERVING, BEGUN_SERVING | BEGUN_IGNORING_VALUES)
# A lease, whether that is its end, and points behind the work that may still use it.
Release = tuple[int, bool, Points]
MAX_PART = PACKET_BYTE_LENGTH - HEADER.size
MAX_MESSAGE = MAX_VALUE_BYTE_LENGTH + MAX_TABLE_BYTE_LENGTH + MAX_CONTROL_BYTE_LENGTH
MAX_LIST = 1024


class Control:
    """A control block, read up to the end of a message."""

    __slots__ = ('has_page', 'points', 'released', 'revoked', 'is_closing', 'forwards', 'closed_pools', 'is_done', 'begun')

    def __init__(self, reader: Reader, fd_count: Optional[int]) -> None:
        """:param fd_count: how many descriptors came with it, if it came alone; None behind a value"""
        self.has_page = self.is_closing = self.is_done = False
        self.points: Points = []
        self.released: list[Release] = []
        self.revoked: list[int] = []
        self.forwards: list[tuple[int, int, int]] = []
        self.closed_pools: list[bytes] = []
        self.begun = last = 0
        begin, is_alone = reader.at, fd_count is not None
        while reader.at < reader.end:
            field = reader.byte()
            if field <= last or (field in _ALONE and not is_alone) or (field == CONTROL_POINTS and is_alone):
                raise IpcError(f'the control field {field} is not allowed here')
            last = field
            if field == CONTROL_TIMELINE_PAGE:
                self.has_page = True
            elif field == CONTROL_POINTS:
                self.points = reader.points()
            elif field == CONTROL_RELEASED:
                self._read_releases(reader)
            elif field == CONTROL_REVOKED:
                self.revoked = [reader.number() for _ in range(_list_length(reader, 8))]
            elif field == CONTROL_CLOSING:
                self.is_closing = True
            elif field == CONTROL_FORWARD_REQUESTS:
                count = _list_length(reader, 24)
                self.forwards = [(reader.number(), reader.number(), reader.number()) for _ in range(count)]
            elif field == CONTROL_CLOSED_POOLS:
                self.closed_pools = [reader.take(ID_BYTE_LENGTH) for _ in range(_list_length(reader, ID_BYTE_LENGTH))]
            elif field == CONTROL_DONE:
                self.is_done = True
            elif field == CONTROL_BEGUN:
                self.begun = reader.byte()
                if self.begun not in _BEGUN:
                    raise IpcError(f'invalid readiness flags {self.begun}')
            else:
                raise IpcError(f'unknown control field {field}')
        if self.has_page and reader.end - begin > 1:
            raise IpcError('a page of counters came with something else')
        expected = self.has_page + len(self.forwards)
        if is_alone and fd_count != expected:
            raise IpcError(f'received {fd_count} descriptors with a control message that has {expected}')

    def _read_releases(self, reader: Reader) -> None:
        point_count = 0
        for _ in range(_list_length(reader, 10)):
            self.released.append((reader.number(), reader.flag(), reader.points()))
            point_count += len(self.released[-1][2])
            if point_count > MAX_RELEASE_POINTS:
                raise limit_exceeded(f'a message releases leases behind more than {MAX_RELEASE_POINTS} points')


class Outgoing:
    """A message that is sent, in frames. It gets its number with its first one: until then it can be taken back."""

    __slots__ = ('kind', 'request', 'body', 'at', 'fds', 'owned', 'waiter', 'leases', 'releases', 'shares')

    def __init__(self, kind: int, request: int, body: Union[bytes, bytearray], fds: Sequence[int], owned: Sequence[int],
                 waiter: Optional[Waiter] = None) -> None:  # fmt: skip
        """:param owned: those of the descriptors that are closed when they were sent"""
        self.kind, self.request, self.body, self.at, self.fds, self.owned, self.waiter = kind, request, body, 0, fds, owned, waiter
        # What comes with it: the leases of its objects, whose each of `owned` is, and releases of others.
        self.leases: Sequence[int] = ()
        self.shares: list[tuple[Exported, list[int]]] = []
        self.releases: list[Release] = []


# Versions before it begin with a value.
OLDEST_WITH_HELLO = 4


def choose_version(a: tuple[int, int], b: tuple[int, int]) -> Optional[int]:
    """The highest version that both ranges have."""
    highest = min(a[1], b[1])
    return highest if highest >= max(a[0], b[0]) else None


def versions_text(least: int, most: int) -> str:
    return f'version {most}' if least == most else f'versions {least} to {most}'


def package_name() -> str:
    return f'cuffi {__version__} for Python in {os.path.dirname(os.path.abspath(__file__))}'


def printable(text: bytes) -> str:
    """Text of another process for an error message: short, in one line, and without control characters."""
    shown = text.decode('utf-8', 'replace')[:MAX_PACKAGE_NAME_BYTE_LENGTH]
    return ''.join(each if each.isprintable() else ' ' for each in shown)


def write_control(out: bytearray, points: Sequence[tuple[int, int]], releases: Sequence[Release]) -> None:
    """Writes the control block of a value: points behind the work on it, and what is released."""
    if points:
        out.append(CONTROL_POINTS)
        _write_points(out, points)
    if releases:
        out.append(CONTROL_RELEASED)
        write_length(out, len(releases))
        for lease, is_final, behind in releases:
            out += pack_double(lease)
            out.append(is_final)
            _write_points(out, behind)


def _write_points(out: bytearray, points: Sequence[tuple[int, int]]) -> None:
    write_length(out, len(points))
    for index, count in points:
        write_length(out, index)
        out += pack_double(count)


def _list_length(reader: Reader, each: int) -> int:
    length = reader.length(each)
    if length == 0:
        raise IpcError('a list without entries is not valid')
    if length > MAX_CONTROL_ENTRIES:
        raise limit_exceeded(f'a list of {length} entries is too long')
    return length
