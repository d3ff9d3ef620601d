"""The consumer of a channel."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._array import DeviceArray, DeviceBuffer
from ._background import background, nothing
from ._bytes import SAFE
from ._channel_end import END, ChannelEnd, ChannelState, Slots, Stores
from ._devices import stream_handle
from ._errors import CuffiError, IpcError, NotSupportedError, PeerGoneError
from ._files import is_sealed, seal_against_holes
from ._mappings import device_of
from ._owner import Owner
from ._process import start_thread, this_process
from ._protocol import (
    CHANNEL_FLAG_AHEAD,
    CHANNEL_FLAG_TO_ONE,
    RING_CLOSED_AT,
    RING_FILLED,
    RING_PRODUCER_PID,
    RING_PRODUCER_SLEEPS,
    RING_PUBLISHED,
    SEAT_ASLEEP,
    SEAT_GRANTED,
    SEAT_IS_FINISHED,
    SEAT_RELEASED,
    SEAT_START,
    SEAT_WANTED,
)
from ._releases import release_page, release_soon, releases_of
from ._ring import Ring, check_layout, seat_length
from ._stats import ConsumerStats
from ._types import StreamLike
from ._waits import MAX_AHEAD, MAX_WORK_AHEAD, REPAIR_S, enqueue_wait, has_room
from ._wakeups import Sleepers, WakeSockets
from ._words import SharedWords

if TYPE_CHECKING:
    from ._connection import Connection
    from ._descriptors import Fields
    from ._devices import Device
    from ._export import Exported
    from ._memory import Mapping
    from ._ring import SlotLayout
    from ._waits import Stream


def _invalid_ring(why: str) -> IpcError:
    return IpcError(f'another process wrote invalid channel data: {why}')


class _SlotMemory:
    """The slots of a channel of another process, mapped until nothing refers to them."""

    def __init__(self, mapping: Mapping, on_released: Callable[[], None]) -> None:
        self.mapping, self.device, self.address = mapping, mapping.device, mapping.base
        self.on_released = on_released

    def __del__(self) -> None:
        mapping, on_released = self.mapping, self.on_released

        def release() -> None:
            try:
                mapping.release()
            except CuffiError:
                pass  # The context is lost, and the mapping with it.
            on_released()

        releases_of(mapping.device).add(release)


class _Consumer(ChannelState):
    def __init__(self, ring: Ring, seat: SharedWords, ends: Sequence[int], slots: Slots, device: Device,
                 deliver: str, is_ahead: bool) -> None:  # fmt: skip
        super().__init__(ring, device, slots, deliver, is_ahead, 'ChannelConsumer')
        self.seat = seat
        start = seat.read(SEAT_START)
        if not 0 <= start <= SAFE:
            raise IpcError('received a channel whose first message has no number')
        # The next message; with deliver='one', how many grants were taken.
        self._next = 0 if deliver == 'one' else int(start)
        self._filled_up_to = self._next
        self._held: set[int] = set()
        self.received = self.released = 0
        self._has_ended_waits = False
        self.sleepers = Sleepers(lambda is_asleep: seat.write(SEAT_ASLEEP, is_asleep))
        self._stores = Stores(seat, lambda _: self._wake_producer(), False, is_ahead, ring.slots)
        self._sockets = WakeSockets.accept(ends[0], ends[1], self._on_wake)
        self._sockets.watch()
        if is_ahead:
            # From now on its streams can wait for this consumer.
            self._wake_producer()

    def assert_open(self) -> None:
        if self.is_closed:
            raise self.closed_error()

    # ---- Receiving ----

    def look(self) -> Any:
        """Returns the next message, the end, or None if there is nothing yet."""
        with self.lock:
            self.assert_open()
            # Read first: what was stored before the producer ended is then seen.
            is_gone = self._sockets.has_ended
            found = self._look_for_grant() if self.deliver == 'one' else self._look_for_next()
            if found is None and is_gone:
                raise self._gone()
            return found

    def _look_for_next(self) -> Any:
        ring = self.ring
        # A hostile producer might skip messages for ever.
        for _ in range(ring.slots + 1):
            message, published = self._next, self._published()
            if message >= published:
                closed_at = ring.closed_at
                return END if closed_at is not None and message >= closed_at else None
            # Who takes slots ahead is published to before the slots are released.
            if published > message + ring.slots and not self.is_ahead:
                raise _invalid_ring('a message was published into a slot that was not released')
            if not ring.is_filled(message):
                return None
            self._next += 1
            is_skipped, layout, meta = self._record(message)
            if not is_skipped:
                return self._hold(message, layout, meta, False)
            self.seat.write(SEAT_RELEASED + message % ring.slots, message + 1)
        return None

    def _look_for_grant(self) -> Any:
        ring, seat, at = self.ring, self.seat, self._next
        if seat.read(SEAT_GRANTED) > at:
            index = SEAT_RELEASED + ring.slots + 2 * (at % ring.slots)
            message, redelivered = seat.read(index), seat.read(index + 1) == 1
            if not 0 <= message < self._published():
                raise _invalid_ring('a message was granted that was not published')
            if not ring.is_filled(int(message)):
                return None
            self._next += 1
            _, layout, meta = self._record(int(message))
            return self._hold(int(message), layout, meta, redelivered)
        if seat.read(SEAT_IS_FINISHED) == 1:
            return END
        if not at < seat.read(SEAT_WANTED) <= SAFE:
            seat.write(SEAT_WANTED, at + 1)
            self._wake_producer()
        return None

    def _published(self) -> int:
        published = self.ring.read(RING_PUBLISHED)
        if not 0 <= published <= SAFE:
            raise _invalid_ring('the number of published messages is invalid')
        return int(published)

    def _record(self, message: int) -> tuple[bool, Optional[SlotLayout], Any]:
        if not self.ring.has_records:
            return False, None, None
        try:
            return self.ring.read_record(message, self.slots.byte_length)
        except IpcError:
            self.seat.write(SEAT_RELEASED + message % self.ring.slots, message + 1)
            raise

    def _hold(self, message: int, layout: Optional[SlotLayout], meta: Any, redelivered: bool) -> ConsumerSlot:
        self._held.add(message)
        return ConsumerSlot(self, message, layout, meta, redelivered, None)

    def _gone(self) -> PeerGoneError:
        pid = self.ring.writer(RING_PRODUCER_PID)
        who = f'process {pid}, the producer of this channel,' if pid else 'the producer of this channel'
        return PeerGoneError(f'{who} has ended without closing it: messages that were not complete are lost', pid)

    # ---- Ahead ----

    def take_ahead(self, of: Any) -> Any:
        """Makes a stream wait for the next message. Returns its slot, the end, or None if there is no room now."""
        ring, stream = self.ring, self.ahead_streams[of if type(of) is int else stream_handle(of)]
        with self.lock:
            self.assert_open()
            is_gone, message = self._sockets.has_ended, self._next
            if ring.words[RING_CLOSED_AT]:
                closed_at = ring.closed_at
                if closed_at is not None and message >= closed_at:
                    return END
            is_filled = ring.is_filled(message)
            if is_gone and not is_filled:
                raise self._gone()
            if message - ring.slots in self._held:
                raise CuffiError(f'message {message} needs the slot of message {message - ring.slots}: release that first')
            if not has_room(stream, MAX_WORK_AHEAD, False):
                return None
            if not is_filled:
                while self._filled_up_to < message and ring.is_filled(self._filled_up_to):
                    self._filled_up_to += 1
                if message - self._filled_up_to >= MAX_AHEAD:
                    return None
                # Else the host waits.
                if not ring.is_fixed or not enqueue_wait(ring, RING_FILLED + message % ring.slots, message + 1, stream):
                    return None
            self._held.add(message)
            self._next += 1
            return ConsumerSlot(self, message, None, None, False, stream)

    def filled(self, message: int) -> Optional[bool]:
        """Whether a message was filled in the end; None as long as that is open."""
        is_gone, is_filled = self._sockets.has_ended, not self.is_closed and self.ring.is_filled(message)
        if is_filled:
            return True
        self.assert_open()
        closed_at = self.ring.closed_at
        if closed_at is not None and message >= closed_at:
            return False
        if is_gone:
            raise self._gone()
        return None

    # ---- Releasing ----

    def release(self, message: int, stream: Any) -> None:
        self.assert_open()
        store = self._stores.store_ahead if self.is_ahead else self._stores.store
        found = self.streams[stream if type(stream) is int else stream_handle(stream)]
        store(SEAT_RELEASED + message % self.ring.slots, message + 1, found)
        self._held.discard(message)

    def _wake_producer(self) -> None:
        if self.ring.read(RING_PRODUCER_SLEEPS) == 1:
            self._sockets.wake()

    def _on_wake(self) -> None:
        if self._sockets.has_ended and self.is_ahead and not self._has_ended_waits:
            # Frees the streams that wait for what the ended producer will not fill.
            self._has_ended_waits = True
            until = time.monotonic() + REPAIR_S

            def repair() -> bool:
                # A GPU of the ended process may still write.
                self.ring.end_unfilled()
                return self.is_closed or time.monotonic() > until

            repair()
            background().poll(repair)
        self.sleepers.wake()

    def close(self) -> None:
        """Ends at the producer when the work that is queued here is done: it then fills the slots again."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            slots, self._slots = self._slots, None
        self.sleepers.wake()
        kept = [slots]

        def release() -> None:
            try:
                self.device.synchronize()
            except CuffiError:
                pass  # The context is lost: nothing runs in it.
            if self.is_ahead:
                # All is released. A producer that is blocked cannot end the waits of its streams itself.
                self.seat.end_waits(SEAT_RELEASED, SEAT_RELEASED + self.ring.slots)
            self._sockets.close()
            release_page(self.ring)
            release_page(self.seat)
            kept.clear()

        try:
            start_thread(release, 'release')
        except IpcError:
            # No thread is left now.
            release_soon(lambda: True, release)


