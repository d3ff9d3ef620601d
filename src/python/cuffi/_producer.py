"""The producer of a channel."""

from __future__ import annotations

import collections
import os
from typing import TYPE_CHECKING, Any, Optional

from ._array import DeviceArray, DeviceBuffer
from ._background import background
from ._channel_end import ChannelState, Stores
from ._devices import stream_handle
from ._errors import ClosedError, CuffiError
from ._files import closing_on_error, sealed_memory
from ._owner import Owner
from ._protocol import (
    RING_CLOSED_AT,
    RING_FILLED,
    RING_PRODUCER_PID,
    RING_PRODUCER_SLEEPS,
    RING_PUBLISHED,
    SEAT_ASLEEP,
    SEAT_IS_FINISHED,
    SEAT_RELEASED,
)
from ._releases import release_page
from ._ring import Ring, check_layout, encode_meta
from ._seat import Seat
from ._types import DtypeLike, ShapeLike, StreamLike
from ._waits import MAX_WORK_AHEAD, enqueue_wait, has_room
from ._wakeups import Sleepers

if TYPE_CHECKING:
    from ._channel_end import Slots
    from ._driver import CudaError
    from ._memory import OwnMemory
    from ._waits import Stream


class Producer(ChannelState):
    def __init__(self, ring: Ring, ring_fd: int, memory: OwnMemory, slots: Slots, total: int, deliver: str,
                 is_ahead: bool) -> None:  # fmt: skip
        super().__init__(ring, memory.device, slots, deliver, is_ahead, 'Channel')
        self._memory: Optional[OwnMemory] = memory
        self.ring_fd, self.total = ring_fd, total
        self.seats: list[Seat] = []
        # With ahead, one consumer has the memory of the ring. Each other one has a copy: nobody can map it once it is
        # fixed.
        self._is_ring_taken = self._is_asleep = False
        self._copied: tuple[Seat, ...] = ()
        self._acquired = self.published = 0
        # Messages that were acquired after one that is not published yet, and are over.
        self._waiting_for_earlier: set[int] = set()
        self._skipped: set[int] = set()
        # With deliver='one': messages that no consumer has, in order, and the holders of the others.
        self._ungranted: collections.deque[int] = collections.deque()
        self._redelivered: set[int] = set()
        self._holders: dict[int, Seat] = {}
        self._failure: Optional[CudaError] = None
        self._stores = Stores(ring, self._on_stored, True, is_ahead, ring.slots)
        # Grants are asked for at any time.
        is_always_asleep = deliver == 'one'
        self.sleepers = Sleepers(lambda is_asleep: self._set_asleep(is_asleep or is_always_asleep))
        self._set_asleep(is_always_asleep)
        ring.sign(RING_PRODUCER_PID)

    def _set_asleep(self, is_asleep: bool) -> None:
        self._is_asleep = is_asleep
        self._write(RING_PRODUCER_SLEEPS, is_asleep)

    def _write(self, index: int, value: int) -> None:
        """Writes a word of the ring and of its copies."""
        self.ring.write(index, value)
        for seat in self._copied:
            if seat.copy:
                seat.copy.write(index, value)

    def _end_unfilled(self, seats: list[Seat]) -> None:
        """Ends the waits for what is not filled, in the ring and in its copies."""
        for words in (self.ring, *(seat.copy for seat in seats)):
            if words:
                words.end_unfilled()

    def assert_open(self) -> None:
        if self._failure:
            raise CuffiError(f'the context of this channel was lost before the work of a message was done: {self._failure}')
        if self.is_closed:
            raise self.closed_error()

    # ---- Acquiring ----

    @property
    def memory(self) -> OwnMemory:
        memory = self._memory
        if memory is None:
            raise self.closed_error()
        return memory

    def try_acquire(self, of: Any) -> Optional[ProducerSlot]:
        """:param of: the stream that waits for the slot, if given"""
        stream = None if of is None else self.ahead_streams[of if type(of) is int else stream_handle(of)]
        with self.lock:
            if self.is_closed or self._failure:
                self.assert_open()
            if stream and not has_room(stream, MAX_WORK_AHEAD, False):
                return None
            message = self._acquired
            previous = message - self.ring.slots
            if previous >= 0:
                if not (self._is_free(previous) if stream is None else self._enqueue_waits(previous, stream)):
                    return None
                if not self.is_ahead:
                    self._skipped.discard(previous)
                    self._holders.pop(previous, None)
            self._acquired = message + 1
            return ProducerSlot(self, message, stream)

    def slot_in_words(self) -> str:
        """The slot that is waited for, and who has it."""
        message = self._acquired - self.ring.slots
        if message >= self.published:
            return f'a free slot (message {message} was acquired here, and not published)'
        holders = sum(seat.start <= message and not seat.is_released(message) for seat in self.seats)
        return f'a free slot ({holders} of {len(self.seats)} consumers have not released message {message})'

    def _enqueue_waits(self, message: int, stream: Stream) -> bool:
        """Makes a stream wait until nobody uses a message. Returns False if there is no room for that now."""
        if message >= self.published:
            raise CuffiError(f'the slot of message {message} was not published: publish it first')
        slot, count, is_released_by_others = message % self.ring.slots, message + 1, False
        for seat in self.seats:
            # It has not opened the channel yet, or cannot keep its memory.
            if not seat.words.is_fixed and seat.start <= message and not seat.is_released(message) and not seat.is_fixed:
                return False
        for seat in self.seats:
            if seat.start <= message:
                is_released_by_others, words = True, seat.words
                # Most have reached that.
                if not words.reached(SEAT_RELEASED + slot, count) and not enqueue_wait(words, SEAT_RELEASED + slot, count, stream):
                    return False
        # A consumer that has released it has waited until it was filled.
        if is_released_by_others or self.ring.is_filled(message):
            return True
        return enqueue_wait(self.ring, RING_FILLED + slot, count, stream)

    def _is_free(self, message: int) -> bool:
        """Whether nobody uses a message any more."""
        if message < 0:
            return True
        if message >= self.published:
            return False
        if self.deliver == 'one':
            self._grant_pending()
            holder = self._holders.get(message)
            return message in self._skipped or (holder is not None and holder.is_released(message))
        return self.ring.is_filled(message) and all(seat.start > message or seat.is_released(message) for seat in self.seats)

    @property
    def in_use(self) -> int:
        """How many slots somebody uses."""
        first = max(0, self._acquired - self.ring.slots)
        return sum(not self._is_free(message) for message in range(first, self._acquired))

    # ---- Publishing ----

    def publish(self, message: int, stream: Any, meta: Any, shape: Any, dtype: Any) -> None:
        own, layout = self.slots.layout, None
        encoded = encode_meta(meta)
        if shape is not None or dtype is not None:
            layout = check_layout(own[1] if shape is None else shape, own[0] if dtype is None else dtype,
                                   self.slots.byte_length)  # fmt: skip
        with self.lock:
            # Its memory goes soon after it was closed.
            self.assert_open()
            self.ring.write_record(message, layout, encoded)
        found = self.streams[stream if type(stream) is int else stream_handle(stream)]
        self._stores.store(RING_FILLED + message % self.ring.slots, message + 1, found)
        with self.lock:
            self._end(message)

    def publish_ahead(self, message: int, stream: Any) -> None:
        """As `publish`, in a channel with ahead: frames come so fast that each call of a function counts."""
        ring = self.ring
        found = self.streams[stream if type(stream) is int else stream_handle(stream)]
        for seat in self._copied:
            try:
                if seat.copy_stores:
                    seat.copy_stores.store_ahead(RING_FILLED + message % ring.slots, message + 1, found)
            except ClosedError:
                pass  # The consumer has ended meanwhile.
        self._stores.store_ahead(RING_FILLED + message % ring.slots, message + 1, found)
        with self.lock:
            if message != self.published or self._waiting_for_earlier:
                self._end(message)
                return
            # As `_end`, which wakes up consumers, too.
            self.published = message + 1
            self._write(RING_PUBLISHED, message + 1)
            for seat in self.seats:
                if seat.words.words[SEAT_ASLEEP] == 1:
                    seat.sockets.wake()

    def cancel(self, message: int) -> None:
        with self.lock:
            if self.is_closed:
                return
            if message == self._acquired - 1:
                self._acquired = message
                # Who had the slot before is not known any longer.
                if self.deliver == 'one':
                    self._skipped.add(message - self.ring.slots)
            elif self.is_ahead:
                raise CuffiError('a slot of a channel with ahead can only be canceled if it is the last one')
            else:
                self._skip(message)

    def _skip(self, message: int) -> None:
        self.ring.write_record(message, None, b'', True)
        self._skipped.add(message)
        self.ring.write(RING_FILLED + message % self.ring.slots, message + 1)
        self._end(message)

    def _end(self, message: int) -> None:
        """Shows consumers the messages that are over, in order."""
        waiting = self._waiting_for_earlier
        waiting.add(message)
        while self.published in waiting:
            waiting.discard(self.published)
            if self.deliver == 'one' and self.published not in self._skipped:
                self._ungranted.append(self.published)
            self.published += 1
        self._write(RING_PUBLISHED, self.published)
        if self._ungranted:
            self._grant_pending()
        self._wake_consumers()

    def _wake_consumers(self) -> None:
        for seat in self.seats:
            if seat.words.words[SEAT_ASLEEP] == 1:
                seat.sockets.wake()

    def _on_stored(self, error: Optional[CudaError]) -> None:
        if error is None:
            self._wake_consumers()
            return
        # The work of a message failed: it will not come.
        self._failure = self._failure or error
        with self.lock:
            seats, self.seats = self.seats, []
        if self.is_ahead:
            self._end_unfilled(seats)
        for seat in seats:
            seat.close()
        self.sleepers.wake()

    # ---- Granting, with deliver='one' ----

    def _grant_pending(self) -> None:
        for seat in list(self.seats):
            if not self._ungranted:
                return
            if not seat.wants:
                continue
            message = self._ungranted.popleft()
            redelivered = message in self._redelivered
            self._redelivered.discard(message)
            self._holders[message] = seat
            # The next message goes to the next consumer that wants one.
            self.seats.remove(seat)
            self.seats.append(seat)
            seat.grant(message, redelivered)

    def _redeliver(self, gone: Seat) -> None:
        lost = [message for message, holder in self._holders.items() if holder is gone and not gone.is_released(message)]
        for message in sorted(lost, reverse=True):
            del self._holders[message]
            self._redelivered.add(message)
            self._ungranted.appendleft(message)

    # ---- Consumers ----

    def add_seat(self) -> list[int]:
        """Adds a consumer, which gets what is published from now on. Returns its descriptors: it ends with them."""
        with self.lock:
            self.assert_open()
            seat = Seat(self.ring.slots, self.published, self._on_wake)
            self.seats.append(seat)
            fds, seat.fds = seat.fds, []
            # The consumer ends with its descriptors.
            with closing_on_error(*fds):
                if self.is_ahead:
                    seat.fd = os.dup(fds[0])
                return [self._ring_for(seat), *fds]

    def _ring_for(self, seat: Seat) -> int:
        """A descriptor of the ring for a consumer."""
        if not self.is_ahead or not self._is_ring_taken:
            self._is_ring_taken = True
            return os.dup(self.ring_fd)
        fd = sealed_memory(Ring.length(self.ring.slots, False), 'cuffi-channel')
        with closing_on_error(fd):
            copy = Ring(fd, self.ring.slots, False)
        copy.sign(RING_PRODUCER_PID)
        copy.write(RING_PUBLISHED, self.published)
        copy.write(RING_PRODUCER_SLEEPS, self._is_asleep)
        seat.set_copy(copy)
        self._copied += (seat,)
        return fd

    def _on_wake(self) -> None:
        gone = [seat for seat in list(self.seats) if seat.sockets.has_ended]
        with self.lock:
            for seat in gone:
                if seat in self.seats:
                    self._redeliver(seat)
                    self.seats.remove(seat)
                    self._copied = tuple(each for each in self._copied if each is not seat)
            self._grant_pending()
        for seat in gone:
            seat.close()
        self.sleepers.wake()

    # ---- The end ----

    def is_drained(self) -> Optional[bool]:
        """None as long as a published message is in use."""
        with self.lock:
            self.assert_open()
            return self._is_drained() or None

    def _is_drained(self) -> bool:
        first = max(0, self._acquired - self.ring.slots)
        return all(map(self._is_free, range(first, self.published)))

    def close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            # A slot that was acquired and not published is not a message.
            for message in range(self.published, self._acquired):
                if not self.is_ahead and message >= self.published and message not in self._waiting_for_earlier:
                    self._skip(message)
            self.is_closed = True
            self._write(RING_CLOSED_AT, self.published + 1)
            self._wake_consumers()
        self.sleepers.wake()
        if not self._is_delivered():
            background().poll(self._is_delivered)

    def _is_delivered(self) -> bool:
        """Releases everything once the consumers no longer need this process."""
        with self.lock:
            ring = self.ring
            if self._failure is None:
                if not all(map(ring.is_filled, range(max(0, self.published - ring.slots), self.published))):
                    return False
                if self.deliver == 'one':
                    self._grant_pending()
                    for seat in self.seats:
                        self._finish(seat)
                    if not self._is_drained():
                        return False
            seats, self.seats = self.seats, []
        if self.is_ahead:
            # All is stored, or never will be. A consumer that is blocked cannot end the waits of its streams itself.
            self._end_unfilled(seats)
        for seat in seats:
            if self.deliver == 'one':
                self._finish(seat)
            seat.close()
        os.close(self.ring_fd)
        release_page(ring)
        self._slots = self._memory = None
        return True

    def _finish(self, seat: Seat) -> None:
        """Tells a consumer if no message will come to it: the others have released all that they were granted."""
        if self._ungranted or seat.words.read(SEAT_IS_FINISHED) == 1:
            return
        if all(holder is seat or holder.is_released(message) for message, holder in self._holders.items()):
            seat.words.write(SEAT_IS_FINISHED, 1)
            seat.wake_if_asleep()


