"""What both ends of a channel have."""

from __future__ import annotations

import collections
import ctypes
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from ._array import DeviceArray, DeviceBuffer
from ._background import background
from ._deadlines import check_busy_poll
from ._devices import is_context_lost, stream_handle
from ._driver import NOT_READY, CudaError, call, cuda_driver
from ._dtypes import DTYPES, contiguous
from ._errors import ClosedError
from ._owner import Closable
from ._waits import Stream, enqueue_store, stream_of
from ._wakeups import BUSY_S

if TYPE_CHECKING:
    from ._devices import Device
    from ._ring import Ring, SlotLayout
    from ._words import SharedWords

END = object()


class Stores:
    """Stores counts in shared words when the work of streams is done, and tells when they are stored."""

    def __init__(self, words: SharedWords, on_stored: Callable[[Optional[CudaError]], None], keeps: bool, is_ahead: bool,
                 slots: int) -> None:  # fmt: skip
        """:param keeps: whether this process does not end before"""
        self._words, self._on_stored, self._keeps, self._is_ahead = words, on_stored, keeps, is_ahead
        # The slot of an older one has been used again.
        self._pending: collections.deque[tuple[int, int, Stream]] = collections.deque(maxlen=2 * slots)
        self._newest: Any = None
        self._lock, self._since, self._is_polled = threading.Lock(), 0.0, False

    def store(self, index: int, count: int, stream: Stream) -> None:
        """Stores a count when the work that is queued in a stream so far is done. Raises CudaError; then nothing is."""
        words = self._words
        if stream.handle > 2:
            status = cuda_driver().cuStreamQuery(stream.argument)
            if status == 0:
                # Cheaper and sooner than by the device, which would also take turns with other processes.
                words.write(index, count)
                self._on_stored(None)
                return
            if status != NOT_READY:
                raise CudaError('cuStreamQuery', status)
        enqueue_store(words, index, count, stream)
        if words.reached(index, count):
            self._on_stored(None)
        else:
            self._watch(index, count, stream)

    def store_ahead(self, index: int, count: int, stream: Stream) -> None:
        """As `store`, in a channel with ahead, where nobody waits on the host for what is stored."""
        enqueue_store(self._words, index, count, stream)
        self._watch(index, count, stream)

    def _watch(self, index: int, count: int, stream: Stream) -> None:
        self._pending.append((index, count, stream))
        # Without the lock: who ends the poll looks again.
        if not self._is_polled:
            with self._lock:
                if self._is_polled:
                    return
                self._is_polled, self._since = True, time.monotonic()
            background().poll(self._is_over, self._keeps, not self._is_ahead)

    def _is_over(self) -> Union[bool, float]:
        pending, reached, is_stored = self._pending, self._words.reached, False
        newest, self._newest = self._newest, pending[-1] if pending else None
        for _ in range(len(pending)):
            index, count, _ = pending[0]
            if reached(index, count):
                is_stored = True
                pending.popleft()
            elif self._is_ahead:
                # Nearly in order: those behind one that is not reached may be told later.
                break
            else:
                pending.rotate(-1)
        now = time.monotonic()
        if is_stored:
            self._since = now
            self._on_stored(None)
        # After so long, the driver is asked whether the context is lost.
        if pending and now - self._since > 0.1:
            if is_context_lost(pending[0][2].device):
                pending.clear()
                self._is_polled = False
                self._on_stored(CudaError('cuStreamWriteValue64_v2', 700))
                return True
            self._since = now
        with self._lock:
            # The next one probably comes soon: to begin again takes longer.
            self._is_polled = self._is_ahead and now - self._since <= 0.02
            if pending:
                self._is_polled = True
        if not self._is_polled:
            return True
        # Each store wakes up who sleeps, and each look takes turns with the thread that stores.
        return BUSY_S if self._is_ahead and newest is not self._newest else False


