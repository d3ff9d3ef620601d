"""What has arrived: messages become values, which wait until somebody takes them."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _descriptors
from ._bytes import Reader, limit_exceeded
from ._decoder import Decoder
from ._encoder import encoded
from ._errors import ClosedError, IpcError
from ._files import close_fds
from ._process import process_exit
from ._protocol import (
    FRAME_CANCELLATION,
    FRAME_CONTROL,
    FRAME_FAILURE,
    FRAME_REQUEST,
    FRAME_RESPONSE,
    FRAME_UNSERVED,
    FRAME_VALUE,
    FRAME_VERIFICATION,
    KIND_POOL,
    MAX_CONTROL_BYTE_LENGTH,
    MAX_PENDING_REQUEST_BYTE_LENGTH,
    MAX_PENDING_REQUESTS,
    MAX_QUEUED_BYTE_LENGTH,
    MAX_QUEUED_FDS,
    MAX_QUEUED_VALUES,
    MAX_VALUE_BYTE_LENGTH,
    MAX_VERIFICATION_BYTE_LENGTH,
    TAG_GPU_OBJECT,
)
from ._wire import Control
from ._words import Points

if TYPE_CHECKING:
    from ._connection import Connection
    from ._event import CudaEvent
    from ._frames import Message
    from ._values import Put
    from ._waiter import Waiter

NO_ROOM_FOR_FDS = "too few file descriptors are left, so those of a message are lost: raise the limit ('ulimit -n')"
# What an object takes of the room of the queue, beside the bytes of its message.
_BYTES_OF_OBJECT = 4096
_POOL, _OBJECT = bytes((KIND_POOL,)), bytes((TAG_GPU_OBJECT,))


class Arrived:
    """A value that has arrived. Its GPU objects are opened when somebody takes it."""

    __slots__ = (
        'connection',
        'cost',
        'events',
        'fd_count',
        'is_cut',
        'kind',
        'objects',
        'places',
        'points',
        'refusal',
        'request',
        'size',
        'value',
    )

    def __init__(self, connection: Connection, kind: int, request: int, size: int) -> None:
        self.connection, self.kind, self.request, self.size, self.fd_count = connection, kind, request, size, 0
        # How many bytes of the queue it takes while it is in there.
        self.cost = 0
        self.value: Any = None
        # None: the value is the object. A function would keep this object, and this object it.
        self.places: list[Optional[Put]] = []
        self.objects: list[tuple[bytes, list[int], int]] = []
        # What the host waits for: points and events of the sender.
        self.points: Points = []
        self.events: list[CudaEvent] = []
        self.refusal: Optional[tuple[str, str]] = None
        # Whether no descriptor was left for those of its objects.
        self.is_cut = False

    def take(self) -> Any:
        """Returns the value, which only its receiver keeps from now on."""
        value, self.value, self.places = self.value, None, []
        return value

    def __del__(self) -> None:
        """Gives back what nobody has taken. It may run anywhere, as while this thread sends."""
        if self.objects and process_exit and not process_exit.has_begun:
            for _, fds, lease in self.objects:
                close_fds(fds)
                self.connection.imports.give_back_later(lease, None, None)


class Inbox:
    """Its lock is that of the connection, which callers hold."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.values: collections.deque[Arrived] = collections.deque()
        self.value_waiters: collections.deque[Waiter] = collections.deque()
        self.requests: collections.deque[Arrived] = collections.deque()
        self.request_waiters: collections.deque[Waiter] = collections.deque()
        self._queued_bytes = self._queued_fds = self._request_bytes = 0
        # All that has arrived, without messages of control alone.
        self.received_messages = self.received_bytes = self.received_objects = 0
        # Requests of the other end: those that it has given up, and those that are not answered.
        self.canceled: set[int] = set()
        self.unanswered: set[int] = set()
        # For each request whose handler is a task: what cancels that.
        self.cancels: dict[int, Callable[[], None]] = {}
        # Who waits for the answers to requests of this end.
        self.asked: dict[int, Waiter] = {}

    @property
    def is_full(self) -> bool:
        return len(self.values) >= MAX_QUEUED_VALUES or self._queued_bytes >= MAX_QUEUED_BYTE_LENGTH or self._queued_fds >= MAX_QUEUED_FDS

    @property
    def is_awaited_by_tasks(self) -> bool:
        return any(waiter.future for waiter in (*self.value_waiters, *self.request_waiters, *self.asked.values()))

    # ---- Messages ----

    def accept(self, message: Message) -> None:
        kind, request, body, fds, is_cut = message
        try:
            if kind == FRAME_CONTROL:
                # Without the counters of the other end, or a link of a third process, order and memory are not safe.
                if is_cut:
                    raise IpcError(NO_ROOM_FOR_FDS, 'limit-exceeded')
                self._apply_control(Reader(body), fds, True)
            else:
                arrived = self.decode(kind, request, body, fds, is_cut)
                self.received_messages += 1
                self.received_bytes += len(body)
                self.received_objects += len(arrived.objects)
                self._deliver(arrived)
        except BaseException:
            close_fds(fds)
            raise

    def decode(self, kind: int, request: int, body: bytes, fds: list[int], is_cut: bool) -> Arrived:
        """Reads a message that is not of control. Takes the descriptors out of the list when they have another owner."""
        reader = Reader(body)
        arrived = Arrived(self._connection, kind, request, len(body))
        arrived.is_cut = is_cut
        if body[:1] == _OBJECT:
            # The value is a GPU object.
            reader.at = 1
            arrived.places = [None]
        else:
            decoder = Decoder(reader)
            arrived.value = decoder.read(None)
            arrived.places, arrived.refusal = decoder.places, decoder.refusal
        places = arrived.places
        if reader.at > (MAX_VERIFICATION_BYTE_LENGTH if kind == FRAME_VERIFICATION else MAX_VALUE_BYTE_LENGTH):
            raise limit_exceeded(f'a value of {reader.at} bytes is too large')
        imports = self._connection.imports
        entries = imports.read_table(reader, len(places)) if places else []
        if reader.end - reader.at > MAX_CONTROL_BYTE_LENGTH:
            raise limit_exceeded('a control block is too large')
        if not is_cut and sum([count + has_link for _, count, has_link, _ in entries]) != len(fds):
            raise IpcError(f'received {len(fds)} descriptors with a value that has others')
        if reader.at < reader.end:
            arrived.points = self._apply_control(reader, fds, False)
            if arrived.points and self._connection.order.theirs is None:
                raise IpcError('received points before their page')
        for data, count, has_link, lease in entries:
            imports.begin(lease)
            own, fds[:count] = fds[:count], []
            arrived.objects.append((data, own, lease))
            if is_cut:
                continue
            arrived.fd_count += count
            if has_link:
                imports.links[lease] = fds.pop(0)
            if count == 1 and data[:1] == _POOL:
                imports.keep_pool(_descriptors.pool_of(data), own)
        return arrived

    def _apply_control(self, reader: Reader, fds: list[int], is_alone: bool) -> Points:
        """Applies a control block, up to the end of the message. Returns the points of the value."""
        control, connection = Control(reader, len(fds) if is_alone else None), self._connection
        if control.has_page:
            connection.order.accept_page(fds[0])
            fds.clear()
        if control.released:
            connection.exports.release(control.released)
        if control.revoked:
            connection.imports.revoke(control.revoked)
        if control.forwards:
            connection.exports.forward(control.forwards, fds, connection.poll)
        for name in control.closed_pools:
            connection.imports.close_pool(name)
        if control.begun:
            connection.readiness.on_peer_begun(control.begun)
        if control.is_closing or control.is_done:
            connection.begin_closing(ClosedError(f'this Peer is closed: {connection.name} has closed the connection'))
        if control.is_done:
            connection.exports.leases.clear()
        return control.points

    # ---- Delivering ----

    def _deliver(self, arrived: Arrived) -> None:
        kind, request = arrived.kind, arrived.request
        if self._connection.end is not None:
            self.discard(arrived)
        elif kind == FRAME_VALUE:
            self.offer(arrived)
        elif kind == FRAME_REQUEST:
            self._on_request(arrived)
        elif kind in (FRAME_RESPONSE, FRAME_FAILURE):
            waiter = self._waiter_of(request, 'an answer to')
            if waiter.is_done:
                self.discard(arrived)  # Given up.
            else:
                waiter.settle(arrived)
        elif kind == FRAME_UNSERVED and not arrived.objects and arrived.value is None:
            self._waiter_of(request, 'a refusal of').settle(
                IpcError(
                    f'{self._connection.name} serves no requests: it waits for values and has never called serve(). '
                    'Serve there, or send values',
                    'not-served',
                )
            )
        elif kind == FRAME_CANCELLATION and not arrived.objects and arrived.value is None:
            # Handlers of threads may ask; what waits is not begun.
            if request in self.unanswered:
                self.canceled.add(request)
                cancel = self.cancels.get(request)
                if cancel:
                    cancel()
        elif kind == FRAME_VERIFICATION and not arrived.objects:
            self._on_verification(request)
        else:
            raise IpcError(f'unknown frame kind {kind}')

    def _waiter_of(self, request: int, what: str) -> Waiter:
        waiter = self.asked.pop(request, None)
        if waiter is None:
            raise IpcError(f'received {what} request {request}, which is not pending')
        return waiter

    def _on_verification(self, request: int) -> None:
        """Answers at once, as nothing waits for a handler."""
        self._check_number(request)
        outbox = self._connection.outbox
        # Its answers count as pending until they are sent, for an end that asks and does not read.
        pending = len(outbox.queue)
        if pending >= MAX_PENDING_REQUESTS:
            pending = sum(message.kind == FRAME_FAILURE for message in outbox.queue)
        if pending >= MAX_PENDING_REQUESTS:
            raise IpcError(f'the other end has not read {MAX_PENDING_REQUESTS} answers', 'limit-exceeded')
        error = IpcError('the companion for Python confirms no descriptors', 'not-supported')
        outbox.post(FRAME_FAILURE, encoded(error), request=request)

    def _check_number(self, request: int) -> None:
        if request in self.unanswered:
            raise IpcError(f'received request {request} a second time')

    def _on_request(self, arrived: Arrived) -> None:
        self._check_number(arrived.request)
        self._request_bytes += arrived.size
        if len(self.requests) >= MAX_PENDING_REQUESTS or self._request_bytes > MAX_PENDING_REQUEST_BYTE_LENGTH:
            raise IpcError('too many requests wait to be served', 'limit-exceeded')
        self.unanswered.add(arrived.request)
        self.offer(arrived)

    def offer(self, arrived: Arrived, is_first: bool = False) -> None:
        """Gives a value or request to somebody who waits for one, or queues it: `is_first` if it was taken already."""
        is_value = arrived.kind == FRAME_VALUE
        waiters, queued = (self.value_waiters, self.values) if is_value else (self.request_waiters, self.requests)
        while waiters:
            waiter = waiters.popleft()
            if not waiter.is_done:
                waiter.settle(arrived)
                return
        if not self._connection.is_closed_here:
            if is_first:
                queued.appendleft(arrived)
            else:
                queued.append(arrived)
            if is_value:
                arrived.cost = arrived.size + _BYTES_OF_OBJECT * len(arrived.objects)
                self._queued_bytes += arrived.cost
                self._queued_fds += arrived.fd_count
        self._connection.on_arrival()

    # ---- Taking ----

    def take_value(self) -> Optional[Arrived]:
        """Returns the next value, if there is one. Raises the end."""
        if not self.values:
            self._connection.check_open()
            return None
        arrived = self.values.popleft()
        self._queued_bytes -= arrived.cost
        self._queued_fds -= arrived.fd_count
        self._connection.on_taken()
        return arrived

    def forget_request(self, arrived: Arrived) -> None:
        """A request that is refused without an answer of a handler."""
        self._request_bytes -= arrived.size
        self.unanswered.discard(arrived.request)
        self.canceled.discard(arrived.request)

    def begin_request(self, arrived: Arrived) -> bool:
        """Returns False for a request that was given up before it was begun."""
        self._request_bytes -= arrived.size
        if arrived.request not in self.canceled:
            return True
        self.discard(arrived)
        return False

    def discard(self, arrived: Arrived) -> None:
        """Releases what nobody takes."""
        objects, arrived.objects = arrived.objects, []
        for _, fds, lease in objects:
            close_fds(fds)
            self._connection.imports.release(lease)

    # ---- The end ----

    def discard_queued(self) -> None:
        for queued in (self.values, self.requests):
            while queued:
                self.discard(queued.popleft())

    def end(self, error: Exception) -> None:
        """Tells all who wait."""
        for waiter in (*self.value_waiters, *self.request_waiters, *self.asked.values()):
            waiter.settle(error)
        self.value_waiters.clear()
        self.request_waiters.clear()
        self.asked.clear()
        for cancel in list(self.cancels.values()):
            cancel()
