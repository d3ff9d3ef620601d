"""A consumer of a channel, as its producer sees it."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Callable, Optional

from ._bytes import SAFE
from ._channel_end import Stores
from ._files import F_SEAL_FUTURE_WRITE, closing_on_error, sealed_memory
from ._protocol import SEAT_ASLEEP, SEAT_GRANTED, SEAT_RELEASED, SEAT_START, SEAT_WANTED
from ._releases import release_page
from ._ring import seat_length
from ._wakeups import WakeSockets, one_way_sockets
from ._words import SharedWords

if TYPE_CHECKING:
    from ._ring import Ring


class Seat:
    """One consumer, as the producer sees it."""

    def __init__(self, slots: int, start: int, on_wake: Callable[[], None]) -> None:
        self.start, self.granted, self._slots = start, 0, slots
        memory = sealed_memory(seat_length(slots), 'cuffi-seat')
        with closing_on_error(memory):
            self.words = SharedWords(memory, seat_length(slots))
            their_receive_end, own_send_end = one_way_sockets()
            with closing_on_error(their_receive_end, own_send_end):
                own_receive_end, their_send_end = one_way_sockets()
        self.words.write(SEAT_START, start)
        self.fds = [memory, their_receive_end, their_send_end]
        self.sockets = WakeSockets(own_receive_end, own_send_end, on_wake)
        with closing_on_error(*self.fds):
            self.sockets.watch()
        # With ahead: the seat's memory, until it is known to be fixed, and the consumer's own copy of the ring.
        self.fd = -1
        self.copy: Optional[Ring] = None
        self.copy_stores: Optional[Stores] = None

    @property
    def is_fixed(self) -> bool:
        """Whether the consumer has mapped the seat, and nobody can replace its memory any more."""
        if self.fd >= 0 and fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & F_SEAL_FUTURE_WRITE:
            self.words.is_fixed = True
            self._close_fd()
        return self.words.is_fixed

    def _close_fd(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def set_copy(self, copy: Ring) -> None:
        self.copy = copy
        # The producer notices by its own memory if the work fails.
        self.copy_stores = Stores(copy, lambda _: self.wake_if_asleep(), False, True, self._slots)

    def is_released(self, message: int) -> bool:
        return self.words.reached(SEAT_RELEASED + message % self._slots, message + 1)

    @property
    def wants(self) -> bool:
        return self.granted < self.words.read(SEAT_WANTED) <= SAFE

    def grant(self, message: int, redelivered: bool) -> None:
        index = SEAT_RELEASED + self._slots + 2 * (self.granted % self._slots)
        self.words.write(index, message)
        self.words.write(index + 1, redelivered)
        self.granted += 1
        self.words.write(SEAT_GRANTED, self.granted)
        self.wake_if_asleep()

    def wake_if_asleep(self) -> None:
        if self.words.words[SEAT_ASLEEP] == 1:
            self.sockets.wake()

    def close(self) -> None:
        self.sockets.close()
        self.words.end_waits(SEAT_RELEASED, SEAT_RELEASED + self._slots)
        release_page(self.words)
        self._close_fd()
        if self.copy:
            release_page(self.copy)
