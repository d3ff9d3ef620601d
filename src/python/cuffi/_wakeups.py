"""How the ends of a channel sleep, and wake each other up."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
import termios
import threading
import time
from collections.abc import Generator
from typing import Any, Callable, Optional

from ._background import background, lifelines
from ._deadlines import Deadline, turn_if_due
from ._errors import IpcError
from ._files import FD_SPACE, RECEIVE_FLAGS, SEND_FLAGS, close_fds, duplicates, file_type, received_fds

_EAGER_S, _SWEEP_S, BUSY_S = 0.0002, 0.1, 0.005


class WakeSockets:
    """One end of two one-way sockets between two processes. Each end wakes up the other, and sees its end.

    The other process may keep a copy of every end. Whatever it does with that, no call here blocks.
    """

    def __init__(self, receive_end: int, send_end: int, on_wake: Callable[[], None]) -> None:
        """Owns the descriptors."""
        self.has_ended = False
        self._receive_end, self._send_end = socket.socket(fileno=receive_end), socket.socket(fileno=send_end)
        for end in (self._receive_end, self._send_end):
            # Else Python would wait for as long as `socket.setdefaulttimeout` says.
            end.setblocking(False)
        self._fd, self._on_wake = receive_end, on_wake
        self._lock, self._is_closed = threading.Lock(), False
        lifelines.add(self)

    def abandon(self) -> None:
        """In a child by fork: the sockets are its parent's."""
        if not self._is_closed:
            self._is_closed = True
            self._receive_end.close()
            self._send_end.close()

    @classmethod
    def accept(cls, receive_end: int, send_end: int, on_wake: Callable[[], None]) -> WakeSockets:
        """Takes copies of the ends that another process has sent; the caller keeps them."""
        if not _is_receive_end(receive_end) or not _is_send_end(send_end):
            raise IpcError('received a channel without its sockets')
        receive_end, send_end = duplicates((receive_end, send_end))
        return cls(receive_end, send_end, on_wake)

    def watch(self) -> None:
        """Begins to call `on_wake`. If it raises, both ends are closed."""
        try:
            background().watch(self._fd, self._on_ready)
        except BaseException:
            self.close()
            raise

    def _on_ready(self) -> None:
        with self._lock:
            if self._is_closed or self.has_ended:
                return
            try:
                data, controls, _, _ = self._receive_end.recvmsg(4096, FD_SPACE, RECEIVE_FLAGS)
                # No wake-up of cuffi has descriptors.
                close_fds(received_fds(controls))
                self.has_ended = not data
            except BlockingIOError:
                return
            except OSError:
                self.has_ended = True
            if self.has_ended:
                background().unwatch(self._fd)
        self._on_wake()

    def wake(self) -> None:
        """Wakes up the other end. Does nothing if it has not read many earlier wake-ups, or has ended."""
        with self._lock:
            if not self._is_closed and not self.has_ended:
                try:
                    self._send_end.send(b'\0', SEND_FLAGS)
                except OSError:
                    pass

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                background().unwatch(self._fd)
                # Nothing can arrive there, so its close never blocks.
                self._send_end.close()
                close_fds([self._receive_end.detach()])


def one_way_sockets() -> tuple[int, int]:
    """A socket that only receives and a socket that only sends to it.

    They serve as a pipe between processes that do not trust each other. The flags of a pipe's open file belong to
    all processes that have it, so any of them could make this one block. A call on a socket says itself that it must
    not block.
    """
    receive_end, send_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    send_end.shutdown(socket.SHUT_RD)
    return receive_end.detach(), send_end.detach()


def _is_receive_end(fd: int) -> bool:
    """Whether a descriptor, from any process, is an end of a socket pair.

    Only those have no name. A named socket may belong to another program, which would take what is sent there as this
    process's words.
    """
    if file_type(fd)[0] != stat.S_IFSOCK:
        return False
    with socket.socket(fileno=os.dup(fd)) as probe:
        try:
            return (probe.family, probe.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and not any(
                (probe.getsockname(), probe.getpeername()))  # fmt: skip
        except OSError:
            return False


def _is_send_end(fd: int) -> bool:
    """As `_is_receive_end`. From now on nothing can arrive there: its queue could hold descriptors whose close blocks."""
    if not _is_receive_end(fd):
        return False
    with socket.socket(fileno=os.dup(fd)) as probe:
        try:
            probe.shutdown(socket.SHUT_RD)
            unread = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
        except OSError:
            return False
    return unread == bytes(4)


class Sleepers:
    """The waits at one end of a channel: they poll for a while, and then sleep until the other end wakes them up."""

    def __init__(self, set_asleep: Callable[[bool], None]) -> None:
        self.busy_poll_us = 0
        self._set_asleep = set_asleep
        self._lock = threading.Lock()
        self._asleep: set[Callable[[], Any]] = set()

    def _polls(self, poll: Callable[[], Any], timeout: Optional[float], what: Any, wake: Callable[[], Any]) -> Generator[float, None, Any]:
        """Polls until there is something, and returns that. Yields for how long to sleep, unless `wake` is called."""
        deadline, eager_until = Deadline(timeout), time.monotonic() + max(self.busy_poll_us / 1e6, _EAGER_S)
        try:
            while True:
                # What comes before the other end can see that this one sleeps wakes up nobody: so it polls once more.
                is_eager = time.monotonic() < eager_until
                if not is_eager:
                    self._fall_asleep(wake)
                found = poll()
                if found is not None:
                    return found
                left = deadline.left(what)
                yield 0 if is_eager else min(left, _SWEEP_S)
        finally:
            with self._lock:
                if wake in self._asleep:
                    self._asleep.remove(wake)
                    if not self._asleep:
                        self._set_asleep(False)

    def _fall_asleep(self, wake: Callable[[], Any]) -> None:
        with self._lock:
            if wake not in self._asleep:
                self._asleep.add(wake)
                self._set_asleep(True)

    def wait(self, poll: Callable[[], Any], timeout: Optional[float], what: Any) -> Any:
        """Returns what `poll` does, when that is not None. Raises TimeoutError, and what `poll` raises."""
        found = poll()
        if found is not None:
            return found
        event = threading.Event()
        polls = self._polls(poll, timeout, what, event.set)
        try:
            while True:
                pause = next(polls)
                if pause:
                    event.wait(pause)
                    event.clear()
                else:
                    time.sleep(0)
        except StopIteration as end:
            return end.value
        finally:
            polls.close()

    async def await_(self, poll: Callable[[], Any], timeout: Optional[float], what: Any) -> Any:
        """As `wait`, for asyncio."""
        await turn_if_due()
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        polls = self._polls(poll, timeout, what, lambda: loop.is_closed() or loop.call_soon_threadsafe(event.set))
        try:
            while True:
                pause = next(polls)
                if pause:
                    # `wait_for` might lose a cancellation.
                    woken = asyncio.ensure_future(event.wait())
                    try:
                        await asyncio.wait((woken,), timeout=pause)
                    finally:
                        woken.cancel()
                        event.clear()
                else:
                    await asyncio.sleep(0)
        except StopIteration as end:
            return end.value
        finally:
            polls.close()

    def wake(self) -> None:
        """Polls all waits again."""
        with self._lock:
            asleep = list(self._asleep)
        for wake in asleep:
            wake()
