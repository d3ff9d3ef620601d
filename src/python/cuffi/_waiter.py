"""Who waits for a value or an answer."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Optional, TypeVar

_Error = TypeVar('_Error', bound=BaseException)


class Waiter:
    """A thread that waits for a value or an answer, or the future of an event loop."""

    __slots__ = ('_loop', 'future', 'is_done', 'result')

    def __init__(self, is_async: bool = False) -> None:
        self.is_done = False
        self.result: Any = None
        self._loop = asyncio.get_running_loop() if is_async else None
        self.future: Optional[asyncio.Future[None]] = self._loop.create_future() if self._loop else None

    def settle(self, result: Any) -> None:
        if self.is_done:
            return
        self.is_done, self.result = True, result
        if self._loop:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # The loop is closed: nobody waits any more.

    def _wake(self) -> None:
        if self.future and not self.future.done():
            self.future.set_result(None)

    def take(self) -> Any:
        """Returns the result. Raises it if it is an error."""
        if isinstance(self.result, Exception):
            raise again(self.result)
        return self.result


def again(error: _Error) -> _Error:
    """A copy of an error: a kept one that is raised would keep the frames that it passes, and what they hold."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied
