"""Timelines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional

from . import _descriptors
from ._background import nothing
from ._deadlines import await_until, check_count, wait_until
from ._descriptors import Fields
from ._errors import IpcError
from ._export import Exported
from ._files import closing_on_error, duplicates, sealed_memory, take_fds
from ._owner import Closable
from ._protocol import KIND_SIGNALER, KIND_TIMELINE, PAGE_BYTE_LENGTH, TIMELINE_VALUE
from ._timeline_state import TimelineState
from ._types import StreamLike
from ._waits import current_stream, enqueue_wait, too_many_waits

if TYPE_CHECKING:
    from ._connection import Connection
    from ._timeline_state import Signaling


class Timeline(Closable):
    """A counter that streams and hosts of several processes wait for. `Timeline()` stands at 0.

    One process signals: the one that created it, or the one that `signaler()` was sent to. All others
    wait. It is sent with `peer.send`. If the signaling process ends, or closes its timeline, streams that
    wait go on, and the waits of hosts raise PeerGoneError. Send it only to processes that you trust: each
    of them can write the counter.

    >>> timeline.signal(1, stream)             # here, behind the work of a stream
    >>> timeline.wait(1, stream)               # there; or timeline.reached(1) on the host

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html
    """

    def __init__(self) -> None:
        memory = sealed_memory(PAGE_BYTE_LENGTH, 'cuffi-timeline')
        with closing_on_error(memory):
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
        super().__init__(TimelineState(memory, read_end, write_end, 0, nothing))

    @classmethod
    def _opened(cls, state: TimelineState) -> Timeline:
        timeline = cls.__new__(cls)
        Closable.__init__(timeline, state)
        return timeline

    @property
    def is_signaler(self) -> bool:
        """Whether this process signals."""
        # Once: another thread may close it meanwhile.
        state: Optional[TimelineState] = self._state
        return state is not None and state.write_end >= 0

    @property
    def value(self) -> int:
        """The last value that was reached; 0 at first. Raises PeerGoneError after the end, IpcError for nonsense."""
        state: TimelineState = self._held()
        value = state.read()
        if value < 0:
            raise IpcError('another process wrote an invalid value to this timeline')
        if state.is_ended:
            raise state.gone()
        return int(value)

    def signal(self, value: int, stream: Optional[StreamLike] = None) -> None:
        """Signals a value when the work that is queued in a stream so far is done. Returns at once.

        Raises ValueError unless it is above the last one, CuffiError if this process does not signal, PeerGoneError if
        the process that handed the signaler over ended before its last value was reached.

        :param stream: by default the legacy default stream
        """
        value = check_count(value, 1, 'value')
        self._held().signal(value, current_stream(stream))

    def wait(self, value: int, stream: Optional[StreamLike] = None) -> None:
        """Makes later work of a stream wait until a value is reached, which need not be signaled yet.

        Raises PeerGoneError if it can no longer come, CuffiError if too many streams wait already. While a
        stream waits, the driver blocks some calls of this process: see docs/waiting.md of cuffi.
        """
        value = check_count(value, 0, 'value')
        state: TimelineState = self._held()
        found = current_stream(stream)
        if not state.is_reached(value) and not enqueue_wait(state.words, TIMELINE_VALUE, value, found):
            raise too_many_waits(value)

    def reached(self, value: int, *, timeout: Optional[float] = None) -> None:
        """Waits on the host until a value is reached. Raises TimeoutError, PeerGoneError, ClosedError."""
        value = check_count(value, 0, 'value')
        state: TimelineState = self._held()
        wait_until(lambda: state.is_reached(value), timeout, lambda: f'value {value} of a timeline that stands at {state.read()}')

    async def areached(self, value: int, *, timeout: Optional[float] = None) -> None:
        """As `reached`."""
        value = check_count(value, 0, 'value')
        state: TimelineState = self._held()
        await await_until(lambda: state.is_reached(value), timeout,
                           lambda: f'value {value} of a timeline that stands at {state.read()}')  # fmt: skip

    def signaler(self) -> TimelineSignaler:
        """Returns the right to signal, to send to another process once: what arrives there signals.

        Values that are queued here still come first. If this process ends before that, the timeline has ended for all.
        Raises CuffiError if this process does not signal, PeerGoneError if the values before never come.
        """
        state: TimelineState = self._held()
        return TimelineSignaler(state.hand_over(), state.last)

    def _export(self) -> Exported:
        state: TimelineState = self._held()
        return Exported(_descriptors.encode(Fields(KIND_TIMELINE)), (), None, None, owned=duplicates(state.fds), root=state)


class TimelineSignaler(Closable):
    """The right to signal a timeline, on its way to another process. If it is closed instead, the timeline ends."""

    # Only cuffi makes one: its constructor is not part of the types that users see.
    def __init__(self, signaling: Any, last: int) -> None:
        super().__init__(signaling)
        self._last = last

    def _export(self) -> Exported:
        signaling: Signaling = self._held()
        exported = Exported(_descriptors.encode(Fields(KIND_SIGNALER, last=self._last)), (), None, None, owned=signaling.take())
        self._state = None

        def restore(fds: list[int]) -> bool:
            if not signaling.put_back(fds):
                return False
            self._state = signaling
            return True

        exported.restore = restore
        return exported


class TimelineFields:
    """A timeline of another process, to wait for it or to signal it."""

    def __init__(self, fields: Fields) -> None:
        self.count, self.last = (3, fields.last) if fields.kind == KIND_SIGNALER else (2, 0)

    def open(self, connection: Connection, fds: list[int], lease: int) -> Timeline:
        memory, lifeline, *write_ends = take_fds(fds, self.count, 'a timeline')
        release = lambda: connection.imports.release(lease)  # noqa: E731
        state = TimelineState(memory, lifeline, (write_ends or [-1])[0], self.last, release, connection)
        return Timeline._opened(state)
