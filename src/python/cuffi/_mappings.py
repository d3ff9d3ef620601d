"""Memory of other processes, mapped once for all who received it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Callable

from . import _descriptors
from ._devices import device_by_uuid
from ._driver import (
    ACCESS_READ,
    ACCESS_READ_WRITE,
    ATTRIBUTE_RANGE_SIZE,
    POSIX_FD,
    CudaError,
    Handle64,
    c_size,
    call,
    cuda_driver,
    read_number,
)
from ._errors import IpcError
from ._files import close_fds, is_same_file
from ._memory import Mapping, mapped_at, mappings, reserve
from ._process import locks, start_time_of, this_process
from ._protocol import KIND_EVENT, KIND_LEGACY, KIND_POOL, KIND_VIRTUAL
from ._releases import releases_of

if TYPE_CHECKING:
    from ._descriptors import Fields
    from ._devices import Device


def map_once(key: tuple[Any, ...], version: int, make: Callable[[], Mapping], fds: Sequence[int] = ()) -> Mapping:
    """Adds a user to a mapping, or makes it, with duplicates of its descriptors."""
    with locks.mappings:
        mapping = mappings.get(key)
        if mapping is None:
            kept: list[int] = []
            try:
                kept.extend(map(os.dup, fds))
                mapping = make()
            except BaseException as error:
                close_fds(kept)
                if isinstance(error, OSError):
                    raise IpcError(f'memory of another process cannot be opened: {error.strerror}') from None
                raise
            mapping.key, mapping.version, mapping.fds = key, version, kept
            mappings[key] = mapped_at[mapping.base] = mapping
            # Before there is anything to release.
            releases_of(mapping.device).start()
        elif mapping.version != version:
            raise IpcError('an earlier allocation with the same handle is still open here: close its arrays first')
        with locks.state:
            mapping.users += 1
        return mapping


@contextlib.contextmanager
def opening(exporter: _descriptors.Exporter) -> Generator[None, None, None]:
    """Says whose memory could not be opened."""
    try:
        yield
    except CudaError as error:
        raise IpcError(f'memory of process {exporter.pid} could not be opened: {error}') from None


def device_of(fields: Fields) -> Device:
    """Returns the device of memory or of an event. Raises IpcError for what no device here can open, even while its exporter runs."""
    here = this_process()
    _, machine, pid, _, namespace = fields.exporter
    if machine != here.machine:
        raise IpcError('the descriptor was made on another machine, or before the last boot of this one: '
                       'device memory can only be shared within one machine', 'other-machine')  # fmt: skip
    is_by_pid = fields.kind in (KIND_LEGACY, KIND_EVENT)
    if is_by_pid and pid == here.pid and namespace != here.namespace:
        raise IpcError(f"its exporter has the same pid as this process, {pid}, in another pid namespace: the driver "
                       'mistakes it for this process', 'same-pid')  # fmt: skip
    if fields.kind in (KIND_LEGACY, KIND_POOL) and fields.read_only:
        raise IpcError('memory that the driver always maps for writing was sent as read-only', 'not-supported')
    return device_by_uuid(fields.exporter.device)


def check_exporter(fields: Fields, allow_other_users: bool) -> None:
    """Raises IpcError if the exporter has ended or is of another user, before the driver is asked."""
    here = this_process()
    _, _, pid, start_time, namespace = fields.exporter
    if namespace != here.namespace or namespace == 0:
        return
    # The descriptors of virtual memory keep it alive themselves.
    if fields.kind != KIND_VIRTUAL and start_time_of(pid) != start_time:
        raise IpcError(f'process {pid}, which shared it, has exited', 'exporter-gone')
    if not allow_other_users:
        try:
            user = os.stat(f'/proc/{pid}').st_uid
        except OSError:
            return
        if user != os.geteuid():
            raise IpcError(f'process {pid}, which shared it, runs as user {user}, and this one as user {os.geteuid()}',
                           'other-user')  # fmt: skip


def map_legacy(fields: Fields, device: Device) -> Mapping:
    size, handle = c_size(), Handle64((ctypes.c_ubyte * 64)(*(fields.handle or b'')))
    with device, opening(fields.exporter):
        base = read_number('cuIpcOpenMemHandle_v2', handle, 1)
        try:
            call('cuMemGetAddressRange_v2', None, ctypes.byref(size), base)
        except CudaError:
            cuda_driver().cuIpcCloseMemHandle(base)
            raise
    return Mapping(device, base, size.value, lambda: call('cuIpcCloseMemHandle', base))


def map_virtual(fields: Fields, device: Device, fds: Sequence[int], read_only: bool) -> Mapping:
    size, access = fields.base_byte_length, device.access(ACCESS_READ if read_only else ACCESS_READ_WRITE)
    with device:
        base = end = reserve(size)
        try:
            for fd, length in zip(fds, fields.pieces):
                with opening(fields.exporter):
                    handle = read_number('cuMemImportFromShareableHandle', fd, POSIX_FD)
                    try:
                        call('cuMemMap', end, length, 0, handle, 0)
                    finally:
                        cuda_driver().cuMemRelease(handle)
                    end += length
                    call('cuMemSetAccess', end - length, length, ctypes.byref(access), 1)
        except BaseException:
            _unmap_virtual(base, end - base, size)
            raise
    return Mapping(device, base, size, lambda: _unmap_virtual(base, size, size), read_only)


def _unmap_virtual(base: int, mapped: int, size: int) -> None:
    if mapped:
        cuda_driver().cuMemUnmap(base, mapped)
    cuda_driver().cuMemAddressFree(base, size)


class OpenPool:
    """A pool of another process. It lives as long as its memory here, and the connection."""

    def __init__(self, device: Device, fd: int, exporter: _descriptors.Exporter) -> None:
        self.device, self.users = device, 1
        releases_of(device).start()
        with device, opening(exporter):
            self.handle = read_number('cuMemPoolImportFromShareableHandle', fd, POSIX_FD, 0)
            try:
                call('cuMemPoolSetAccess', self.handle, ctypes.byref(device.access(ACCESS_READ_WRITE)), 1)
            except CudaError:
                cuda_driver().cuMemPoolDestroy(self.handle)
                raise

    def release(self) -> None:
        with locks.mappings:
            self.users -= 1
            if self.users == 0:
                with self.device:
                    cuda_driver().cuMemPoolDestroy(self.handle)


def map_pool(fields: Fields, pool: OpenPool) -> Mapping:
    assert fields.handle is not None, 'the pool itself is mapped nowhere'
    with pool.device, opening(fields.exporter):
        base = read_number('cuMemPoolImportPointer', pool.handle, ctypes.create_string_buffer(fields.handle, 64))
        try:
            size = read_number('cuPointerGetAttribute', ATTRIBUTE_RANGE_SIZE, base)
        except CudaError:
            cuda_driver().cuMemFree_v2(base)
            raise
    pool.users += 1

    def unmap() -> None:
        try:
            call('cuMemFree_v2', base)
        finally:
            pool.release()

    return Mapping(pool.device, base, size, unmap)


def virtual_key(fields: Fields, device: Device, fds: Sequence[int], read_only: bool) -> tuple[Any, ...]:
    """The name of a mapping. What the sender calls the memory proves nothing: the files are compared."""
    for at in range(1 << 20):
        key = (KIND_VIRTUAL, device.ordinal, fields.memory, fields.first_piece, fields.pieces, read_only, at)
        known = mappings.get(key)
        if known is None or all(map(is_same_file, known.fds, fds)):
            return key
    raise IpcError('too many mappings of one name', 'limit-exceeded')