class ProducerSlot(Owner):
    """A slot that this process fills: publish it, or cancel it. `with slot:` cancels what was not published."""

    __slots__ = ('message', '_producer', '_stream', '_is_settled')

    # Only cuffi makes one: its constructor is not part of the types that users see.
    def __init__(self, producer: Any, message: int, stream: Any) -> None:
        # The number of the message, from 0.
        self.message: int = message
        self._producer: Producer = producer
        self._stream: Optional[Stream] = stream
        self._is_settled = False

    def _assert_usable(self) -> None:
        if self._is_settled:
            raise CuffiError('this slot was published or canceled already')
        producer = self._producer
        if producer.is_closed or producer._failure:
            producer.assert_open()

    def _views(self) -> Slots:
        self._assert_usable()
        return self._producer.slots

    @property
    def array(self) -> DeviceArray:
        """The memory as an array of the channel's shape and dtype. Raises CuffiError after it was published."""
        return self._views().array(self.message, None, self._stream)

    @property
    def buffer(self) -> DeviceBuffer:
        """All bytes of the slot. Raises CuffiError after it was published."""
        return self._views().buffer(self.message, self._stream)

    def publish(self, stream: Optional[StreamLike] = None, *, meta: Any = None, shape: Optional[ShapeLike] = None,
                dtype: DtypeLike = None) -> None:  # fmt: skip
        """Publishes the message: consumers get it when the work that is queued in a stream so far is done.

        Returns at once. Raises TypeError, ValueError for an invalid `meta` or a layout that does not fit, CuffiError
        if it was published or canceled, CudaError; the slot can then be published again.

        :param stream: by default the legacy default stream
        :param meta: any value that JSON can hold, of at most 1 KiB; None for nothing
        :param shape: and `dtype`, if they differ from those of the channel
        """
        producer = self._producer
        if self._is_settled or producer.is_closed or producer._failure:
            self._assert_usable()
        if not producer.is_ahead:
            producer.publish(self.message, stream, meta, shape, dtype)
        elif meta is None and shape is None and dtype is None:
            producer.publish_ahead(self.message, stream)
        else:
            raise TypeError('messages of a channel with ahead have no meta, shape or dtype of their own')
        self._is_settled = True

    def cancel(self) -> None:
        """Gives the slot back without a message. Does nothing after `publish`, or the second time."""
        if not self._is_settled:
            self._producer.cancel(self.message)
            self._is_settled = True

    def __enter__(self) -> ProducerSlot:
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f'<cuffi.ProducerSlot message {self.message}{" published or canceled" if self._is_settled else ""}>'
