"""Streams that wait for other processes: how much is queued behind the waits, and the limits of that."""

from __future__ import annotations

import collections
import ctypes
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Optional

from ._background import background
from ._devices import current_device, stream_handle
from ._driver import LEGACY_STREAM, NOT_READY, WAIT_GEQ, CudaError, c_u32, c_u64, call, cuda_driver, read_number
from ._errors import CuffiError
from ._process import locks, process_exit

if TYPE_CHECKING:
    from ._connection import Connection
    from ._devices import Device
    from ._words import SharedWords


class EventHandle:
    """An event of the driver. It is destroyed with its last user: as memory, what is sent outlives `close()`."""

    def __init__(self, device: Device, value: int, received: Optional[tuple[Connection, int, bytes]] = None) -> None:
        self.device, self.value = device, value
        # The connection, the lease and the fields of an event of another process.
        self.received = received
        # Whether it was recorded behind a wait for another process.
        self.is_behind_wait = False

    def has_run(self) -> bool:
        """Whether the work is done that was queued before the last record. Raises CudaError."""
        with self.device:
            status = cuda_driver().cuEventQuery(self.value)
        if status not in (0, NOT_READY):
            raise CudaError('cuEventQuery', status)
        return status == 0

    def __del__(self) -> None:
        if not process_exit or process_exit.has_begun:
            return
        try:
            with self.device:
                cuda_driver().cuEventDestroy_v2(self.value)
        except CuffiError:
            pass  # The context is lost.
        if self.received:
            self.received[0].imports.give_back_later(self.received[1], None, None)


REPAIR_S = 2.0
# Behind a wait a stream takes 1,020 operations; the next one blocks its caller. Most are left for other work.
_MAX_WAITS_OF_STREAM = 320
# The most waits for all streams of a device, as some of them may share a hardware queue.
_MAX_WAITS_OF_DEVICE = 512
# The most operations that are queued behind a wait, waits included. The rest is for what cuffi does not see.
_MAX_WORK_OF_STREAM = 960
# Above this, what can wait on the host does.
MAX_WORK_AHEAD = _MAX_WORK_OF_STREAM // 2
# The most streams whose counts are kept.
_MAX_COUNTED = 256
# After so many waits or operations, an event tells how many have run.
_WAITS_PER_EVENT, _WORK_PER_EVENT = _MAX_WAITS_OF_STREAM // 2, 128
MAX_AHEAD = 64
_NO_FLAGS = c_u32(WAIT_GEQ)


