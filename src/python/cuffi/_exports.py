"""What the other end holds of this one: kept until it has released it, and its work on it is done."""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._driver import CudaError
from ._errors import IpcError
from ._files import SEND_FLAGS, close_fds, credentials, file_type
from ._words import Points

if TYPE_CHECKING:
    from ._connection import Connection
    from ._export import Exported
    from ._wire import Release

_MAX_LINKS = 2048


class Exports:
    """The leases that this end has given. Its lock is that of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.leases: dict[int, Exported] = {}
        self.next = 0
        # What the end of third processes keeps, by the descriptor of the link to each.
        self.forwarded: dict[int, tuple[socket.socket, Exported]] = {}
        # Points that nothing overtakes: the host waits until they are reached, and then ends these leases.
        self.held: Points = []
        self._after_hold: list[int] = []

    def add(self, exported: Exported) -> None:
        exported.since = time.time()
        self.leases[self.next] = exported
        self.next += 1

    def release(self, released: Sequence[Release]) -> None:
        """Ends leases that the other end has released."""
        order = self._connection.order
        for lease, is_final, points in released:
            exported = self.leases.get(lease)
            if exported is None:
                raise IpcError(f'lease {lease} was released, but is not in use')
            if points:
                if order.theirs is None:
                    raise IpcError('received points before their page')
                if not order.theirs.is_reached(points):
                    # What follows must not overtake the other end's work.
                    try:
                        is_ordered = (
                            exported.stream is not None
                            and exported.device is not None
                            and self._connection.let_wait(exported.device, exported.stream, points)
                        )
                    except CudaError:
                        is_ordered = False  # The stream may be gone, or the context lost.
                    if not is_ordered:
                        self.held += points
            if is_final and self.held:
                self._after_hold.append(lease)
            elif is_final:
                del self.leases[lease]

    def end_hold(self, is_gone: bool) -> None:
        """Goes on if the points are reached."""
        if is_gone or self._connection.order.is_reached(self.held):
            self.held = []
            leases, self._after_hold = self._after_hold, []
            for lease in leases:
                self.leases.pop(lease, None)

    def forward(self, asked: Sequence[tuple[int, int, int]], fds: list[int], poll: select.poll) -> None:
        """Keeps objects for third processes: until those close their ends of the links."""
        if len(self.forwarded) + len(asked) > _MAX_LINKS:
            raise IpcError('received links for objects that were not forwarded')
        for (lease, _, _), fd in zip(asked, fds):
            exported = self.leases.get(lease)
            if exported is None or file_type(fd)[0] != stat.S_IFSOCK:
                raise IpcError(f'lease {lease} was forwarded without a link, or is not in use')
            link = socket.socket(fileno=os.dup(fd))
            is_link = link.type == socket.SOCK_SEQPACKET and link.family == socket.AF_UNIX
            if not is_link or credentials(link)[0] != self._connection.pid:
                close_fds([link.detach()])
                raise IpcError(f'lease {lease} was forwarded with a link that {self._connection.name} did not create')
            self.forwarded[link.fileno()] = (link, exported)
            poll.register(link.fileno(), select.POLLIN)
            try:
                link.send(b'\x01', SEND_FLAGS)
            except OSError:
                pass  # It is gone, and its end of the link: the poll tells.
        close_fds(fds)

    def end_link(self, fd: int) -> None:
        """A third process has closed its end of a link."""
        link, _ = self.forwarded.pop(fd)
        close_fds([link.detach()])
