"""Signals that come while a connection is changed."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    import signal as _signal  # Its functions have the same types.
else:
    # As `signal`, which makes enums of the handlers at each call: that would take longer than to send a message.
    import _signal

_get, _set = _signal.getsignal, _signal.signal
# Those that programs handle in Python.
_NUMBERS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGALRM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)


class _Signals:
    """Puts off the signals of the main thread while it changes a connection: their handlers may raise at any instruction.

    What waits calls `check`, where those run that came meanwhile; the rest run at the end.
    """

    def __init__(self) -> None:
        # Handlers run only in the main thread.
        self._main = threading.main_thread().ident
        self._depth = 0
        # The handlers of the program: all that were found last, and those that are functions.
        self._found: tuple[Any, ...] = ()
        self._handlers: dict[int, Any] = {}
        self._numbers: list[int] = []
        # What came meanwhile, in order.
        self.came: list[tuple[Any, int, Any]] = []
        self._wake: Optional[Callable[[], None]] = None
        self._put_off = self._on_signal

    def __enter__(self) -> None:
        if get_ident() != self._main:
            return
        if not self._depth:
            found = tuple(map(_get, _NUMBERS))
            if found != self._found:
                self._handlers = {number: handler for number, handler in zip(_NUMBERS, found) if callable(handler)}
                self._numbers = list(self._handlers)
                self._found = found
            try:
                for number in self._numbers:
                    _set(number, self._put_off)
            except BaseException:
                self._restore(self._numbers)
                raise
        self._depth += 1

    def __exit__(self, *_: Any) -> None:
        if get_ident() != self._main:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        # Its last instruction that a handler cannot end is the first one here that sets one back.
        self._depth = 0
        self._restore(self._numbers)
        if self.came:
            self._deliver()

    def abandon(self) -> None:
        """In a child by fork: the call that has put them off is another thread's, which the child has not."""
        self._main = threading.main_thread().ident
        self._depth, self.came, self._wake = 0, [], None
        self._restore(self._numbers)

    def _restore(self, numbers: list[int]) -> None:
        if not numbers:
            return
        number = numbers[-1]
        try:
            # A handler that has run may have set another one.
            if _get(number) is self._put_off:
                _set(number, self._handlers[number])
        finally:
            if len(numbers) > 1:
                self._restore(numbers[:-1])

    def _on_signal(self, number: int, frame: Any) -> None:
        self.came.append((self._handlers.get(number), number, frame))
        if self._wake:
            self._wake()

    def check(self) -> None:
        """Runs the handlers of what came. They may raise."""
        if self.came and get_ident() == self._main:
            self._deliver()

    def _deliver(self) -> None:
        if self.came:
            handler, number, frame = self.came.pop(0)
            try:
                if handler:
                    handler(number, frame)
            finally:
                self._deliver()

    def wake_by(self, wake: Optional[Callable[[], None]]) -> Optional[Callable[[], None]]:
        """Has `wake` called when a signal comes, as to end a poll: in the middle of any work. Returns what was called before."""
        if get_ident() != self._main:
            return None
        before, self._wake = self._wake, wake
        return before


signals = _Signals()