class Stream:
    """A stream, and what it has queued behind waits. It counts too much rather than too little."""

    __slots__ = ('device', 'handle', 'argument', 'driver', 'waits', '_awaited', '_is_blocking', '_events', '_queued', '_since_mark',
                 '_mark', '_unchecked', '_was_behind', '_free_since', '__weakref__')  # fmt: skip

    def __init__(self, device: Device, handle: int) -> None:
        self.device, self.handle, self.argument, self.driver = device, handle, c_u64(handle), cuda_driver()
        # Words and the counts that they must reach, in order. Reached ones are removed.
        self.waits: collections.deque[tuple[SharedWords, int, int]] = collections.deque()
        # For each word of them the highest count.
        self._awaited: dict[tuple[SharedWords, int], int] = {}
        self._is_blocking: Optional[bool] = None
        # Events that stand behind a wait, for which it waits.
        self._events: list[EventHandle] = []
        # How many waits and other operations may not have run yet, and how many of them came after the mark.
        self._queued, self._since_mark = [0, 0], [0, 0]
        self._mark: Optional[EventHandle] = None
        self._unchecked = 0
        # Whether it was behind a wait when that was asked last: asking takes longer than most calls of the driver. If it
        # was, what is queued counts until it is asked again. If not, that holds until some stream waits.
        self._was_behind, self._free_since = False, -1

    def is_waiting(self) -> bool:
        waits = self.waits
        while waits:
            words, index, count = waits[0]
            if not words.reached(index, count):
                return True
            waits.popleft()
            if self._awaited.get((words, index)) == count:
                del self._awaited[words, index]
        return False

    def awaits(self, words: SharedWords, index: int, count: int) -> bool:
        """Whether it waits already for what a word reaches later, or at the same time."""
        return self._awaited.get((words, index), 0) >= count

    @property
    def wait_count(self) -> int:
        """How many waits may not have run yet."""
        return self._queued[0]

    def fits_waits(self, count: int) -> bool:
        waits, work = self._queued
        return waits + count <= _MAX_WAITS_OF_STREAM and waits + work + count <= _MAX_WORK_OF_STREAM

    def add_wait(self, words: SharedWords, index: int, count: int) -> None:
        self.waits.append((words, index, count))
        self._awaited[words, index] = count
        self._queued[0] += 1
        self._since_mark[0] += 1
        self._keep()
        _note_change()

    def _keep(self) -> None:
        """Keeps the counts, until those of many others are newer. Nobody tells when a stream is destroyed."""
        if self not in _counted:
            while len(_counted) >= _MAX_COUNTED:
                del _counted[next(iter(_counted))]
            _counted[self] = None

    def remove_wait(self, words: SharedWords, index: int, count: int) -> None:
        """The driver did not take it."""
        self.waits.remove((words, index, count))
        self._awaited.pop((words, index), None)
        self._queued[0] -= 1
        self._since_mark[0] = max(0, self._since_mark[0] - 1)

    @property
    def has_many_new_waits(self) -> bool:
        return self._since_mark[0] >= _WAITS_PER_EVENT

    def has_room(self, most: int = _MAX_WORK_OF_STREAM, adds: bool = True) -> bool:
        """Whether one more operation fits behind a wait; it is counted then, unless `adds` is False."""
        if self._free_since == _changes:
            return True
        queued = self._queued
        is_full = queued[0] + queued[1] >= most
        if is_full or not self._was_behind or self._unchecked >= _WORK_PER_EVENT:
            self._was_behind = self.is_behind_wait()
            if not self._was_behind:
                self._free_since = _changes
                self._forget_work()
                return True
            if is_full or self._unchecked >= _WORK_PER_EVENT:
                self.check()
                queued = self._queued
                if queued[0] + queued[1] >= most:
                    return False
        if adds:
            queued[1] += 1
            self._since_mark[1] += 1
            self._unchecked += 1
            self._keep()
            if self.handle == LEGACY_STREAM:
                # Blocking streams stand behind what it has queued.
                _note_change()
        return True

    def _forget_work(self) -> None:
        """Nothing of it stands behind a wait."""
        self._queued[1] = self._since_mark[1] = self._unchecked = 0

    def is_behind_wait(self) -> bool:
        """Whether what is queued now may stand behind a wait for another process."""
        if self.waits:
            if self.is_waiting():
                return True
            _waiting.discard(self)
        if self._events and self._waits_for_event():
            return True
        if not _waiting:
            return False
        blocking = [other for other in tuple(_waiting) if other.device is self.device and other.is_blocking]
        if not blocking or not self.is_blocking or not any(other.is_waiting() for other in blocking):
            return False
        # Other blocking streams stand only behind what the legacy default stream has queued.
        if self.handle == LEGACY_STREAM:
            return True
        legacy = _streams.get((self.device.ordinal, LEGACY_STREAM))
        return legacy is not None and (legacy.is_waiting() or sum(legacy._queued) > 0)

    @property
    def is_blocking(self) -> bool:
        """Whether it synchronizes with the legacy default stream, or is that one."""
        if self._is_blocking is None:
            flags = ctypes.c_uint32()
            status = self.driver.cuStreamGetFlags(self.handle, ctypes.byref(flags)) if self.handle > 2 else 0
            self._is_blocking = status == 0 and not flags.value & 1
        return self._is_blocking

    def add_event(self, event: EventHandle) -> None:
        """Notes that it waits for an event that stands behind a wait."""
        self._waits_for_event()
        self._events.append(event)
        self._keep()
        _note_change()

    def _waits_for_event(self) -> bool:
        self._events = [event for event in self._events if not event.has_run()]
        return bool(self._events)

    def refresh(self) -> None:
        """Finds out whether all has run up to the mark: a value that is reached does not prove that a wait for it has."""
        if self._mark and self._mark.has_run():
            self._queued, self._mark = self._since_mark[:], None

    def check(self) -> None:
        """Finds out how much has run, now or at the next call. The stream must exist."""
        if not self.is_behind_wait():
            self._forget_work()
        self.refresh()
        self._unchecked = 0
        if self._mark is None and any(self._queued):
            self._mark, self._since_mark = event_behind(self), [0, 0]
            self.refresh()


