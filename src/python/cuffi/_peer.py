"""The process at the other end of a connection."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._aio import AsyncPeer
from ._deadlines import Deadline, check_busy_poll
from ._devices import stream_handle
from ._errors import ClosedError, CuffiError
from ._opening import begin_open, finish_open, open_arrived
from ._process import process_exit
from ._protocol import FRAME_FAILURE, FRAME_REQUEST, FRAME_RESPONSE, FRAME_VALUE
from ._requests import answered, given_up_error, result_of
from ._signals import signals
from ._stats import LeaseCounts, PeerStats, RequestCounts, Traffic, Unsent
from ._types import StreamLike
from ._waiter import Waiter

if TYPE_CHECKING:
    from ._inbox import Arrived


class Peer(AsyncPeer):
    """The process at the other end of a connection. `with peer:` closes it.

    Any thread may use it. Each method that waits takes `timeout` in seconds, and raises TimeoutError.
    After the end they raise ClosedError, PeerGoneError or IpcError, as `peer.end`.
    """

    def __del__(self) -> None:
        """Nobody can use it any more: its thread closes it."""
        if process_exit and not process_exit.has_begun:
            self._connection.is_dropped = True
            self._connection.kick()

    @property
    def pid(self) -> int:
        """Of the other process; 0 if it is in another pid namespace."""
        return self._connection.pid

    @property
    def uid(self) -> int:
        """The user of the other process."""
        return self._connection.uid

    @property
    def gid(self) -> int:
        """The group of the other process."""
        return self._connection.gid

    @property
    def end(self) -> Optional[Exception]:
        """Why the connection has ended; None while it is open."""
        return self._connection.end

    @property
    def lent(self) -> int:
        """How many arrays, buffers and events the other end holds of this one."""
        return len(self._connection.exports.leases)

    @property
    def held(self) -> int:
        """How many arrays, buffers and events this end holds of the other."""
        return len(self._connection.imports.leases)

    @property
    def busy_poll_us(self) -> int:
        """For how many microseconds a wait of a thread polls before it sleeps; 0 at first.

        It then finds at once what arrives in that time, and takes a whole core meanwhile. For tasks of asyncio nothing
        changes.
        """
        return round(self._connection.busy_poll_s * 1e6)

    @busy_poll_us.setter
    def busy_poll_us(self, duration: int) -> None:
        self._connection.busy_poll_s = check_busy_poll(duration) / 1e6

    def stats(self) -> PeerStats:
        """Returns what it has sent and received so far, and what waits. Also after the end."""
        connection = self._connection
        outbox, inbox = connection.outbox, connection.inbox
        with connection.mutex:
            return PeerStats(
                Traffic(outbox.sent_messages, outbox.sent_bytes, outbox.sent_objects),
                Traffic(inbox.received_messages, inbox.received_bytes, inbox.received_objects),
                Unsent(len(outbox.queue), sum(len(message.body) - message.at for message in outbox.queue)),
                len(inbox.values),
                RequestCounts(len(inbox.asked), len(inbox.unanswered)),
                LeaseCounts(self.lent, self.held))  # fmt: skip

    # ---- Values ----

    def send(self, value: Any, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> None:
        """Sends a value. Waits for the work on its GPU objects, unless `stream` is given.

        Raises TypeError and ValueError for what cannot be sent, IpcError for memory without a handle; with the
        code `not-received` if the other end serves requests and has never received.
        """
        connection, deadline = self._connection, Deadline(timeout)
        outbox = connection.outbox
        with signals:
            prepared = outbox.prepare(value, stream, deadline)
            if outbox.send_at_once(prepared):
                return
            waiter = Waiter()
            message = outbox.send(prepared, waiter=waiter)
            if not waiter.is_done:
                is_over = lambda: waiter.is_done or connection.is_socket_closed  # noqa: E731
                try:
                    connection.wait(is_over, deadline, 'room to send')
                except BaseException as error:
                    is_limit = isinstance(error, TimeoutError)
                    if not outbox.take_back(message, waiter) and is_limit and waiter not in connection.readiness.unconfirmed:
                        # The other end reads it already. It would arrive in any case.
                        connection.wait(is_over, Deadline(None), 'room to send')
                    elif is_limit:
                        raise TimeoutError(f'{error}{connection.readiness.hint(FRAME_VALUE)}') from None
                    else:
                        raise
        waiter.take()

    def receive(self, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> Any:
        """Returns the next value, when the sender's work on it is done, or makes `stream` wait for that.

        What was not returned in time is returned by the next call.
        """
        if stream is not None:
            stream_handle(stream)
        deadline = Deadline(timeout)
        taken: list[Arrived] = []
        with signals:
            self._connection.wait(lambda: self._take_value(taken), deadline, 'a value', FRAME_VALUE)
            arrived = taken.pop()
            begin_open(arrived, stream)
            try:
                if arrived.points or arrived.events:
                    finish_open(arrived, deadline)
                signals.check()
            except BaseException as error:
                if not isinstance(error, CuffiError):
                    self._put_back(arrived)
                raise
            value = arrived.take()
            # Here: what a signal raises in the end of an object is lost.
            del arrived
            return value

    def __iter__(self) -> Iterator[Any]:
        """The values, until the other end closes the connection. Raises PeerGoneError, IpcError."""
        while True:
            try:
                value = self.receive()
            except ClosedError:
                if self.closed:
                    return
                raise
            yield value
            del value

    # ---- Requests ----

    def request(self, value: Any, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> Any:
        """Returns what the other end's handler answers. Raises RemoteError for what it throws.

        Raises IpcError with the code `not-served` if the other end waits for values and has never served.
        """
        connection, waiter, deadline = self._connection, Waiter(), Deadline(timeout)
        with signals:
            message = self._requests.ask(connection.outbox.prepare(value, stream, deadline), waiter)
            try:
                connection.wait(lambda: waiter.is_done, deadline, 'an answer')
            except BaseException as error:
                self._requests.give_up(message, waiter)
                if isinstance(error, TimeoutError):
                    raise TimeoutError(f'{error}{connection.readiness.hint(FRAME_REQUEST)}') from None
                raise
            return result_of(waiter.take(), open_arrived(waiter.take(), stream, deadline))

    def serve(self, handler: Callable[[Any], Any], *, stream: Optional[StreamLike] = None) -> None:
        """Answers requests with `handler(value)`, in this thread, until the connection ends.

        What it raises is raised at the other end. `peer.given_up` tells it whether anybody still waits for the answer.
        Raises PeerGoneError, IpcError.
        """
        if inspect.iscoroutinefunction(handler):
            raise TypeError('serve takes a function, not a coroutine function: use aserve')
        connection, forever = self._connection, Deadline(None)
        taken: list[Arrived] = []
        while True:
            with signals:
                connection.wait(lambda: self._take_request(taken), forever, 'a request', FRAME_REQUEST)
                if not taken:
                    break
                arrived = taken.pop()
                is_begun = self._requests.begin(arrived)
            if is_begun:
                with self._answering(arrived.request, stream) as answer:
                    token = answered.set(arrived.request)
                    try:
                        result = handler(open_arrived(arrived, stream, forever))
                    finally:
                        answered.reset(token)
                    if inspect.iscoroutine(result):
                        result.close()
                        raise TypeError('the handler has returned a coroutine: use aserve')
                    answer.append(result)
                    del result
        self._raise_unless_closed()

    @contextlib.contextmanager
    def _answering(self, number: int, stream: Any) -> Generator[list[Any], None, None]:
        """Replies with what is put into the list, or with what is raised."""
        answer: list[Any] = []
        try:
            yield answer
        except Exception as error:
            self._requests.reply(number, error, FRAME_FAILURE, stream)
        except BaseException:
            self._requests.reply(number, given_up_error(), FRAME_FAILURE, None)
            raise
        else:
            self._requests.reply(number, answer.pop(), FRAME_RESPONSE, stream)

    @property
    def given_up(self) -> bool:
        """In a handler: whether nobody waits for its answer, as the request was given up or the connection has ended."""
        number = answered.get()
        return number is not None and (number in self._connection.inbox.canceled or self.closed)

    # ---- The end ----

    def close(self) -> None:
        """Closes the connection. What was received stays usable until it is closed. The second call does nothing."""
        self._connection.close(self._why_closed)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f'<cuffi.Peer {self._connection.name}{" closed" if self.closed else ""}>'
