"""What each end of a connection has begun: to receive values, or to serve requests.

What comes for an end that waits for the other of both would wait for ever. It is refused after a while.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

from ._errors import IpcError
from ._protocol import (
    BEGUN_IGNORING_VALUES,
    BEGUN_RECEIVING,
    BEGUN_SERVING,
    CONTROL_BEGUN,
    FRAME_CONTROL,
    FRAME_REQUEST,
    FRAME_UNSERVED,
    FRAME_VALUE,
    READINESS_WAIT_MS,
)
from ._wire import NULL

if TYPE_CHECKING:
    from ._connection import Connection
    from ._waiter import Waiter

_IGNORING = BEGUN_SERVING | BEGUN_IGNORING_VALUES


class Readiness:
    """Its lock is that of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.begun = self.peer_begun = 0
        # How many threads wait for what.
        self.waiting_for = {0: 0, FRAME_VALUE: 0, FRAME_REQUEST: 0}
        # Sends whose values may never be received.
        self.unconfirmed: list[Waiter] = []
        # Until when what is stuck may still be waited for.
        self.stuck_until: Optional[float] = None

    def begin(self, kind: int) -> None:
        """Tells the other end that this one receives values, or serves requests. Call it before it waits for any."""
        what = BEGUN_RECEIVING if kind == FRAME_VALUE else BEGUN_SERVING
        if not self.begun & what:
            with self._connection.mutex:
                begun = self.begun | what
                self._tell(begun & ~BEGUN_IGNORING_VALUES if begun & BEGUN_RECEIVING else begun)

    def _tell(self, begun: int) -> None:
        self.begun = begun
        if self._connection.end is None:
            self._connection.outbox.post(FRAME_CONTROL, bytes((CONTROL_BEGUN, begun)))

    # ---- What is stuck here ----

    @property
    def is_stuck(self) -> bool:
        return self._are_requests_stuck() or self._are_values_stuck()

    def _are_requests_stuck(self) -> bool:
        """Whether requests wait for an end that waits for values, and has never served."""
        inbox = self._connection.inbox
        return not self.begun & BEGUN_SERVING and bool(inbox.requests) and not inbox.values and self._waits_for(FRAME_VALUE)

    def _are_values_stuck(self) -> bool:
        """Whether values wait for an end that waits for requests, and has never received."""
        inbox = self._connection.inbox
        return self.begun == BEGUN_SERVING and bool(inbox.values) and not inbox.unanswered and self._waits_for(FRAME_REQUEST)

    def _waits_for(self, kind: int) -> bool:
        inbox = self._connection.inbox
        waiters = inbox.value_waiters if kind == FRAME_VALUE else inbox.request_waiters
        return self.waiting_for[kind] > 0 or any(not waiter.is_done for waiter in waiters)

    def watch(self) -> None:
        with self._connection.mutex:
            if not self.is_stuck:
                self.stuck_until = None
            elif self.stuck_until is None:
                self.stuck_until = time.monotonic() + READINESS_WAIT_MS / 1000

    def refuse_stuck(self) -> None:
        connection, inbox = self._connection, self._connection.inbox
        self.stuck_until = None
        if self._are_values_stuck():
            self._tell(self.begun | BEGUN_IGNORING_VALUES)
        while inbox.requests and self._are_requests_stuck():
            arrived = inbox.requests.popleft()
            inbox.forget_request(arrived)
            inbox.discard(arrived)
            if connection.end is None:
                connection.outbox.post(FRAME_UNSERVED, NULL, request=arrived.request)

    # ---- What is stuck there ----

    def on_peer_begun(self, begun: int) -> None:
        self.peer_begun = begun
        if begun & BEGUN_RECEIVING:
            self._confirm(None)
        elif begun & BEGUN_IGNORING_VALUES:
            error = self.not_received()
            self._confirm(error)
            for message in self._connection.outbox.queue:
                # It is still sent, but nobody receives it.
                if message.waiter:
                    message.waiter.settle(error)

    def _confirm(self, result: Optional[Exception]) -> None:
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for waiter in unconfirmed:
            waiter.settle(result)
        self._connection.cond.notify_all()

    @property
    def are_values_ignored(self) -> bool:
        """Whether the other end has said that it receives no values."""
        return self.peer_begun == _IGNORING

    @property
    def needs_confirmation(self) -> bool:
        """Whether a value is only sent for sure when the other end has begun to receive."""
        return self.peer_begun == BEGUN_SERVING

    def not_received(self) -> IpcError:
        return IpcError(
            f'{self._connection.name} receives no values: it serves requests and has never called receive(). '
            'Receive there, or send requests',
            'not-received',
        )

    def hint(self, kind: int) -> str:
        """Why a value or a request may still wait, for its time-out."""
        begun = self.peer_begun
        name, what = ('receive', BEGUN_RECEIVING) if kind == FRAME_VALUE else ('serve', BEGUN_SERVING)
        if kind == FRAME_REQUEST and begun & BEGUN_IGNORING_VALUES:
            return ': unreceived values are queued there, and later messages wait behind them'
        if begun & what:
            return ''
        if not begun:
            does = 'has neither received nor served yet'
        elif begun & BEGUN_SERVING:
            does = 'serves requests and has never received'
        else:
            does = 'receives values and has never served'
        return f': {self._connection.name} {does}: does it call {name}()?'