def event_behind(stream: Stream) -> EventHandle:
    """An event that is done when all has run that is queued in a stream so far. Raises CudaError."""
    with stream.device:
        event = EventHandle(stream.device, read_number('cuEventCreate', 2))
        call('cuEventRecord', event.value, stream.handle)
    return event


_streams: weakref.WeakValueDictionary[tuple[int, int], Stream] = weakref.WeakValueDictionary()
# Those that have waits, and some that had.
_waiting: set[Stream] = set()
# Those that had something queued behind a wait, the oldest first.
_counted: dict[Stream, None] = {}
_waits_lock = threading.Lock()
# How often a stream has begun to wait, or the legacy default stream has got work behind a wait.
_changes = 0


def _note_change() -> None:
    global _changes
    _changes += 1


def stream_of(device: Device, handle: int) -> Stream:
    key = (device.ordinal, handle)
    with locks.state:
        stream = _streams.get(key)
        if stream is None:
            stream = _streams[key] = Stream(device, handle)
        return stream


def current_stream(stream: Any) -> Stream:
    """A stream of the current device, by default its legacy default stream."""
    return stream_of(current_device(), stream_handle(stream))


@functools.cache
def _max_waiting_streams() -> int:
    """Two fewer than a device has queues: if all queues held waits, nothing else of the process would run."""
    try:
        given = int(os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS', ''))
    except ValueError:
        given = 8
    return max(0, (given if 1 <= given <= 32 else 8) - 2)


def waiting_streams() -> int:
    """How many streams of this process wait for other processes."""
    if not _waiting:
        return 0
    with _waits_lock:
        _waiting.intersection_update([stream for stream in _waiting if stream.is_waiting()])
        return len(_waiting)


def is_awaited_by_streams(words: SharedWords) -> bool:
    with _waits_lock:
        return any(wait[0] is words for stream in _waiting if stream.is_waiting() for wait in stream.waits)


def open_waits(device: Device) -> list[tuple[SharedWords, int, int]]:
    """The last wait of each stream of a device that waits."""
    with _waits_lock:
        return [stream.waits[-1] for stream in _waiting if stream.device is device and stream.is_waiting()]


def add_event(device: Device, handle: int, event: EventHandle) -> None:
    """Notes that a stream waits for an event that stands behind a wait."""
    with _waits_lock:
        stream_of(device, handle).add_event(event)


def is_behind_wait(device: Device, handle: int) -> bool:
    """Whether what is queued now in a stream may stand behind a wait for another process."""
    if not _waiting:
        return False
    with _waits_lock:
        return stream_of(device, handle).is_behind_wait()


def has_room(stream: Stream, most: int = _MAX_WORK_OF_STREAM, adds: bool = True) -> bool:
    """As its method, from any thread."""
    with _waits_lock:
        return stream.has_room(most, adds)


def has_room_in(device: Device, handle: int) -> bool:
    """Whether one more operation fits into a stream. It is counted if it stands behind a wait."""
    return not _waiting or has_room(stream_of(device, handle))


def renew_waits_lock() -> None:
    global _waits_lock
    _waits_lock = threading.Lock()


def have_room_for_waits(stream: Stream, count: int) -> bool:
    """Whether so many more waits fit into a stream, and into all that wait on its device."""
    with _waits_lock:
        return _fit_waits(stream, count)


def _fit_waits(stream: Stream, count: int) -> bool:
    if not stream.fits_waits(count):
        stream.check()
        if not stream.fits_waits(count):
            return False
    most = _max_waiting_streams()
    if len(_waiting) >= most and not stream.is_waiting() and sum(other.is_waiting() for other in _waiting) >= most:
        return False
    if len(_waiting) <= (stream in _waiting):
        return True
    others = [other for other in _waiting if other is not stream and other.device is stream.device]
    if stream.wait_count + count + sum(other.wait_count for other in others) <= _MAX_WAITS_OF_DEVICE:
        return True
    stream.check()
    others = [other for other in others if other.is_waiting()]
    for other in others:
        other.refresh()
    return stream.wait_count + count + sum(other.wait_count for other in others) <= _MAX_WAITS_OF_DEVICE


def enqueue_wait(words: SharedWords, index: int, count: int, stream: Stream) -> bool:
    """Makes later work of a stream wait for a word. Returns False if no more waits may be queued now."""
    address = words.arguments[stream.device][index]
    with _waits_lock:
        if stream.waits and stream.awaits(words, index, count) and stream.is_waiting():
            return True
        if not _fit_waits(stream, 1):
            return False
        _waiting.add(stream)
        # Added first: a wait that nobody knows could block for ever.
        stream.add_wait(words, index, count)
    status = -1
    try:
        # Only default streams need their context.
        if stream.handle > 2:
            status = stream.driver.cuStreamWaitValue64_v2(stream.argument, address, count, _NO_FLAGS)
        else:
            with stream.device:
                status = stream.driver.cuStreamWaitValue64_v2(stream.argument, address, count, _NO_FLAGS)
    finally:
        if status:
            with _waits_lock:
                stream.remove_wait(words, index, count)
    if status:
        raise CudaError('cuStreamWaitValue64_v2', status, 'waiting for a stream of another process')
    if stream.has_many_new_waits:
        with _waits_lock:
            stream.check()
    return True


def enqueue_store(words: SharedWords, index: int, count: int, stream: Stream) -> None:
    """Stores a count when the work that is queued in a stream so far is done: by the host, if that stream has no room."""
    address = words.arguments[stream.device][index]
    # Behind an earlier store of the host only the host stores, so that no word goes back.
    if index in words.host_stores or ((_waiting or _counted) and not has_room(stream)):
        store_by_host(words, index, count, stream)
        return
    if stream.handle > 2:
        status = stream.driver.cuStreamWriteValue64_v2(stream.argument, address, count, _NO_FLAGS)
    else:
        with stream.device:
            status = stream.driver.cuStreamWriteValue64_v2(stream.argument, address, count, _NO_FLAGS)
    if status:
        raise CudaError('cuStreamWriteValue64_v2', status, 'signaling the progress of a stream to another process')


def store_by_host(words: SharedWords, index: int, count: int, stream: Stream, after: int = 0) -> None:
    """Stores a count when the work of a stream is done and an earlier count is stored. This process stays until then."""
    event = event_behind(stream)
    with _waits_lock:
        pending = words.host_stores.get(index)
        if pending is not None:
            pending.append((count, event, after))
            return
        pending = words.host_stores[index] = collections.deque([(count, event, after)])

    def is_over() -> bool:
        with _waits_lock:
            while pending:
                count, event, after = pending[0]
                try:
                    if not (event.has_run() and words.reached(index, after)):
                        return False
                except CudaError:
                    # The context is lost: nobody stores them.
                    break
                if not words.reached(index, count):
                    words.words[index] = count
                pending.popleft()
            del words.host_stores[index]
            return True

    background().poll(is_over, keeps=True)


def too_much_work() -> CuffiError:
    return CuffiError(
        f'{_MAX_WORK_OF_STREAM} operations are queued in this stream behind a wait for another process: the driver would '
        'block this process at the next ones. Synchronize the stream or call timeline.reached() before queueing more'
    )


def too_many_waits(value: int) -> CuffiError:
    return CuffiError(
        'too many streams of this process already wait, or too much work is queued behind waits: one more wait could '
        f'stop all other GPU work of the process. Use fewer streams, call timeline.reached({value}) before queueing '
        'more, or raise CUDA_DEVICE_MAX_CONNECTIONS (at most 32)'
    )
