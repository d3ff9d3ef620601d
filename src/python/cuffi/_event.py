"""Events that processes share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Optional

from ._deadlines import wait_until
from ._devices import chosen_device, stream_handle
from ._driver import LEGACY_STREAM, call, read_number
from ._owner import Context
from ._process import locks
from ._types import StreamLike
from ._waits import EventHandle, add_event, is_behind_wait

if TYPE_CHECKING:
    from ._devices import Device


# The events that this process has made.
_made_here: weakref.WeakSet[CudaEvent] = weakref.WeakSet()


def is_event_open(handle: EventHandle) -> bool:
    """Whether an event of this process is open; also for one of another process."""
    with locks.state:
        return handle.received is not None or any(event._own is handle for event in _made_here)


class CudaEvent(Context):
    """An event that processes share: made here, or received.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
    """

    def __init__(self, *, device: Optional[int] = None) -> None:
        where = chosen_device(device)
        with where:
            # Without timing, for other processes.
            self._own: Optional[EventHandle] = EventHandle(where, read_number('cuEventCreate', 2 | 4))
        with locks.state:
            _made_here.add(self)

    _instead = 'refer to it, or send it with peer.send()'

    @classmethod
    def _of(cls, handle: EventHandle) -> CudaEvent:
        event = cls.__new__(cls)
        event._own = handle
        return event

    @property
    def closed(self) -> bool:
        """Whether `close()` was called here. The other end may still have it."""
        return self._own is None

    def _held(self) -> EventHandle:
        own = self._own
        if own is None:
            raise self._closed_error()
        return own

    @property
    def _device(self) -> Device:
        return self._held().device

    @property
    def handle(self) -> int:
        """The driver's handle. Raises ClosedError."""
        return self._held().value

    @property
    def done(self) -> bool:
        """Whether the work is done that was queued before the last record."""
        return self._held().has_run()

    def record(self, stream: StreamLike = LEGACY_STREAM) -> None:
        """Records the work that is queued in a stream, by default the legacy default stream."""
        event, handle = self._held(), stream_handle(stream)
        with event.device:
            call('cuEventRecord', event.value, handle)
        event.is_behind_wait = is_behind_wait(event.device, handle)

    def wait(self, stream: StreamLike = LEGACY_STREAM) -> None:
        """Makes later work of a stream wait for the last record."""
        event, handle = self._held(), stream_handle(stream)
        with event.device:
            call('cuStreamWaitEvent', handle, event.value, 0)
        if event.is_behind_wait:
            add_event(event.device, handle, event)

    def synchronize(self, *, timeout: Optional[float] = None) -> None:
        """Waits on the host for the last record. Raises TimeoutError."""
        wait_until(lambda: self.done, timeout, 'an event')

    def close(self) -> None:
        """Destroys it, once the other end has closed what it was sent. The second call does nothing."""
        own, self._own = self._own, None
        connection = own.received[0] if own and own.received else None
        del own
        if connection:
            connection.imports.give_back()