class ConsumerSlot(Owner):
    """A message of a channel. Release it when the work that uses it is queued."""

    __slots__ = ('message', 'meta', 'redelivered', '_consumer', '_layout', '_stream', '_is_released')

    # Only cuffi makes one: its constructor is not part of the types that users see.
    def __init__(self, consumer: Any, message: int, layout: Any, meta: Any, redelivered: bool, stream: Any) -> None:
        self._consumer: _Consumer = consumer
        self._layout: Optional[SlotLayout] = layout
        self._stream: Optional[Stream] = stream
        self._is_released = False
        # The number of the message, from 0; what was published with it; whether another consumer had it before,
        # and ended without releasing it.
        self.message: int = message
        self.meta: Any = meta
        self.redelivered: bool = redelivered
        consumer.received += 1

    def _views(self) -> Slots:
        if self._is_released:
            raise CuffiError('this slot was released already')
        self._consumer.assert_open()
        return self._consumer.slots

    @property
    def array(self) -> DeviceArray:
        """The memory as an array, in the layout of the message. Raises CuffiError after `release`."""
        return self._views().array(self.message, self._layout, self._stream)

    @property
    def buffer(self) -> DeviceBuffer:
        """All bytes of the slot. Raises CuffiError after `release`."""
        return self._views().buffer(self.message, self._stream)

    def filled(self, *, timeout: Optional[float] = None) -> bool:
        """Waits until the work that fills the slot is done: at once, unless it came from `ahead`.

        Returns False if the producer closed the channel before it published this message. Raises
        PeerGoneError if it ended before, TimeoutError.
        """
        consumer, message = self._consumer, self.message
        return consumer.sleepers.wait(lambda: consumer.filled(message), timeout, f'message {message} of a channel')

    async def afilled(self, *, timeout: Optional[float] = None) -> bool:
        """As `filled`."""
        consumer, message = self._consumer, self.message
        return await consumer.sleepers.await_(lambda: consumer.filled(message), timeout, f'message {message} of a channel')

    def release(self, stream: Optional[StreamLike] = None) -> None:
        """Gives the slot back when the work that is queued in a stream so far is done. The second call does nothing.

        :param stream: by default the legacy default stream
        """
        if not self._is_released:
            self._consumer.release(self.message, stream)
            self._is_released = True
            self._consumer.released += 1

    def __repr__(self) -> str:
        return f'<cuffi.ConsumerSlot message {self.message}{" released" if self._is_released else ""}>'


