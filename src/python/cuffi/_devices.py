"""GPUs, and the streams of other libraries."""

from __future__ import annotations

import ctypes
import operator
import threading
from typing import Any, Optional

from ._driver import (
    LEGACY_STREAM,
    POSIX_FD,
    STICKY,
    AccessDesc,
    AllocationProp,
    c_int,
    c_u64,
    call,
    check_status,
    cuda_driver,
    is_emulated,
    read_number,
)
from ._errors import IpcError, NotSupportedError
from ._process import locks

# Where contexts are written that nobody reads.
_POPPED = ctypes.byref(c_u64())


class Device:
    """A GPU, and its primary context, which torch, cupy, numba and cuda.core use as well."""

    def __init__(self, ordinal: int) -> None:
        name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
        self.ordinal, self._number = ordinal, read_number('cuDeviceGet', ordinal, kind=c_int)
        call('cuDeviceGetName', name, 256, self._number)
        call('cuDeviceGetUuid_v2', ctypes.byref(uuid), self._number)
        self.name = name.value.decode('utf-8', 'replace')
        # A slice of a GPU (MIG) has its own UUID.
        self.uuid = (b'\x01' if b' MIG ' in name.value else b'\x00') + bytes(uuid)
        self._context = 0
        self.granularity = 0
        # The thread that waits for its work on behalf of those that have a limit.
        self.waiter: Optional[threading.Thread] = None

    @property
    def context(self) -> int:
        if not self._context:
            self._context = read_number('cuDevicePrimaryCtxRetain', self._number)
        return self._context

    def __enter__(self) -> Device:
        """Makes its context the current one of this thread."""
        check_status(cuda_driver().cuCtxPushCurrent_v2(self._context or self.context), 'cuCtxPushCurrent_v2')
        return self

    def __exit__(self, *_: Any) -> None:
        cuda_driver().cuCtxPopCurrent_v2(_POPPED)

    def synchronize(self) -> None:
        """Waits until all work is done. Raises CudaError."""
        with self:
            check_status(cuda_driver().cuCtxSynchronize(), 'cuCtxSynchronize')

    def access(self, flags: int) -> AccessDesc:
        return AccessDesc(1, self._number, flags)

    def allocation_prop(self) -> AllocationProp:
        return AllocationProp(1, POSIX_FD, 1, self._number, None, (ctypes.c_ubyte * 8)())


_devices: list[Device] = []


def all_devices() -> list[Device]:
    if not _devices:
        with locks.state:
            if not _devices:
                _devices.extend(map(Device, range(read_number('cuDeviceGetCount', kind=c_int))))
    return _devices


def device_by_uuid(uuid: bytes) -> Device:
    for device in all_devices():
        if device.uuid == uuid:
            return device
    seen = ', '.join(format_uuid(device.uuid) for device in all_devices())
    reason = f'this memory is on GPU {format_uuid(uuid)}, which this process does not see; it sees {seen}: '
    if uuid[0] or all(device.uuid[0] for device in all_devices()):
        raise IpcError(f'{reason}a MIG slice cannot share memory with another: run both processes on the same slice', 'mig')
    raise IpcError(f'{reason}make it visible (CUDA_VISIBLE_DEVICES)', 'device-not-visible')


def format_uuid(uuid: bytes) -> str:
    text = uuid[1:].hex()
    return f'{"MIG" if uuid[0] else "GPU"}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}'


def current_device() -> Device:
    """The device of the current context, or the first one."""
    devices, current, number = all_devices(), c_u64(), c_int()
    cuda = cuda_driver()
    is_current = cuda.cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value != 0
    if is_current and cuda.cuCtxGetDevice(ctypes.byref(number)) == 0:
        return next((device for device in devices if device._number == number.value), devices[0])
    if not devices:
        raise NotSupportedError('this process sees no GPU')
    return devices[0]


def chosen_device(device: Any) -> Device:
    """The device of an ordinal, by default that of the current context."""
    if device is None:
        return current_device()
    try:
        ordinal = operator.index(device)
    except TypeError:
        ordinal = -1
    if (ordinal < 0 and not isinstance(device, int)) or isinstance(device, bool):
        raise TypeError(f"device must be an int, the device's ordinal, not {device!r}")
    devices = all_devices()
    if not devices:
        raise NotSupportedError('this process sees no GPU')
    if not 0 <= ordinal < len(devices):
        raise ValueError(f'device must be from 0 to {len(devices) - 1}, as this process sees {len(devices)}, not {device}')
    return devices[ordinal]


def device_at(address: int) -> Device:
    ordinal, device = c_int(), current_device()
    with device:
        is_known = cuda_driver().cuPointerGetAttribute(ctypes.byref(ordinal), 9, address) == 0
    return all_devices()[ordinal.value] if is_known and ordinal.value >= 0 else device


def is_context_lost(device: Device) -> bool:
    """Whether the context of a device is lost: then nothing that is queued in it will be done."""
    with device:
        return cuda_driver().cuStreamQuery(LEGACY_STREAM) in STICKY


# Pages at address 0 are never mapped: a smaller number is not a pointer, such as a time in seconds.
_MIN_HANDLE = 4096


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of any library, by default the legacy default stream."""
    if stream is None:
        return LEGACY_STREAM
    if isinstance(stream, int):
        if isinstance(stream, bool):
            raise TypeError("stream must be a stream's handle, not a bool")
        is_default = 0 <= stream <= 2
        if not (is_default or (3 if is_emulated() else _MIN_HANDLE) <= stream < 1 << 64):
            raise ValueError(f'stream must be the handle of a stream, not {stream}: a time is given as timeout=SECONDS')
        return stream or LEGACY_STREAM
    for name in ('cuda_stream', 'ptr', 'handle'):
        found = getattr(stream, name, None)
        if found is None:
            continue
        # numba has a ctypes pointer, cuda.core an object that int() takes.
        value = getattr(found, 'value', found)
        return int(value or 0) or LEGACY_STREAM
    raise TypeError(f'stream must be an int, or have cuda_stream, ptr or handle, not {type(stream).__name__}')
