"""Channels."""

from __future__ import annotations

import math
from typing import Literal, Optional

from . import _descriptors
from ._channel_end import ChannelEnd, Slots
from ._deadlines import check_busy_poll, check_count
from ._descriptors import Fields
from ._devices import chosen_device
from ._dtypes import contiguous
from ._export import Exported
from ._files import closing_on_error, sealed_memory
from ._memory import OwnMemory
from ._producer import Producer, ProducerSlot
from ._protocol import CHANNEL_FLAG_AHEAD, CHANNEL_FLAG_TO_ONE, KIND_CHANNEL, MAX_SLOTS, SLOT_ALIGNMENT
from ._ring import Ring, check_layout
from ._stats import ChannelStats
from ._types import DtypeLike, ShapeLike, StreamLike


class Channel(ChannelEnd):
    """A ring of slots in device memory that this process fills and others read, without copying.

    It is sent with `peer.send`, and arrives as a ChannelConsumer. `deliver='all'` gives each consumer each
    message that is published after the channel was sent to it, `'one'` each message to one consumer. Send it
    only to processes that you trust: each consumer can write the shared memory of the ring.

    >>> channel = cuffi.Channel(4, (480, 640), 'float32', deliver='all')
    >>> peer.send(channel)
    >>> slot = channel.acquire()
    >>> cupy.asarray(slot.array)[:] = frame
    >>> slot.publish(stream, meta={'frame': 1})
    """

    def __init__(self, slots: int, shape: Optional[ShapeLike] = None, dtype: DtypeLike = None, *, byte_length: Optional[int] = None,
                 deliver: Literal['all', 'one'], ahead: bool = False, read_only: bool = False, busy_poll_us: int = 0,
                 device: Optional[int] = None) -> None:  # fmt: skip
        """
        :param slots: how many messages can be on their way, from 1 to 1024
        :param shape: of the array of a slot, with `dtype` (by default float32); or `byte_length` is given
        :param ahead: whether streams may wait for slots; needs `deliver='all'`
        :param read_only: whether consumers can only read the slots
        :param busy_poll_us: for how many microseconds a wait at this end polls before it sleeps
        """
        slots = check_count(slots, 1, 'slots')
        if slots > MAX_SLOTS:
            raise ValueError(f'slots must be from 1 to {MAX_SLOTS}, not {slots}')
        if deliver not in ('all', 'one'):
            raise TypeError(f"deliver must be 'all' or 'one', not {deliver!r}")
        if ahead and deliver == 'one':
            raise TypeError("ahead needs deliver='all': with 'one', the consumer of a message is chosen later")
        if (shape is None) == (byte_length is None) or (byte_length is not None and dtype is not None):
            raise TypeError('give either a shape, with its dtype, or a byte_length')
        if byte_length is not None:
            byte_length = check_count(byte_length, 1, 'byte_length')
        layout = check_layout(byte_length if shape is None else shape,
                               dtype or ('float32' if byte_length is None else 'uint8'), None)  # fmt: skip
        size = math.prod(layout[1]) * layout[0].itemsize
        check_count(size, 1, 'the size of a slot')
        stride = -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        duration = check_busy_poll(busy_poll_us)
        where = chosen_device(device)
        memory = OwnMemory(where, stride * slots, bool(read_only))
        ring_fd = sealed_memory(Ring.length(slots, not ahead), 'cuffi-channel')
        with closing_on_error(ring_fd):
            ring = Ring(ring_fd, slots, not ahead)
            views = Slots(memory, slots, stride, size, layout, False)
            state = Producer(ring, ring_fd, memory, views, stride * slots, deliver, bool(ahead))
            state.sleepers.busy_poll_us = duration
            super().__init__(state)

    @property
    def consumers(self) -> int:
        """How many processes consume it: it was sent to them, and they have not ended it."""
        return len(self._held().seats)

    @property
    def published(self) -> int:
        """How many messages were published."""
        return self._held().published

    def stats(self) -> ChannelStats:
        """Returns what it has done, and how many slots are in use."""
        state: Producer = self._held()
        return ChannelStats(state.published, len(state.seats), state.ring.slots, state.in_use)

    def acquire(self, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> ProducerSlot:
        """Waits for a free slot: one that all consumers have released. Slots are published in the order of acquiring.

        With `stream`, in a channel with `ahead`, that stream waits instead of the caller. It must be non-blocking.
        Raises TimeoutError, ClosedError, CuffiError if a stream is given and the slot was not published yet.
        """
        state: Producer = self._state or self._held()
        return state.try_acquire(stream) or state.sleepers.wait(lambda: state.try_acquire(stream), timeout, state.slot_in_words)

    async def aacquire(self, *, stream: Optional[StreamLike] = None, timeout: Optional[float] = None) -> ProducerSlot:
        """As `acquire`."""
        state: Producer = self._held()
        return await state.sleepers.await_(lambda: state.try_acquire(stream), timeout, state.slot_in_words)

    def try_acquire(self, *, stream: Optional[StreamLike] = None) -> Optional[ProducerSlot]:
        """As `acquire`, without waiting: None if there is no free slot, or no more waits may be queued now.

        With a stream, also if a consumer has not received the channel yet.
        """
        return self._held().try_acquire(stream)

    def drained(self, *, timeout: Optional[float] = None) -> None:
        """Waits until all published messages were released by their consumers, or those have ended.

        With `deliver='one'`, messages that nobody has taken are waited for. Raises TimeoutError, ClosedError.
        """
        state: Producer = self._held()
        state.sleepers.wait(state.is_drained, timeout, 'the consumers of a channel')

    async def adrained(self, *, timeout: Optional[float] = None) -> None:
        """As `drained`."""
        state: Producer = self._held()
        await state.sleepers.await_(state.is_drained, timeout, 'the consumers of a channel')

    def _export(self) -> Exported:
        state: Producer = self._held()
        memory, (dtype, shape), read_only = state.memory, state.slots.layout, state.memory.read_only_fd >= 0
        bits = (CHANNEL_FLAG_TO_ONE if state.deliver == 'one' else 0) | (CHANNEL_FLAG_AHEAD if state.is_ahead else 0)
        fields = Fields(
            KIND_CHANNEL, slots=state.ring.slots, stride=state.slots._stride, byte_length=state.slots.byte_length,
            layout=_descriptors.Layout(dtype.name, shape, contiguous(shape, dtype.itemsize)), flags=bits,
            memory=Fields(**memory.fields(0, state.total, read_only, None)))  # fmt: skip
        fds = (memory.read_only_fd if read_only else memory.fd,)
        return Exported(_descriptors.encode(fields), fds, memory, None, owned=state.add_seat(), root=state)
