"""Limits of time, and waiting by looking again."""

from __future__ import annotations

import asyncio
import math
import operator
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from ._bytes import SAFE


def check_count(value: Any, least: int, name: str) -> int:
    """Returns an integer of any library as one of Python."""
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise TypeError(f'{name} must be an int, not {type(value).__name__}')
    count = operator.index(value)
    if not least <= count <= SAFE:
        raise ValueError(f'{name} must be from {least} to {SAFE}, not {value}')
    return count


def check_busy_poll(duration: Any) -> int:
    if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 0 <= duration <= 1_000_000:
        raise ValueError(f'busy_poll_us must be from 0 to 1000000, not {duration!r}')
    return int(duration)


def seconds_of(timeout: Any) -> float:
    """A limit as a float. Raises TypeError, ValueError."""
    try:
        seconds = math.nan if isinstance(timeout, (bool, str, bytes)) else float(timeout)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        seconds = math.nan
    if seconds >= 0:
        return seconds
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        raise ValueError(f'timeout must be a number of seconds that is not negative, not {timeout}')
    raise TypeError(f'timeout must be a number of seconds, or None, not {timeout!r}')


class Deadline:
    """The end of a wait that has a limit in seconds, if any."""

    def __init__(self, timeout: Optional[float]) -> None:
        self._timeout, self._at = timeout, math.inf if timeout is None else time.monotonic() + seconds_of(timeout)

    @property
    def is_limited(self) -> bool:
        return self._at < math.inf

    def left_or_none(self) -> Optional[float]:
        """How many seconds are left; None if none are."""
        if self._at == math.inf:
            return math.inf
        left = self._at - time.monotonic()
        return left if left > 0 else None

    def left(self, what: Union[str, Callable[[], str]]) -> float:
        """How many seconds are left. Raises TimeoutError if none are."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f'waiting for {what() if callable(what) else what} took more than {self._timeout} s')
        return left


def pauses(is_done: Callable[[], bool], deadline: Deadline, what: Any) -> Iterator[float]:
    """How long to sleep each time until it is done. Raises TimeoutError."""
    pause = 0.0
    while not is_done():
        deadline.left(what)
        yield pause
        pause = min(pause + 0.00002, 0.001)


def wait_until(is_done: Callable[[], bool], timeout: Optional[float], what: Any) -> None:
    for pause in pauses(is_done, Deadline(timeout), what):
        time.sleep(pause)


async def await_until(is_done: Callable[[], bool], timeout: Optional[float], what: Any) -> None:
    """As `wait_until`, for asyncio."""
    await turn_if_due()
    for pause in pauses(is_done, Deadline(timeout), what):
        await asyncio.sleep(pause)


class _LastTurn(threading.local):
    """When the event loop of this thread was last made to turn."""

    at = 0.0


_last_turn = _LastTurn()
_MAX_S_WITHOUT_TURN = 0.001


async def turn_if_due() -> None:
    """Lets the event loop turn, once a millisecond. What may be ready at once awaits this first.

    A coroutine that awaits in a loop what is always ready would otherwise keep all other tasks waiting.
    """
    if time.monotonic() - _last_turn.at > _MAX_S_WITHOUT_TURN:
        await asyncio.sleep(0)
        _last_turn.at = time.monotonic()
