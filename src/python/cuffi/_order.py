"""The order of streams: the counters of each end, which streams store behind their work, and those of the other end wait for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional

from ._devices import all_devices
from ._driver import LEGACY_STREAM, cuda_driver
from ._errors import CuffiError, IpcError
from ._files import closing_on_error, is_sealed, seal_against_holes, sealed_memory
from ._protocol import COUNTER_COUNT, END_OF_WAITS, PAGE_BYTE_LENGTH
from ._waits import enqueue_store, enqueue_wait, have_room_for_waits, stream_of
from ._words import Points, SharedWords

if TYPE_CHECKING:
    from ._devices import Device


class Order:
    """The counters of both ends of a connection. Its lock is that of the connection."""

    def __init__(self) -> None:
        self.own: Optional[SharedWords] = None
        # Its memory, until it was sent; then -1.
        self._own_fd = -1
        # For each device and stream the number of its counter, and the last count.
        self._counters: dict[tuple[int, int], list[int]] = {}
        self.theirs: Optional[SharedWords] = None
        self._is_theirs_fixed = True
        # For each counter of the other end the highest count that a stream waits for.
        self.awaited: dict[int, int] = {}

    def take_page(self) -> int:
        """The descriptor of this end's counters, which is sent before the first points; -1 if there is none to send."""
        fd, self._own_fd = self._own_fd, -1
        return fd

    @property
    def has_page_to_send(self) -> bool:
        return self._own_fd >= 0

    def accept_page(self, fd: int) -> None:
        """Maps the other end's counters. Nobody may take the memory away from under this process."""
        if self.theirs or not is_sealed(fd, PAGE_BYTE_LENGTH):
            raise IpcError('received a second page of counters, or one that is not sealed memory of its size')
        try:
            self.theirs = SharedWords(fd, PAGE_BYTE_LENGTH)
        except OSError as error:
            raise IpcError(f'received a page of counters that cannot be written: {error.strerror}') from None
        self._is_theirs_fixed = seal_against_holes(fd)
        os.close(fd)

    def points_behind(self, device: Device, stream: int, is_closed: bool) -> Optional[Points]:
        """Points behind the work that is queued in a stream; none if it is done. None if the host must wait for it."""
        with device:
            if stream != LEGACY_STREAM and cuda_driver().cuStreamQuery(stream) == 0:
                return []
            key = (device.ordinal, stream)
            has_counter = key in self._counters or len(self._counters) < COUNTER_COUNT
            if is_closed or not has_counter:
                # Nobody could wait for points any more, or none is left for this stream.
                return None
            if self.own is None:
                fd = sealed_memory(PAGE_BYTE_LENGTH)
                with closing_on_error(fd):
                    self.own = SharedWords(fd)
                self._own_fd = fd
            counter = self._counters.setdefault(key, [len(self._counters), 0])
            counter[1] += 1
            enqueue_store(self.own, counter[0], counter[1], stream_of(device, stream))
            return [(counter[0], counter[1])]

    def is_reached(self, points: Points) -> bool:
        """Whether the other end's work before its points is done."""
        return not points or self.theirs is None or self.theirs.is_reached(points)

    def let_wait(self, device: Device, stream: int, points: Points) -> bool:
        """Makes a stream wait for points. Returns False if the host must wait, also as too many streams wait."""
        page = self.theirs
        if page is None or not self._is_theirs_fixed:
            return False
        found = stream_of(device, stream)
        unreached = [(index, count) for index, count in points if not page.reached(index, count)]
        if not have_room_for_waits(found, len(unreached)):
            return False
        for index, count in unreached:
            # Noted before: a wait that nobody knows could block for ever.
            self.awaited[index] = max(count, self.awaited.get(index, 0))
            if not enqueue_wait(page, index, count, found):
                return False
        return True

    def abandon_waits(self) -> int:
        """Frees the streams that wait for an ended process. Returns how many waits were not over."""
        page = self.theirs
        if page is None:
            return 0
        open_waits = [index for index, count in self.awaited.items() if not page.reached(index, count)]
        for index in open_waits:
            page.words[index] = END_OF_WAITS
        return len(open_waits)

    def drain(self) -> None:
        """Before this process ends: the other one may wait for work that is still running."""
        page = self.own
        if page and not page.is_reached([(index, count) for index, count in self._counters.values()]):
            for ordinal in {ordinal for ordinal, _ in self._counters}:
                try:
                    all_devices()[ordinal].synchronize()
                except CuffiError:
                    pass  # The context is lost.

    def close_page_fd(self) -> None:
        fd = self.take_page()
        if fd >= 0:
            os.close(fd)