class ChannelConsumer(ChannelEnd):
    """The end of a channel in a process that it was sent to.

    A message is received when the work that fills its slot is done, so that it can be used in any stream.
    Release each slot: the producer fills it again when all its consumers have.

    >>> for slot in channel:
    ...     show(cupy.asarray(slot.array), slot.meta)
    ...     slot.release(stream)
    """

    def stats(self) -> ConsumerStats:
        """Returns what it has done."""
        state: _Consumer = self._held()
        return ConsumerStats(state.received, state.released, state.ring.slots)

    def receive(self, *, timeout: Optional[float] = None) -> Optional[ConsumerSlot]:
        """Returns the next message; None when the producer has closed the channel and all were received.

        Raises PeerGoneError if it ended without closing it, IpcError for an invalid message, TimeoutError.
        """
        state: _Consumer = self._held()
        found = state.sleepers.wait(state.look, timeout, 'a message of a channel')
        return None if found is END else found

    async def areceive(self, *, timeout: Optional[float] = None) -> Optional[ConsumerSlot]:
        """As `receive`."""
        state: _Consumer = self._held()
        found = await state.sleepers.await_(state.look, timeout, 'a message of a channel')
        return None if found is END else found

    def messages(self, *, timeout: Optional[float] = None) -> Iterator[ConsumerSlot]:
        """The messages, until the channel ends, with a limit for each of them. As `receive`."""
        while True:
            slot = self.receive(timeout=timeout)
            if slot is None:
                return
            yield slot

    def __iter__(self) -> Iterator[ConsumerSlot]:
        return self.messages()

    async def __aiter__(self) -> AsyncIterator[ConsumerSlot]:
        while True:
            slot = await self.areceive()
            if slot is None:
                return
            yield slot

    def ahead(self, stream: StreamLike, *, timeout: Optional[float] = None) -> Iterator[ConsumerSlot]:
        """Hands out slots in order before they are filled: the stream waits for each of them, not the caller.

        At most 64 slots are ahead at a time. It ends when the producer has closed the channel; slots that were
        handed out by then and not published hold nothing: `slot.filled()` tells. Raises TypeError for a channel
        without `ahead` or a stream that is not non-blocking, CuffiError if a slot is needed again that was not
        released, PeerGoneError, TimeoutError.
        """
        state: _Consumer = self._held()
        poll = lambda: state.take_ahead(stream)  # noqa: E731
        while True:
            slot = poll()
            if slot is None:
                slot = state.sleepers.wait(poll, timeout, 'room ahead in a channel')
            if slot is END:
                return
            yield slot

    async def aahead(self, stream: StreamLike, *, timeout: Optional[float] = None) -> AsyncIterator[ConsumerSlot]:
        """As `ahead`."""
        state: _Consumer = self._held()
        while True:
            slot = await state.sleepers.await_(lambda: state.take_ahead(stream), timeout, 'room ahead in a channel')
            if slot is END:
                return
            yield slot

    def _export(self) -> Exported:
        raise NotSupportedError('a consumer cannot forward a channel: its producer sends it to each consumer')


