"""Requests and their answers: what the calls of threads and those of tasks have in common."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, Optional

from ._errors import IpcError, RemoteError
from ._inbox import Arrived
from ._protocol import FRAME_CANCELLATION, FRAME_FAILURE, FRAME_REQUEST, FRAME_RESPONSE, MAX_PENDING_REQUESTS
from ._signals import signals
from ._wire import NULL

if TYPE_CHECKING:
    from ._connection import Connection
    from ._outbox import Prepared
    from ._waiter import Waiter
    from ._wire import Outgoing

# The request that this thread or task answers.
answered: contextvars.ContextVar[Optional[int]] = contextvars.ContextVar('cuffi_answered', default=None)


def given_up_error() -> RemoteError:
    return RemoteError('the request was canceled', 'AbortError')


def result_of(arrived: Arrived, value: Any) -> Any:
    """What an answer says, whose value was opened. Raises what the handler has raised."""
    if arrived.kind == FRAME_RESPONSE:
        return value
    raise value if isinstance(value, RemoteError) else RemoteError(repr(value))


class Requests:
    """The requests of both ends of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0

    # ---- Of this end ----

    def ask(self, prepared: Prepared, waiter: Waiter) -> Outgoing:
        connection = self._connection
        with signals, connection.mutex:
            asked = connection.inbox.asked
            if len(asked) >= MAX_PENDING_REQUESTS:
                raise IpcError(f'{MAX_PENDING_REQUESTS} requests are already pending: wait for some of them first', 'limit-exceeded')
            number = self._last % 0xFFFFFFFF + 1
            message = connection.outbox.send(prepared, FRAME_REQUEST, number)
            self._last = number
            asked[number] = waiter
        return message

    def give_up(self, message: Outgoing, waiter: Waiter) -> None:
        connection = self._connection
        with signals, connection.mutex:
            if waiter.is_done:
                # Its answer has come, or an error.
                if isinstance(waiter.result, Arrived):
                    connection.inbox.discard(waiter.result)
            elif connection.outbox.take_back(message, waiter):
                connection.inbox.asked.pop(message.request, None)
            elif connection.end is None:
                # Its answer still comes.
                waiter.settle(None)
                connection.outbox.post(FRAME_CANCELLATION, NULL, request=message.request)

    # ---- Of the other end ----

    def begin(self, arrived: Arrived) -> bool:
        """Returns False for a request that was given up before it was begun, which is then answered."""
        with self._connection.mutex:
            if self._connection.inbox.begin_request(arrived):
                return True
        self.reply(arrived.request, given_up_error(), FRAME_FAILURE, None)
        return False

    def reply(self, number: int, result: Any, kind: int, stream: Any) -> None:
        """Answers with a value or an error; if that cannot be sent, with the reason."""
        outbox = self._connection.outbox
        with signals:
            try:
                prepared = outbox.prepare(result, stream)
            except Exception as error:
                kind = FRAME_FAILURE
                try:
                    prepared = outbox.prepare(error, None)
                except Exception:
                    unsent = RemoteError(f'an answer or error of class {type(result).__name__} cannot be sent')
                    prepared = outbox.prepare(unsent, None)
            self.post_reply(number, prepared, kind)

    def post_reply(self, number: int, prepared: Prepared, kind: int) -> None:
        connection = self._connection
        with connection.mutex:
            connection.inbox.unanswered.discard(number)
            connection.inbox.canceled.discard(number)
            if connection.end is None:
                connection.outbox.send(prepared, kind, number)