class Slots:
    """The slots of messages as arrays and buffers, which are made at their first use."""

    def __init__(self, memory: Any, slots: int, stride: int, byte_length: int, layout: SlotLayout, read_only: bool) -> None:
        self._memory, self._slots, self._stride = memory, slots, stride
        self.byte_length, self.layout, self._read_only = byte_length, layout, read_only
        self._arrays: list[Optional[DeviceArray]] = [None] * slots

    def array(self, message: int, layout: Optional[SlotLayout], stream: Optional[Stream]) -> DeviceArray:
        slot = message % self._slots
        array = self._arrays[slot] if layout is None else None
        if array is None or array.closed:
            dtype, shape = layout or self.layout
            address = self._memory.address + slot * self._stride
            array = DeviceArray(self._memory, address, shape, dtype, contiguous(shape, dtype.itemsize), self._read_only)
            if layout is None:
                self._arrays[slot] = array
        array._stream = None if stream is None else stream.handle
        return array

    def buffer(self, message: int, stream: Optional[Stream]) -> DeviceBuffer:
        address, handle = self._memory.address + message % self._slots * self._stride, None if stream is None else stream.handle
        return DeviceBuffer(self._memory, address, (self.byte_length,), DTYPES['uint8'], (1,), self._read_only, handle)


class ChannelState:
    """What both ends of a channel have. It outlives its object until its work is done."""

    def __init__(self, ring: Ring, device: Device, slots: Slots, deliver: str, is_ahead: bool, name: str) -> None:
        self.ring, self.device, self.deliver, self.is_ahead, self.name = ring, device, deliver, is_ahead, name
        self._slots: Optional[Slots] = slots
        self.lock = threading.RLock()
        self.is_closed = False
        self.streams, self.ahead_streams = _Streams(self), _AheadStreams(self)

    @property
    def slots(self) -> Slots:
        """Raises ClosedError: another thread may close the channel at any time."""
        slots = self._slots
        if slots is None:
            raise self.closed_error()
        return slots

    def closed_error(self) -> ClosedError:
        return ClosedError(f'this {self.name} is closed')


class _Streams(dict[int, Stream]):
    """The streams of a channel, by their handles."""

    def __init__(self, state: ChannelState) -> None:
        self._state = weakref.proxy(state)

    def __missing__(self, handle: int) -> Stream:
        stream = self[handle] = stream_of(self._state.device, stream_handle(handle))
        return stream


class _AheadStreams(_Streams):
    """Those that may wait for slots. Raises TypeError for any other."""

    def __missing__(self, handle: int) -> Stream:
        if not self._state.is_ahead:
            raise TypeError('streams can only wait for slots of a channel that was created with ahead=True')
        flags = ctypes.c_uint32()
        if handle > 2:
            call('cuStreamGetFlags', handle, ctypes.byref(flags))
        if not flags.value & 1:
            raise TypeError('the stream must be non-blocking: while a blocking one waits, the legacy default stream stands still')
        return super().__missing__(handle)


class ChannelEnd(Closable):
    """What both ends of a channel show."""

    _state: Any

    @property
    def slots(self) -> int:
        """How many messages can be on their way."""
        return self._held().ring.slots

    @property
    def byte_length(self) -> int:
        """The size of a slot in bytes."""
        return self._held().slots.byte_length

    @property
    def shape(self) -> tuple[int, ...]:
        return self._held().slots.layout[1]

    @property
    def dtype(self) -> str:
        return self._held().slots.layout[0].name

    @property
    def deliver(self) -> str:
        """'all' if each consumer gets each message, 'one' if each goes to one consumer."""
        return self._held().deliver

    @property
    def device(self) -> int:
        """The ordinal of the device with the slots."""
        return self._held().device.ordinal

    @property
    def busy_poll_us(self) -> int:
        """For how many microseconds a wait at this end polls before it sleeps."""
        return self._held().sleepers.busy_poll_us

    @busy_poll_us.setter
    def busy_poll_us(self, duration: int) -> None:
        self._held().sleepers.busy_poll_us = check_busy_poll(duration)
