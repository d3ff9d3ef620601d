"""The process at the other end of a connection: who it is, and when it ends."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading

from ._files import credentials
from ._process import start_time_of

_SO_PEERPIDFD = 77


class PeerProcess:
    """What the kernel says of it. Its number may come to be that of another process; its descriptor never does."""

    def __init__(self, sock: socket.socket, poll: select.poll) -> None:
        """:param poll: is told of its end"""
        self.pid, self.uid, self.gid = credentials(sock)
        self.name = f'process {self.pid}' if self.pid else 'a process of another pid namespace'
        self.started = start_time_of(self.pid) if self.pid else 0
        self._lock = threading.Lock()
        # Without one, for lack of the system or as the process is gone, the socket tells.
        self.pidfd = self._find(sock)
        if self.pidfd >= 0:
            poll.register(self.pidfd, select.POLLIN)

    def _find(self, sock: socket.socket) -> int:
        try:
            return struct.unpack('i', sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
        except OSError:
            pass
        try:
            return os.pidfd_open(self.pid) if self.pid else -1
        except (AttributeError, OSError):
            return -1

    def end(self, is_gone: bool) -> int:
        """A new descriptor that can be read once the process has ended; -1 if it has. Raises OSError if there is none."""
        with self._lock:
            if self.pidfd >= 0:
                return os.dup(self.pidfd)
        if is_gone:
            return -1
        if not self.started or not hasattr(os, 'pidfd_open'):
            raise OSError(errno.ENOSYS, 'the end of the process cannot be observed')
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return -1
        # The number may have come to be that of another process.
        if start_time_of(self.pid) == self.started:
            return pidfd
        os.close(pidfd)
        return -1

    def close(self) -> None:
        with self._lock:
            pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)

    def abandon(self) -> None:
        """In a child by fork, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self.close()
