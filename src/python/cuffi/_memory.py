"""Memory: of this process, of another one, and of another library."""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _descriptors
from ._devices import device_at
from ._driver import ACCESS_READ_WRITE, OUT_OF_MEMORY, POSIX_FD, CudaError, c_int, c_size, c_u64, call, cuda_driver, read_number
from ._errors import IpcError
from ._files import close_fds
from ._process import locks, process_exit, this_process
from ._protocol import KIND_VIRTUAL
from ._releases import releases_of

if TYPE_CHECKING:
    from ._array import DeviceArray
    from ._connection import Connection
    from ._descriptors import Fields
    from ._devices import Device
    from ._driver import AllocationProp


class Mapping:
    """Memory of another process that is mapped here, once for all who received it."""

    def __init__(self, device: Device, base: int, byte_length: int, unmap: Callable[[], None], is_read_only: bool = False) -> None:
        self.device, self.base, self.byte_length, self._unmap, self.is_read_only = device, base, byte_length, unmap, is_read_only
        self.users = self.version = 0
        self.key: tuple[Any, ...] = ()
        # Of virtual memory: kept, so that the same memory is found when it comes again.
        self.fds: list[int] = []

    def release(self) -> None:
        """Ends one use. The last one unmaps it, which the driver may block. The work that used it must be done."""
        with locks.mappings:
            if not self.release_unless_last():
                self.users = 0
                del mappings[self.key], mapped_at[self.base]
                close_fds(self.fds)
                with self.device:
                    self._unmap()

    def release_unless_last(self) -> bool:
        """As `release`, without waiting. Returns False if this is the last use: it goes on."""
        with locks.state:
            if self.users == 1:
                return False
            self.users -= 1
            return True


# Memory of other processes that is mapped here, by what it is called there and by its address here.
mappings: dict[tuple[Any, ...], Mapping] = {}
mapped_at: dict[int, Mapping] = {}


