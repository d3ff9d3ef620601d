"""Passing on what another process has made: its owner keeps it for the third process, which has a link to the owner."""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

from ._bytes import pack_double, write_length
from ._deadlines import Deadline
from ._errors import IpcError, NotSupportedError
from ._files import FD_SPACE, RECEIVE_FLAGS, close_fds, received_fds
from ._protocol import CONTROL_FORWARD_REQUESTS, FRAME_CONTROL
from ._signals import signals

if TYPE_CHECKING:
    from ._connection import Connection

# The most that an owner keeps at a time because this process has asked. It refuses more than twice as many.
_MAX_FORWARDS = 1024
# How often Python runs the handlers of signals meanwhile.
_LOOK_MS = 50


class Forward:
    """Asks the owner of an object to keep it for a third process, until that closes its end of a link."""

    __slots__ = ('__weakref__', '_owner', 'link')

    def __init__(self, owner: Connection, lease: int, third: Connection) -> None:
        """:param lease: that of this process on the object. It must be held until `wait` has returned"""
        owner.check_open()
        if len(owner.imports.forwards) >= _MAX_FORWARDS:
            raise IpcError(f'{_MAX_FORWARDS} objects of {owner.name} are already forwarded: release some of them first', 'limit-exceeded')
        if not third.pid:
            raise NotSupportedError('an object of another process cannot be forwarded to a process of another pid namespace')
        owner_end, third_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner, self.link = owner.name, third_end.detach()
        body = bytearray((CONTROL_FORWARD_REQUESTS,))
        write_length(body, 1)
        for number in (lease, third.pid, third.started):
            body += pack_double(number)
        fd = owner_end.detach()
        with owner.mutex:
            owner.imports.forwards.add(self)
            owner.outbox.post(FRAME_CONTROL, body, (fd,), owned=[fd])

    def wait(self, deadline: Deadline) -> None:
        """Waits until the owner keeps the object, or has ended. Raises TimeoutError."""
        ready = select.poll()
        ready.register(self.link, select.POLLIN)
        while not ready.poll(min(_LOOK_MS, deadline.left(f'{self._owner} to keep a forwarded object') * 1000)):
            signals.check()
        # Reads the answer, so that the third process does not get it.
        with socket.socket(fileno=self.link) as link:
            try:
                _, controls, _, _ = link.recvmsg(16, FD_SPACE, RECEIVE_FLAGS)
                close_fds(received_fds(controls))
            except OSError:
                pass  # The owner has ended: the memory may be gone, which whoever opens it finds.
            link.detach()

    def take(self) -> int:
        """The end of the link for the third process, which the caller closes."""
        link, self.link = self.link, -1
        return link

    def __del__(self) -> None:
        # The owner need not keep it.
        if self.link >= 0:
            close_fds([self.link])
