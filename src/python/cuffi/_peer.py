"""The process at the other end of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import select
from typing import Any, AsyncIterator, Callable, Coroutine, Deque, Generator, Iterator, List, Optional, Set, TYPE_CHECKING

from ._connection import Arrived, Slot, again
from ._deadlines import Deadline, check_count, turn_if_due
from ._devices import stream_handle
from ._errors import ClosedError, CuffiError, IpcError, RemoteError
from ._owner import Context
from ._process import process_exit
from ._protocol import FRAME_CANCELLATION, FRAME_FAILURE, FRAME_REQUEST, FRAME_RESPONSE, FRAME_VALUE, MAX_PENDING_REQUESTS
from ._signals import signals
from ._types import StreamLike
from ._wire import NULL

if TYPE_CHECKING:
    from ._connection import Connection, Later
    from ._wire import Outgoing, Prepared


class Peer(Context):
    """The process at the other end of a connection. `with peer:` closes it.

    Any thread may use it. Each method that waits takes `timeout` in seconds, and raises TimeoutError.
    After the end they raise ClosedError, PeerGoneError or IpcError, as `peer.end`.
    """

    # Only cuffi makes one: what it is made of is no part of the types that users see.
    def __init__(self, connection: Any) -> None:
        self._connection: Connection = connection

    def __del__(self) -> None:
        """Nobody can use it any more: its thread closes it."""
        if process_exit and not process_exit.has_begun:
            self._connection._is_dropped = True
            self._connection._kick()

    @property
    def pid(self) -> int:
        """Of the other process; 0 if it is in another pid namespace."""
        return self._connection.pid

    @property
    def uid(self) -> int:
        """The user id of the other process, as the kernel knows it."""
        return self._connection.uid

    @property
    def gid(self) -> int:
        """The group id of the other process, as the kernel knows it."""
        return self._connection.gid

    @property
    def end(self) -> Optional[Exception]:
        """Why the connection has ended; None while it is open."""
        return self._connection.end

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, at either end."""
        return self.end is not None

    @property
    def lent(self) -> int:
        """How many arrays, buffers and events the other end holds of this one."""
        return len(self._connection._exports)

    @property
    def held(self) -> int:
        """How many arrays, buffers and events this end holds of the other."""
        return len(self._connection._imports)

    # ---- Values ----

    def send(self, value: Any, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> None:
        """Sends a value. Waits for the work on its GPU objects, unless `stream` is given.

        Raises TypeError and ValueError for what cannot be sent, IpcError for memory without a handle; with the
        code `not-received` if the other end serves requests and has never received.
        """
        connection, slot, deadline = self._connection, Slot(), Deadline(timeout)
        with signals:
            message = connection.send(connection.prepare(value, stream, deadline), slot=slot)
            if not slot.is_done:
                is_over = lambda: slot.is_done or connection._is_socket_closed  # noqa: E731
                try:
                    connection.wait(is_over, deadline, 'room to send')
                except BaseException as error:
                    is_limit = isinstance(error, TimeoutError)
                    if not connection.take_back(message, slot) and is_limit and slot not in connection._unconfirmed:
                        # The other end reads it already. It would arrive in any case.
                        connection.wait(is_over, Deadline(None), 'room to send')
                    elif is_limit:
                        raise TimeoutError(f'{error}{connection.hint(FRAME_VALUE)}') from None
                    else:
                        raise
        slot.take()

    def receive(self, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> Any:
        """Returns the next value, when the sender's work on it is done, or makes `stream` wait for that.

        What was not returned in time is returned by the next call.
        """
        stream_handle(stream)
        connection, deadline = self._connection, Deadline(timeout)
        taken: List[Arrived] = []
        with signals:
            connection.wait(lambda: self._take_value(taken), deadline, 'a value', FRAME_VALUE)
            arrived = taken.pop()
            connection.begin_open(arrived, stream)
            try:
                connection.finish_open(arrived, deadline)
                signals.check()
            except BaseException as error:
                if not isinstance(error, CuffiError):
                    self._put_back(arrived)
                raise
            value = arrived.take()
            # Here: what a signal raises in the end of an object is lost.
            del arrived
            return value

    def _take_value(self, taken: List[Arrived]) -> bool:
        """Takes a value, if there is one. Raises the end."""
        connection = self._connection
        with connection._cond:
            if not connection._values:
                if connection.end is not None:
                    raise again(connection.end)
                return False
            arrived = connection._values.popleft()
            connection._queued_bytes -= arrived.size + 4096 * len(arrived.objects)
            connection._queued_fds -= arrived.fd_count
            if connection._is_read and not connection._poll_events & select.POLLIN:
                connection._kick()
            taken.append(arrived)
            return True

    def _put_back(self, arrived: Arrived) -> None:
        """The next call gets what this one has not returned."""
        with self._connection._cond:
            self._connection.offer(arrived, is_first=True)

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
        connection, slot, deadline = self._connection, Slot(), Deadline(timeout)
        with signals:
            message = self._ask(connection.prepare(value, stream, deadline), slot)
            try:
                connection.wait(lambda: slot.is_done, deadline, 'an answer')
            except BaseException as error:
                self._give_up(message, slot)
                if isinstance(error, TimeoutError):
                    raise TimeoutError(f'{error}{connection.hint(FRAME_REQUEST)}') from None
                raise
            return self._answer(slot.take(), connection.open(slot.take(), stream, deadline))

    def _ask(self, prepared: Prepared, slot: Slot) -> Outgoing:
        connection = self._connection
        with signals, connection._cond:
            if len(connection._asked) >= MAX_PENDING_REQUESTS:
                raise IpcError(f'{MAX_PENDING_REQUESTS} requests wait for their answers', 'limit-exceeded')
            number = connection._last_question % 0xFFFFFFFF + 1
            message = connection.send(prepared, FRAME_REQUEST, number)
            connection._last_question = number
            connection._asked[number] = slot
        return message

    def _give_up(self, message: Outgoing, slot: Slot) -> None:
        connection = self._connection
        with signals, connection._cond:
            if slot.is_done:
                if isinstance(slot.result, Arrived):
                    connection.discard(slot.result)
            elif connection.take_back(message, slot):
                connection._asked.pop(message.request, None)
            elif connection.end is None:
                # Its answer still comes.
                slot.settle(None)
                connection._post(FRAME_CANCELLATION, NULL, request=message.request)

    @staticmethod
    def _answer(arrived: Arrived, value: Any) -> Any:
        if arrived.kind == FRAME_RESPONSE:
            return value
        raise value if isinstance(value, RemoteError) else RemoteError(repr(value))

    def serve(self, handler: Callable[[Any], Any], *, stream: Optional[StreamLike] = None) -> None:
        """Answers requests with `handler(value)`, in this thread, until the connection ends.

        What it raises is raised at the other end. `peer.given_up` tells it whether anybody still waits for the answer.
        Raises PeerGoneError, IpcError.
        """
        if inspect.iscoroutinefunction(handler):
            raise TypeError('serve takes a function, not a coroutine function: use aserve')
        connection, forever = self._connection, Deadline(None)
        taken: List[Arrived] = []
        while True:
            with signals:
                connection.wait(lambda: self._take_request(taken), forever, 'a request', FRAME_REQUEST)
                if not taken:
                    break
                arrived = taken.pop()
                is_begun = self._begin_answer(arrived)
            if is_begun:
                with self._answering(arrived.request, stream) as answer:
                    answered = _answered.set(arrived.request)
                    try:
                        result = handler(connection.open(arrived, stream, forever))
                    finally:
                        _answered.reset(answered)
                    if inspect.iscoroutine(result):
                        result.close()
                        raise TypeError('the handler has returned a coroutine: use aserve')
                    answer.append(result)
                    del result
        if not isinstance(connection.end, ClosedError):
            raise again(connection.end)

    @property
    def given_up(self) -> bool:
        """In a handler: whether nobody waits for its answer, as the request was given up or the connection has ended."""
        number = _answered.get()
        return number is not None and (number in self._connection._canceled or self.closed)

    def _take_request(self, taken: List[Arrived]) -> bool:
        """Takes a request, if there is one. Returns True without one at the end."""
        connection = self._connection
        if connection._requests:
            taken.append(connection._requests.popleft())
        return bool(taken) or connection.end is not None

    def _begin_answer(self, arrived: Arrived) -> bool:
        """Returns False for a request that was given up before it was begun."""
        connection = self._connection
        with connection._cond:
            connection._request_bytes -= arrived.size
            if arrived.request not in connection._canceled:
                return True
            connection.discard(arrived)
        self._reply(arrived.request, _given_up(), FRAME_FAILURE, None)
        return False

    @contextlib.contextmanager
    def _answering(self, number: int, stream: Any) -> Generator[List[Any], None, None]:
        """Replies with what is put into the list, or with what is raised."""
        answer: List[Any] = []
        try:
            yield answer
        except Exception as error:
            self._reply(number, error, FRAME_FAILURE, stream)
        except BaseException:
            self._reply(number, _given_up(), FRAME_FAILURE, None)
            raise
        else:
            self._reply(number, answer.pop(), FRAME_RESPONSE, stream)

    def _reply(self, number: int, result: Any, kind: int, stream: Any) -> None:
        with signals:
            self._reply_once(number, result, kind, stream)

    def _reply_once(self, number: int, result: Any, kind: int, stream: Any) -> None:
        connection = self._connection
        try:
            prepared = connection.prepare(result, stream)
        except Exception as error:
            kind = FRAME_FAILURE
            try:
                prepared = connection.prepare(error, None)
            except Exception:
                prepared = connection.prepare(RemoteError(f'an answer or error of class {type(result).__name__} cannot be sent'), None)
        self._post_reply(number, prepared, kind)

    def _post_reply(self, number: int, prepared: Prepared, kind: int) -> None:
        connection = self._connection
        with connection._cond:
            connection._unanswered.discard(number)
            connection._canceled.discard(number)
            if connection.end is None:
                connection.send(prepared, kind, number)

    # ---- The same for asyncio ----

    def asend(self, value: Any, *, stream: Optional[StreamLike] = None) -> Coroutine[Any, Any, None]:
        """As `send`. Encodes at the call, and sends in the order of the calls, when the work on the value is done.

        Canceling takes it back, unless the other end reads it already. Called outside of an event loop, it begins when
        it is awaited.
        """
        try:
            slot = Slot(is_async=True)
        except RuntimeError:
            return self._asend_when_awaited(value, stream)

        def post(prepared: Prepared) -> Outgoing:
            return self._connection.send(prepared, slot=slot)

        return self._asent(self._connection.send_later(value, stream, post, slot.settle), slot)

    async def _asend_when_awaited(self, value: Any, stream: Any) -> None:
        await self.asend(value, stream=stream)

    async def _asent(self, later: Later, slot: Slot) -> None:
        connection = self._connection
        try:
            await self._until(slot)
        except BaseException:
            with connection._cond:
                later.prepared = None
                if later.posted:
                    connection.take_back(later.posted, slot)
            raise
        slot.take()
        await turn_if_due()

    async def _until(self, slot: Slot) -> None:
        if slot.is_done:
            return
        # The thread of the connection reads.
        with self._connection._cond:
            self._connection._cond.notify_all()
            self._connection._kick()
        await slot.future  # type: ignore[misc]

    async def _next(self, take: Callable[[List[Arrived]], bool], slots: Deque[Slot]) -> Any:
        """What `take` finds, or is given to a slot: a value, a request, or the end. What comes for a canceled call is put back."""
        await turn_if_due()
        connection, slot = self._connection, Slot(is_async=True)
        taken: List[Arrived] = []
        connection.begin(FRAME_VALUE if slots is connection._value_slots else FRAME_REQUEST)
        with connection._cond:
            if take(taken):
                slot.settle(taken.pop() if taken else connection.end)
            else:
                slots.append(slot)
        try:
            await self._until(slot)
        except BaseException:
            with connection._cond:
                if isinstance(slot.result, Arrived):
                    connection.offer(slot.result, is_first=True)
                elif slot in slots:
                    slots.remove(slot)
            raise
        return slot.result

    async def areceive(self, *, stream: Optional[StreamLike] = None) -> Any:
        """As `receive`. What arrived for a canceled call is returned by the next one."""
        found = await self._next(self._take_value, self._connection._value_slots)
        if not isinstance(found, Arrived):
            raise again(found)
        try:
            return await self._aopen(found, stream)
        except asyncio.CancelledError:
            self._put_back(found)
            raise

    async def _aopen(self, arrived: Arrived, stream: Any) -> Any:
        connection = self._connection
        connection.begin_open(arrived, stream)
        while (arrived.points or arrived.events) and not connection.is_ready(arrived):
            await asyncio.sleep(0.0002)
        return arrived.take()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            try:
                value = await self.areceive()
            except ClosedError:
                if self.closed:
                    return
                raise
            yield value
            del value

    async def arequest(self, value: Any, *, stream: Optional[StreamLike] = None) -> Any:
        """As `request`, sent in the order of `asend`. Canceling the task gives the request up."""
        connection, slot = self._connection, Slot(is_async=True)
        later = connection.send_later(value, stream, lambda prepared: self._ask(prepared, slot), slot.settle)
        try:
            await self._until(slot)
        except BaseException:
            with connection._cond:
                later.prepared = None
                if later.posted:
                    self._give_up(later.posted, slot)
            raise
        return self._answer(slot.take(), await self._aopen(slot.take(), stream))

    async def aserve(self, handler: Callable[[Any], Any], *, stream: Optional[StreamLike] = None, concurrency: int = 1,
                     stop: Optional[asyncio.Event] = None) -> None:  # fmt: skip
        """As `serve`, with a handler that may be a coroutine. It is canceled when its request is given up.

        :param concurrency: how many requests are answered at a time
        :param stop: when it is set, no more requests are taken: those that are begun are answered, and it returns
        """
        check_count(concurrency, 1, 'concurrency')
        connection = self._connection
        running: Set[asyncio.Task[None]] = set()
        failed: List[BaseException] = []

        def on_done(task: 'asyncio.Task[None]') -> None:
            running.discard(task)
            error = None if task.cancelled() else task.exception()
            if error:
                failed.append(error)

        try:
            while not (failed or (stop and stop.is_set())):
                arrived = await self._next_until(stop)
                if not isinstance(arrived, Arrived):
                    break
                if not self._begin_answer(arrived):
                    continue
                if concurrency == 1:
                    await self._aanswer(arrived, handler, stream)
                    continue
                task = asyncio.ensure_future(self._aanswer(arrived, handler, stream))
                running.add(task)
                task.add_done_callback(on_done)
                if len(running) >= concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            while running:
                await asyncio.wait(running)
        except BaseException:
            for task in running:
                task.cancel()
            while running:
                await asyncio.wait(running)
            raise
        if failed:
            raise failed[0]
        if connection.end is not None and not isinstance(connection.end, ClosedError):
            raise again(connection.end)

    async def _next_until(self, stop: Optional[asyncio.Event]) -> Any:
        """The next request, or the end; None if `stop` is set before."""
        slots = self._connection._request_slots
        if stop is None:
            return await self._next(self._take_request, slots)
        taking, stopping = asyncio.ensure_future(self._next(self._take_request, slots)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if taking.done() and not taking.cancelled() and isinstance(taking.result(), Arrived):
                self._put_back(taking.result())
            raise
        finally:
            stopping.cancel()
            taking.cancel()
        try:
            return await taking
        except asyncio.CancelledError:
            if not taking.cancelled():
                raise
            return None

    async def _aanswer(self, arrived: Arrived, handler: Callable[[Any], Any], stream: Any) -> None:
        number, kind = arrived.request, FRAME_RESPONSE
        try:
            result = await self._handled(arrived, handler, stream)
        except Exception as error:
            result, kind = error, FRAME_FAILURE
        except BaseException:
            self._reply(number, _given_up(), FRAME_FAILURE, None)
            raise

        def post(prepared: Prepared) -> None:
            self._post_reply(number, prepared, kind)

        def on_error(error: Exception) -> None:
            # It cannot be sent, or the work on it has failed.
            self._reply(number, error, FRAME_FAILURE, None)

        self._connection.send_later(result, stream, post, on_error)
        del result

    async def _handled(self, arrived: Arrived, handler: Callable[[Any], Any], stream: Any) -> Any:
        """What the handler returns, or what it awaits. Raises what it raises; an AbortError if it was canceled."""
        connection, number = self._connection, arrived.request
        answered = _answered.set(number)
        try:
            result = handler(await self._aopen(arrived, stream))
            if not inspect.isawaitable(result):
                return result
            task = asyncio.ensure_future(result)
        finally:
            _answered.reset(answered)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # The loop is closed.

        with connection._cond:
            connection._cancels[number] = cancel
            if number in connection._canceled or connection.end is not None:
                cancel()
        try:
            await asyncio.wait((task,))
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            with connection._cond:
                connection._cancels.pop(number, None)
        if task.cancelled():
            raise _given_up()
        return task.result()

    async def __aenter__(self) -> 'Peer':
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    # ---- The end ----

    def close(self) -> None:
        """Closes the connection. What was received stays usable until it is closed. The second call does nothing."""
        self._connection.close(self._why_closed)

    def __repr__(self) -> str:
        return f'<cuffi.Peer {self._connection.name}{" closed" if self.closed else ""}>'


# The request that this thread or task answers.
_answered: 'contextvars.ContextVar[Optional[int]]' = contextvars.ContextVar('cuffi_answered', default=None)


def _given_up() -> RemoteError:
    return RemoteError('the request was given up', 'AbortError')