class OwnMemory:
    """Virtual memory of this process, which any other one can map by its file descriptor."""

    def __init__(self, device: Device, byte_length: int, read_only: bool = False) -> None:
        """`read_only` makes `read_only_fd`, too: the driver exports memory only by its creator's handle."""
        self.device, self.id, self.generation = device, secrets.token_bytes(16), secrets.randbits(48)
        self.address = self.byte_length = 0
        self.fd = self.read_only_fd = -1
        # The arrays that were made of it, while they are open.
        self._arrays: weakref.WeakSet[DeviceArray] = weakref.WeakSet()
        if byte_length >= 2**63:
            # The driver would take another size, modulo 2^64.
            raise ValueError(f'{byte_length} bytes are too large for any memory')
        prop, doing = device.allocation_prop(), f'allocating {byte_length} bytes'
        releases_of(device).start()
        with device:
            if not device.granularity:
                device.granularity = read_number('cuMemGetAllocationGranularity', ctypes.byref(prop), 1, kind=c_size)
            size = -(-byte_length // device.granularity) * device.granularity
            handle = self._create(device, size, prop, doing)
            try:
                self.fd = _export_physical(handle, doing)
                if read_only:
                    self.read_only_fd = _export_physical(handle, doing)
                    # The mark of memory that is shared for reading only.
                    flags = fcntl.fcntl(self.read_only_fd, fcntl.F_GETFL)
                    fcntl.fcntl(self.read_only_fd, fcntl.F_SETFL, flags | os.O_APPEND)
                self.address = reserve(size)
                self.byte_length = size
                call('cuMemMap', self.address, size, 0, handle, 0, doing=doing)
                call('cuMemSetAccess', self.address, size, ctypes.byref(device.access(ACCESS_READ_WRITE)), 1, doing=doing)
            except BaseException:
                self._free()
                raise
            finally:
                cuda_driver().cuMemRelease(handle)
        with locks.state:
            own_memory[self.address] = self

    @staticmethod
    def _create(device: Device, size: int, prop: AllocationProp, doing: str) -> int:
        try:
            return read_number('cuMemCreate', size, ctypes.byref(prop), 0, doing=doing)
        except CudaError as error:
            if error.status != OUT_OF_MEMORY:
                raise
        # What was closed is freed in the background.
        releases_of(device).flush()
        return read_number('cuMemCreate', size, ctypes.byref(prop), 0, doing=doing)

    def add_array(self, array: DeviceArray) -> None:
        with locks.state:
            self._arrays.add(array)

    def remove_array(self, array: DeviceArray) -> None:
        with locks.state:
            self._arrays.discard(array)

    @property
    def has_array(self) -> bool:
        """Whether an array of it is open here."""
        with locks.state:
            return len(self._arrays) > 0

    def fields(self, offset: int, length: int, read_only: bool, layout: Optional[_descriptors.Layout]) -> dict[str, Any]:
        """The fields of a range of it, for other processes."""
        return {
            'kind': KIND_VIRTUAL,
            'exporter': this_process().exporter(self.device),
            'memory': self.id,
            'first_piece': 0,
            'pieces': (self.byte_length,),
            'base_byte_length': self.byte_length,
            'byte_offset': offset,
            'byte_length': length,
            'access': _descriptors.READ_ONLY if read_only else _descriptors.READ_WRITE,
            'buffer_id': 0,
            'generation': self.generation,
            'layout': layout,
        }

    def _free(self) -> None:
        self._close_fds()
        if self.address:
            cuda = cuda_driver()
            cuda.cuMemUnmap(self.address, self.byte_length)
            cuda.cuMemAddressFree(self.address, self.byte_length)
        self.address = 0

    def _close_fds(self) -> None:
        close_fds([fd for fd in (self.fd, self.read_only_fd) if fd >= 0])
        self.fd = self.read_only_fd = -1

    def __del__(self) -> None:
        """It may run anywhere, as while a connection is read."""
        if self.address == 0 or not process_exit or process_exit.has_begun:
            return
        device, address, byte_length, fds = self.device, self.address, self.byte_length, (self.fd, self.read_only_fd)

        def free() -> None:
            try:
                with device:
                    cuda_driver().cuMemUnmap(address, byte_length)
                    cuda_driver().cuMemAddressFree(address, byte_length)
            finally:
                # If the context is lost, the memory ends with the process.
                close_fds([fd for fd in fds if fd >= 0])

        releases_of(device).add(free)


# What tensors of other libraries are found by, when they are sent. Weak: only users keep memory alive.
own_memory: weakref.WeakValueDictionary[int, OwnMemory] = weakref.WeakValueDictionary()
_received_memory: dict[int, weakref.ref[ReceivedMemory]] = {}


def _export_physical(handle: int, doing: str) -> int:
    fd = read_number('cuMemExportToShareableHandle', handle, POSIX_FD, 0, doing=doing, kind=c_int)
    os.set_inheritable(fd, False)
    return fd


def reserve(byte_length: int) -> int:
    return read_number('cuMemAddressReserve', byte_length, 0, 0, 0, doing=f'reserving {byte_length} bytes')


class ReceivedMemory:
    """A range of memory of another process: one lease. It is given back when nothing refers to it."""

    def __init__(self, connection: Connection, lease: int, fields: Fields, mapping: Mapping) -> None:
        self.connection, self.lease, self.fields, self.mapping = connection, lease, fields, mapping
        self.device = mapping.device
        self.address = mapping.base + fields.byte_offset
        self.byte_length = fields.byte_length
        # The stream behind which it is given back.
        self.stream: Optional[int] = None
        self.revoked_by: Optional[str] = None
        _received_memory[id(self)] = weakref.ref(self)

    def __del__(self) -> None:
        if process_exit and not process_exit.has_begun:
            _received_memory.pop(id(self), None)
            self.connection.imports.give_back_later(self.lease, self.mapping, self.stream)


class BorrowedMemory:
    """Memory of another library of this process."""

    def __init__(self, device: Device, address: int, byte_length: int, owner: Any) -> None:
        self.device, self.address, self.byte_length, self.owner = device, address, byte_length, owner


Memory = Union[OwnMemory, ReceivedMemory, BorrowedMemory]


def check_within(begin: int, length: int, base: int, size: int) -> None:
    if begin < base or begin + length > base + size:
        raise ValueError(f'the array takes bytes {begin - base} to {begin - base + length} of an allocation that has {size}')


def address_range(address: int) -> tuple[int, int]:
    base, size = c_u64(), c_size()
    with device_at(address):
        status = cuda_driver().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), address)
    if status:
        error = CudaError('cuMemGetAddressRange_v2', status)
        raise IpcError(f'there is no device memory at {address:#x} that could be shared: {error}')
    return base.value, size.value


def received_at(base: int, begin: int, length: int) -> Optional[ReceivedMemory]:
    mapping = mapped_at.get(base)
    if mapping is None:
        return None
    for reference in list(_received_memory.values()):
        memory = reference()
        if memory is None or memory.mapping is not mapping:
            continue
        if memory.address <= begin and begin + length <= memory.address + memory.byte_length:
            return memory
    return None
