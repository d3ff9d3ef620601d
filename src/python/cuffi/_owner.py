"""What owns memory or a connection: closed once, and never copied."""

from __future__ import annotations

from typing import Any, TypeVar

from ._background import background, call_later
from ._errors import ClosedError

_Context = TypeVar('_Context', bound='Context')
_Closable = TypeVar('_Closable', bound='Closable')


class Owner:
    """What owns something, which a copy would free or release as well."""

    __slots__ = ()
    _instead = 'refer to it'

    def __reduce_ex__(self, _: Any) -> Any:
        # All of copy, deepcopy and pickle come here.
        raise TypeError(f'this {type(self).__name__} can neither be copied nor pickled, as a copy would free what it uses: {self._instead}')


class Context(Owner):
    """What a `with` block closes."""

    _why_closed = 'close() was called'

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes it. The second call does nothing."""
        raise NotImplementedError

    def __enter__(self: _Context) -> _Context:
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.closed:
            self._why_closed = 'its with block ended'
        self.close()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f'this {type(self).__name__} is closed: {self._why_closed}')


class Closable(Context):
    """What is closed by `close()`, a `with` block, or the last reference."""

    _instead = 'refer to it, or send it with peer.send()'
    _state: Any = None

    def __init__(self, state: Any) -> None:
        # Now: none can be started while objects are collected.
        background()
        self._state = state

    @property
    def closed(self) -> bool:
        """Whether `close()` was called, or a `with` block has ended."""
        return self._state is None

    def _held(self) -> Any:
        state = self._state
        if state is None:
            raise self._closed_error()
        return state

    def _export(self) -> Any:
        """Returns the `Exported` of it, if it can be sent."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes it. Does not wait. The second call does nothing."""
        state, self._state = self._state, None
        if state is not None:
            state.close()

    def __enter__(self: _Closable) -> _Closable:
        self._held()
        return self

    def __del__(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            call_later(state.close)

    def __repr__(self) -> str:
        return f'<cuffi.{type(self).__name__}{" closed" if self.closed else ""}>'
