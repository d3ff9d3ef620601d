"""Page-locked memory that processes share."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _descriptors
from ._array import DeviceArray
from ._background import background, nothing
from ._deadlines import check_count
from ._described import Described, is_on_gpu
from ._descriptors import Fields
from ._devices import chosen_device, current_device, stream_handle
from ._driver import call
from ._dtypes import contiguous
from ._errors import CuffiError, IpcError
from ._export import Exported
from ._files import close_fds, closing_on_error, is_sealed, sealed_memory, take_fds, whole_pages
from ._owner import Closable
from ._protocol import KIND_PINNED
from ._releases import release_soon
from ._types import DeviceArrayLike, StreamLike
from ._waits import has_room_in, too_much_work
from ._words import SharedWords, close_page

if TYPE_CHECKING:
    from ._connection import Connection
    from ._devices import Device


class _PinnedState:
    """Page-locked memory over a memfd, which outlives its object until no work uses it."""

    def __init__(self, fd: int, byte_length: int, device: Device, on_released: Callable[[], None]) -> None:
        """Owns the descriptor, also if it raises."""
        self.fd, self.byte_length, self.device, self.on_released = fd, byte_length, device, on_released
        self.is_closed = False
        with closing_on_error(fd):
            # It releases the memory.
            background()
            self._page = SharedWords(fd, whole_pages(byte_length))
            self.view, self.address = self._page.bytes[:byte_length], self._page.host
            with device:
                self.device_address = self._page.address(device, 0)

    def close(self) -> None:
        self.is_closed = True

        def release() -> None:
            close_page(self._page)
            os.close(self.fd)
            self.on_released()

        release_soon(lambda: True, release)


class PinnedBuffer(Closable):
    """Page-locked host memory that processes share: made by `pinned`, or received.

    GPUs copy from and to it directly. It lives until the last process has closed it. A CPU that uses it is
    ordered by what it waits for: a message, a timeline, or its stream. Send it only to processes that you
    trust: each of them can write it.

    >>> frame = numpy.asarray(pinned).view('float32')
    """

    @property
    def _device(self) -> Device:
        return self._held().device

    @property
    def nbytes(self) -> int:
        """The size in bytes. Raises ClosedError."""
        return self._held().byte_length

    @property
    def buffer(self) -> memoryview:
        """The memory. It stays readable after `close()`, as long as a view of it lives."""
        return self._held().view

    @property
    def ptr(self) -> int:
        """The host address of the first byte."""
        return self._held().address

    @property
    def device_ptr(self) -> int:
        """The device address of the first byte: kernels reach the memory there."""
        return self._held().device_address

    def __len__(self) -> int:
        return self.nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """https://numpy.org/doc/stable/reference/arrays.interface.html"""
        state = self._held()
        return {'shape': (state.byte_length,), 'typestr': '|u1', 'data': state.view, 'version': 3}

    def copy_to(self, array: DeviceArrayLike, stream: Optional[StreamLike] = None) -> None:
        """Copies the first bytes to all items of a contiguous array. With `stream` it returns at once.

        Without `stream` it waits until the copy is done. Raises ValueError for an array that does not fit.
        """
        address, byte_length = self._target(array, True)
        self._copy(address, self.ptr, byte_length, stream)

    def copy_from(self, array: DeviceArrayLike, stream: Optional[StreamLike] = None) -> None:
        """Copies all items of a contiguous array to the first bytes. As `copy_to`."""
        address, byte_length = self._target(array, False)
        self._copy(self.ptr, address, byte_length, stream)

    def _target(self, array: Any, is_written: bool) -> tuple[int, int]:
        if not isinstance(array, DeviceArray) and not is_on_gpu(array):
            raise TypeError(f'array must be in the memory of a GPU, not {type(array).__name__}')
        described = Described(array)
        itemsize = described.dtype.itemsize
        byte_length = math.prod(described.shape) * itemsize
        if byte_length and tuple(described.strides) != contiguous(described.shape, itemsize):
            raise CuffiError('this array is not contiguous: copy it with torch or cupy')
        if is_written and described.read_only:
            raise CuffiError('this array is read-only')
        if byte_length > self.nbytes:
            raise ValueError(f'an array of {byte_length} bytes, and page-locked memory of {self.nbytes}')
        return described.address, byte_length

    def _copy(self, target: int, source: int, byte_length: int, stream: Any) -> None:
        if not byte_length:
            return
        handle = stream_handle(stream)
        if not has_room_in(self._device, handle):
            raise too_much_work()
        with self._device as device:
            call('cuMemcpyAsync', target, source, byte_length, handle)
            if stream is None:
                call('cuCtxSynchronize')
            del device

    def _export(self) -> Exported:
        state: _PinnedState = self._held()
        fields = Fields(KIND_PINNED, byte_length=state.byte_length)
        return Exported(_descriptors.encode(fields), (), None, state.device, owned=[os.dup(state.fd)], root=state)


def pinned(byte_length: int, *, device: Optional[int] = None) -> PinnedBuffer:
    """Returns page-locked host memory, zeroed, that can be sent to other processes.

    Whole pages are locked, so small buffers are expensive. Raises MemoryError if the system has no room.
    """
    byte_length = check_count(byte_length, 1, 'byte_length')
    where = chosen_device(device)
    size = whole_pages(byte_length)
    # The kernel would allocate pages until it ends processes.
    if size > _available_memory():
        raise MemoryError(f'the system has no {byte_length} bytes of host memory left')
    fd = sealed_memory(size, 'cuffi-pinned')
    try:
        with closing_on_error(fd):
            # Now: locking the pages would allocate them in the process that locks them first.
            os.posix_fallocate(fd, 0, size)
    except OSError:
        raise MemoryError(f'the system has no {byte_length} bytes of host memory left') from None
    return PinnedBuffer(_PinnedState(fd, byte_length, where, nothing))


def _available_memory() -> float:
    try:
        with open('/proc/meminfo') as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith('MemAvailable'))
    except (OSError, StopIteration, ValueError):
        return math.inf


class PinnedFields:
    """Page-locked memory of another process."""

    def __init__(self, fields: Fields) -> None:
        self.byte_length = fields.byte_length

    def open(self, connection: Connection, fds: list[int], lease: int) -> PinnedBuffer:
        device = current_device()
        (fd,) = take_fds(fds, 1, 'page-locked memory')
        size = whole_pages(self.byte_length)
        # Locking pages that do not exist yet would allocate them here.
        if not is_sealed(fd, size) or os.fstat(fd).st_blocks * 512 < size:
            close_fds([fd])
            raise IpcError(f'page-locked memory of another process is not sealed, or does not have {size} bytes allocated')
        try:
            return PinnedBuffer(_PinnedState(fd, self.byte_length, device, lambda: connection.imports.release(lease)))
        except (OSError, ValueError) as error:
            raise IpcError(f'page-locked memory of another process cannot be mapped: {error}') from None