class ChannelFields:
    """A channel of another process."""

    def __init__(self, fields: Fields) -> None:
        self.slots, self.stride, self.byte_length, self.bits = fields.slots, fields.stride, fields.byte_length, fields.flags
        self.memory: Fields = fields.memory
        layout = fields.layout
        assert layout is not None, 'the fields were checked when they were decoded'
        self.layout = check_layout(layout.shape, layout.dtype, self.byte_length)

    def open(self, connection: Connection, fds: list[int], lease: int) -> ChannelConsumer:
        if len(fds) <= 4:
            raise IpcError(f'a channel needs more than 4 descriptors, but {len(fds)} came with it', 'no-file-descriptor')
        memory, is_ahead = self.memory, bool(self.bits & CHANNEL_FLAG_AHEAD)
        if this_process().has_made(memory) and connection.pid != this_process().pid:
            raise IpcError(f'{connection.name} sent a channel in memory of this very process', 'same-process')
        device = device_of(memory)
        for fd, length in ((fds[0], Ring.length(self.slots, not is_ahead)), (fds[1], seat_length(self.slots))):
            if not is_sealed(fd, length):
                raise IpcError('received a channel whose memory is not sealed memory of its size')
        mapping = connection.imports.map(memory, device, fds[4:])
        assert mapping is not None
        # The lease is given back with the memory.
        slot_memory = _SlotMemory(mapping, lambda: connection.imports.release(lease))
        try:
            read_only = memory.read_only or mapping.is_read_only
            slots = Slots(slot_memory, self.slots, self.stride, self.byte_length, self.layout, read_only)
            ring, seat = Ring(fds[0], self.slots, not is_ahead), SharedWords(fds[1], seat_length(self.slots))
            if is_ahead:
                ring.is_fixed = seal_against_holes(fds[0])
                seal_against_holes(fds[1])
            deliver = 'one' if self.bits & CHANNEL_FLAG_TO_ONE else 'all'
            return ChannelConsumer(_Consumer(ring, seat, fds[2:4], slots, device, deliver, is_ahead))
        except BaseException as error:
            # Who opens gives the lease back itself then.
            slot_memory.on_released = nothing
            if isinstance(error, OSError):
                raise IpcError(f'received a channel that cannot be opened: {error}') from None
            raise
