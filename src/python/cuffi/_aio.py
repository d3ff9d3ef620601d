"""What a peer does in tasks of asyncio: as in threads, but that the thread of the connection reads."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._connection import Connection
from ._deadlines import check_count, turn_if_due
from ._errors import ClosedError
from ._inbox import Arrived
from ._opening import begin_open, is_ready
from ._owner import Context
from ._protocol import FRAME_FAILURE, FRAME_REQUEST, FRAME_RESPONSE, FRAME_VALUE
from ._requests import Requests, answered, given_up_error, result_of
from ._types import StreamLike
from ._waiter import Waiter, again

if TYPE_CHECKING:
    from ._outbox import Later, Prepared
    from ._wire import Outgoing


class AsyncPeer(Context):
    """The part of a peer that tasks use."""

    # Only cuffi makes one: its constructor is not part of the types that users see.
    def __init__(self, connection: Any) -> None:
        self._connection: Connection = connection
        self._requests = Requests(connection)

    @property
    def closed(self) -> bool:
        return self._connection.end is not None

    def _take_value(self, taken: list[Arrived]) -> bool:
        """Takes a value, if there is one. Raises the end."""
        arrived = self._connection.inbox.take_value()
        if arrived is None:
            return False
        taken.append(arrived)
        return True

    def _take_request(self, taken: list[Arrived]) -> bool:
        """Takes a request, if there is one. Returns True without one at the end."""
        requests = self._connection.inbox.requests
        if requests:
            taken.append(requests.popleft())
        return bool(taken) or self._connection.end is not None

    def _put_back(self, arrived: Arrived) -> None:
        """The next call gets what this one has not returned."""
        with self._connection.mutex:
            self._connection.inbox.offer(arrived, is_first=True)
            # Whoever reads may wait for it.
            self._connection.kick()

    def _raise_unless_closed(self) -> None:
        """Raises why the connection has ended, if it was not closed in order."""
        end = self._connection.end
        if end is not None and not isinstance(end, ClosedError):
            raise again(end)

    def asend(self, value: Any, *, stream: Optional[StreamLike] = None) -> Coroutine[Any, Any, None]:
        """As `send`. Encodes at the call, and sends in the order of the calls, when the work on the value is done.

        Canceling takes it back, unless the other end reads it already. Called outside of an event loop, it begins when
        it is awaited.
        """
        try:
            waiter = Waiter(is_async=True)
        except RuntimeError:
            return self._asend_when_awaited(value, stream)

        def post(prepared: Prepared) -> Outgoing:
            return self._connection.outbox.send(prepared, waiter=waiter)

        return self._asent(self._connection.outbox.send_later(value, stream, post, waiter.settle), waiter)

    async def _asend_when_awaited(self, value: Any, stream: Any) -> None:
        await self.asend(value, stream=stream)

    async def _asent(self, later: Later, waiter: Waiter) -> None:
        await self._until_sent(later, waiter, self._connection.outbox.take_back)
        waiter.take()
        await turn_if_due()

    async def _until_sent(self, later: Later, waiter: Waiter, give_up: Callable[[Outgoing, Waiter], Any]) -> None:
        """As `_until`. A canceled call takes back what is not sent yet, and gives up what is."""
        try:
            await self._until(waiter)
        except BaseException:
            with self._connection.mutex:
                later.prepared = None
                if later.posted:
                    give_up(later.posted, waiter)
            raise

    async def _until(self, waiter: Waiter) -> None:
        if waiter.is_done:
            return
        # The thread of the connection reads.
        with self._connection.mutex:
            self._connection.cond.notify_all()
            self._connection.kick()
        if waiter.future:
            await waiter.future

    async def _next(self, take: Callable[[list[Arrived]], bool], waiters: deque[Waiter]) -> Any:
        """What `take` finds, or is given to a waiter: a value, a request, or the end. What comes for a canceled call is put back."""
        await turn_if_due()
        connection, waiter = self._connection, Waiter(is_async=True)
        taken: list[Arrived] = []
        connection.readiness.begin(FRAME_VALUE if waiters is connection.inbox.value_waiters else FRAME_REQUEST)
        with connection.mutex:
            if take(taken):
                waiter.settle(taken.pop() if taken else connection.end)
            else:
                waiters.append(waiter)
        try:
            await self._until(waiter)
        except BaseException:
            with connection.mutex:
                if isinstance(waiter.result, Arrived):
                    self._put_back(waiter.result)
                elif waiter in waiters:
                    waiters.remove(waiter)
            raise
        return waiter.result

    async def areceive(self, *, stream: Optional[StreamLike] = None) -> Any:
        """As `receive`. What arrived for a canceled call is returned by the next one."""
        found = await self._next(self._take_value, self._connection.inbox.value_waiters)
        if not isinstance(found, Arrived):
            raise again(found)
        try:
            return await self._aopen(found, stream)
        except asyncio.CancelledError:
            self._put_back(found)
            raise

    async def _aopen(self, arrived: Arrived, stream: Any) -> Any:
        begin_open(arrived, stream)
        while (arrived.points or arrived.events) and not is_ready(arrived):
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
        waiter = Waiter(is_async=True)
        later = self._connection.outbox.send_later(value, stream, lambda prepared: self._requests.ask(prepared, waiter), waiter.settle)
        await self._until_sent(later, waiter, self._requests.give_up)
        return result_of(waiter.take(), await self._aopen(waiter.take(), stream))

    async def aserve(self, handler: Callable[[Any], Any], *, stream: Optional[StreamLike] = None, concurrency: int = 1,
                     stop: Optional[asyncio.Event] = None) -> None:  # fmt: skip
        """As `serve`, with a handler that may be a coroutine. It is canceled when its request is given up.

        :param concurrency: how many requests are answered at a time
        :param stop: when it is set, no more requests are taken: those that are begun are answered, and it returns
        """
        check_count(concurrency, 1, 'concurrency')
        running: set[asyncio.Task[None]] = set()
        failed: list[BaseException] = []

        def on_done(task: asyncio.Task[None]) -> None:
            running.discard(task)
            error = None if task.cancelled() else task.exception()
            if error:
                failed.append(error)

        try:
            while not (failed or (stop and stop.is_set())):
                arrived = await self._next_until(stop)
                if not isinstance(arrived, Arrived):
                    break
                if not self._requests.begin(arrived):
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
        self._raise_unless_closed()

    async def _next_until(self, stop: Optional[asyncio.Event]) -> Any:
        """The next request, or the end; None if `stop` is set before."""
        waiters = self._connection.inbox.request_waiters
        if stop is None:
            return await self._next(self._take_request, waiters)
        taking, stopping = asyncio.ensure_future(self._next(self._take_request, waiters)), asyncio.ensure_future(stop.wait())
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
            self._requests.reply(number, given_up_error(), FRAME_FAILURE, None)
            raise

        def post(prepared: Prepared) -> None:
            self._requests.post_reply(number, prepared, kind)

        def on_error(error: Exception) -> None:
            # It cannot be sent, or the work on it has failed.
            self._requests.reply(number, error, FRAME_FAILURE, None)

        self._connection.outbox.send_later(result, stream, post, on_error)
        del result

    async def _handled(self, arrived: Arrived, handler: Callable[[Any], Any], stream: Any) -> Any:
        """What the handler returns, or what it awaits. Raises what it raises; an AbortError if it was canceled."""
        connection, number = self._connection, arrived.request
        token = answered.set(number)
        try:
            result = handler(await self._aopen(arrived, stream))
            if not inspect.isawaitable(result):
                return result
            task = asyncio.ensure_future(result)
        finally:
            answered.reset(token)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # The loop is closed.

        with connection.mutex:
            connection.inbox.cancels[number] = cancel
            if number in connection.inbox.canceled or connection.end is not None:
                cancel()
        try:
            await asyncio.wait((task,))
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            with connection.mutex:
                connection.inbox.cancels.pop(number, None)
        if task.cancelled():
            raise given_up_error()
        return task.result()
