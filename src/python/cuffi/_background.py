"""One thread for what nobody waits for."""

from __future__ import annotations

import collections
import math
import os
import select
import time
import traceback
import weakref
from typing import Any, Callable, Optional, Union

from ._errors import IpcError
from ._files import closing_on_error
from ._process import has_failed, locks, process_exit, start_thread


class _Poll:
    __slots__ = ('is_over', 'keeps', 'since', 'due')

    def __init__(self, is_over: Callable[[], Union[bool, float]], keeps: bool, since: float) -> None:
        self.is_over, self.keeps, self.since, self.due = is_over, keeps, since, 0.0


class _Background:
    """One thread for what nobody waits for: it watches descriptors, and polls for the ends of work."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, Callable[[], None]] = {}
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._polls: list[_Poll] = []
        # How many polls this process must not end before.
        self._keeping = 0
        with closing_on_error(self._wake_read, self._wake_write):
            self._epoll.register(self._wake_read, select.EPOLLIN)
            start_thread(self._run, 'background')

    def call(self, what: Callable[[], None]) -> None:
        """Calls it soon in the background. Takes no lock: objects may be collected in the middle of any work."""
        self._calls.append(what)
        try:
            os.write(self._wake_write, b'\0')
        except OSError:
            pass  # Full: it wakes up anyway.

    def watch(self, fd: int, on_ready: Callable[[], None]) -> None:
        """Calls `on_ready` in the background when a descriptor can be read or has ended, and once at first.

        Raises IpcError if the system does not watch one more.
        """
        self._watched[fd] = on_ready
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError as error:
            del self._watched[fd]
            raise IpcError(f'a descriptor cannot be watched: {error.strerror}') from None
        self.call(on_ready)

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self._epoll.unregister(fd)

    def poll(self, is_over: Callable[[], Union[bool, float]], keeps: bool = False, is_urgent: bool = True) -> None:
        """Calls `is_over` in the background until it returns True. With `keeps`, this process waits for that.

        :param is_over: returns False, or for how many seconds it need not be called again
        :param is_urgent: whether the first calls are frequent
        """
        if keeps:
            self._keeping += 1
        poll = _Poll(is_over, keeps, time.monotonic() if is_urgent else 0.0)
        self.call(lambda: self._polls.append(poll))

    def drain(self) -> None:
        """Before this process ends: other processes may wait for what its streams still do."""
        while self._keeping > 0:
            time.sleep(0.0005)

    def _run(self) -> None:
        while True:
            timeout = min((poll.due for poll in self._polls), default=math.inf) - time.monotonic()
            if timeout < 0.001:
                # The system waits for whole milliseconds.
                time.sleep(max(timeout, 0))
                timeout = 0
            for fd, _ in self._epoll.poll(None if timeout == math.inf else timeout):
                if fd != self._wake_read:
                    self._guarded(self._watched.get(fd))
                    continue
                try:
                    os.read(fd, 4096)
                except BlockingIOError:
                    pass
            while self._calls:
                self._guarded(self._calls.popleft())
            # Calls add polls, polls do not.
            self._polls = [poll for poll in self._polls if not self._is_over(poll)]

    def _is_over(self, poll: _Poll) -> bool:
        if poll.due > time.monotonic():
            return False
        rest = self._guarded(poll.is_over)
        if rest is True or rest is None:
            self._keeping -= poll.keeps
            return True
        now = time.monotonic()
        poll.due = now + (rest or (0.0001 if now - poll.since < 0.002 else 0.001))
        return False

    @staticmethod
    def _guarded(what: Optional[Callable[[], Any]]) -> Any:
        try:
            return what and what()
        except Exception:  # It must not end the thread without a word.
            if not process_exit.has_begun:
                traceback.print_exc()
        return None


_the_background: Optional[_Background] = None


def background() -> _Background:
    global _the_background
    if _the_background is None or _the_background.pid != os.getpid():
        with locks.state:
            if _the_background is None or _the_background.pid != os.getpid():
                _the_background = _Background()
    return _the_background


def call_later(what: Callable[[], None]) -> None:
    """Calls it in the background, from anywhere: objects may be collected in the middle of any work, and of its end."""
    background = _the_background
    if background and background.pid == os.getpid() and not process_exit.has_begun:
        background.call(what)


def drain_background() -> None:
    """Before this process ends."""
    if _the_background and _the_background.pid == os.getpid() and not has_failed():
        _the_background.drain()


# What ends for other processes when the last process closes it: a child by fork must not keep it.
lifelines: weakref.WeakSet[Any] = weakref.WeakSet()


def nothing() -> None:
    pass
