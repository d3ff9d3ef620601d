"""Frames: puts those of the other end together to messages, after its first one has told its versions."""

from __future__ import annotations

from typing import Optional

from . import _install
from ._bytes import limit_exceeded
from ._errors import IpcError
from ._files import close_fds
from ._protocol import (
    FRAME_CONTROL,
    FRAME_HELLO,
    MAX_PACKAGE_NAME_BYTE_LENGTH,
    MAX_VERSION,
    MIN_VERSION,
    PACKET_BYTE_LENGTH,
)
from ._wire import (
    FRAME_KINDS,
    HEADER,
    MAGIC,
    MAX_MESSAGE,
    MAX_PART,
    OLDEST_WITH_HELLO,
    choose_version,
    package_name,
    printable,
    versions_text,
)

# Its kind, request, bytes and descriptors, and whether this process had no room for some of them.
Message = tuple[int, int, bytes, list[int], bool]
_HEADER_SIZE = HEADER.size
_read_header = HEADER.unpack_from


def hello() -> bytes:
    """The first frame of an end: the versions that it speaks, and what it is."""
    text = bytes((MIN_VERSION, MAX_VERSION)) + package_name().encode('utf-8', 'replace')[:MAX_PACKAGE_NAME_BYTE_LENGTH]
    return HEADER.pack(MAGIC, MAX_VERSION, FRAME_HELLO, 0, len(text), 0, 0) + text


class FrameReader:
    """Puts frames together. Raises IpcError for anything that is not what it should be."""

    def __init__(self) -> None:
        # Whether the other end has said which versions it speaks: it does so as soon as it exists.
        self.has_met = False
        self._received = 0
        # The message that is not complete yet.
        self._parts: list[bytes] = []
        self._header: tuple[int, ...] = ()
        self._fds: list[int] = []
        self._is_cut = False

    def add(self, data: bytes, fds: list[int], is_cut: bool) -> Optional[Message]:
        """Returns the message that a frame completes. Takes the descriptors out of the list when they have another owner."""
        size = len(data) - _HEADER_SIZE
        if size <= 0 or len(data) > PACKET_BYTE_LENGTH:
            raise IpcError(f'a frame has {len(data)} bytes')
        magic, version, kind, number, length, offset, request = _read_header(data)
        is_whole = length == size and not offset and not self._parts and magic == MAGIC and version == MAX_VERSION
        if is_whole and self.has_met and number == self._received and kind in FRAME_KINDS and (request > 0) == (kind > FRAME_CONTROL):
            # Most messages are one frame: the checks below have nothing to say about it.
            self._received = (number + 1) & 0xFFFFFFFF
            own = fds[:]
            fds.clear()
            return kind, request, data[_HEADER_SIZE:], own, is_cut
        if magic != MAGIC:
            raise IpcError('not a cuffi frame (wrong magic number)')
        if not self.has_met:
            self._meet(version, kind, data[_HEADER_SIZE:], (number, length, offset, request) == (0, size, 0, 0))
            close_fds(fds)
            return None
        if version != MAX_VERSION:
            raise IpcError(f'a frame is of version {version}, although both ends speak {MAX_VERSION}')
        had = sum(map(len, self._parts)) if self._parts else 0
        if number != self._received or offset != had or (had and (kind, number, length, request) != self._header):
            raise IpcError(f'received byte {offset} of message {number} instead of byte {had} of message {self._received}')
        if kind not in FRAME_KINDS or (request > 0) != (kind > FRAME_CONTROL):
            raise IpcError(f'a frame of kind {kind} has the request number {request}')
        if length > MAX_MESSAGE:
            raise limit_exceeded(f'a message of {length} bytes is too large')
        if size != length and (size != min(MAX_PART, length - offset) or kind == FRAME_CONTROL):
            raise IpcError(f'a frame has {size} bytes of a message of {length}: too few or too many')
        part = data[_HEADER_SIZE:]
        if offset:
            if fds:
                raise IpcError('received descriptors in the middle of a message')
        else:
            self._fds, self._is_cut = fds[:], is_cut
            fds.clear()
        if had + size < length:
            self._parts.append(part)
            self._header = (kind, number, length, request)
            return None
        if had:
            self._parts.append(part)
            part = b''.join(self._parts)
            self._parts = []
        self._received = (number + 1) & 0xFFFFFFFF
        own, self._fds = self._fds, []
        return kind, request, part, own, self._is_cut

    def _meet(self, version: int, kind: int, content: bytes, is_plain: bool) -> None:
        """Takes the first frame of the other end.

        :param is_plain: whether all other numbers of the header are 0 but the length
        """
        if kind != FRAME_HELLO and version < OLDEST_WITH_HELLO:
            raise _other_version(version, version, None)
        is_whole = kind == FRAME_HELLO and is_plain and 2 <= len(content) <= 2 + MAX_PACKAGE_NAME_BYTE_LENGTH
        if not is_whole or content[1] < content[0]:
            raise IpcError('the other end did not state first which versions of the protocol it speaks')
        if choose_version((content[0], content[1]), (MIN_VERSION, MAX_VERSION)) is None:
            raise _other_version(content[0], content[1], content[2:])
        self.has_met = True

    def close(self) -> None:
        close_fds(self._fds)
        self._parts = []


def _other_version(least: int, most: int, theirs: Optional[bytes]) -> IpcError:
    there = '' if theirs is None else f'There: {printable(theirs)}. '
    return IpcError(
        f'the other end speaks {versions_text(least, most)} of the protocol, '
        f'this one {versions_text(MIN_VERSION, MAX_VERSION)}. {there}Here: {package_name()}. '
        + _install.remedy(package_name(), theirs, least > MAX_VERSION),
        'version-mismatch',
    )
