"""cuffi for Python: shares GPU memory with Node's cuffi, without copying it.

    import cuffi, torch

    parent = cuffi.parent()                  # started by spawnPython; or cuffi.connect('render')
    for array in parent:                     # what the other end sends
        with array:
            parent.send(model(torch.from_dlpack(array)))

`pip install "$(npx cuffi python)"` installs it from the npm package. It needs Linux, Python 3.9 or later and
the CUDA driver, and no package. Without a GPU, CUFFI_DRIVER=emulated selects the emulated driver. What it
speaks is described in docs/protocol.md of cuffi. The protocol's version must be the same on both sides;
otherwise both ends raise an IpcError with the code `version-mismatch`.

Order. Without `stream`, `send` waits on the host until all work of the device is done, `receive` until
the sender's work on what was sent is done, and `close` until all work of the device is done. With
`stream`, nothing waits on the host: `send` tells the other end to wait for that stream, `receive` makes
that stream wait, and `close` gives the memory back behind that stream. A stream is an int, or an object
with `cuda_stream` (torch), `ptr` (cupy) or `handle` (numba, cuda.core).

Frames, again and again, go through a `Channel`, whose slots the other end maps once. A `Timeline` orders
streams and hosts of several processes. `pinned` is host memory that processes share.

Ownership. What is sent is kept alive until the other end has closed it. What is received is closed with
`close()`, a `with` block, or the last reference, and stays mapped while a tensor made of it lives.
"""

from __future__ import annotations

from . import _platform  # First: it says what this system lacks, where other imports would fail.

# As `signal`, which makes enums of the handlers at each call: that would take longer than to send a message.
import _signal  # type: ignore[import-not-found]
import array as _array
import atexit
import asyncio
import collections
import contextlib
import contextvars
import copy
import ctypes
import datetime
import errno
import fcntl
import inspect
import json
import math
import mmap
import operator
import os
import queue
import secrets
import select
import socket
import stat
import struct
import sys
import tempfile
import termios
import threading
import time
import traceback
import weakref
from typing import Any, AsyncIterator, Callable, Coroutine, Deque, Dict, Generator, Iterator, List, Optional, Sequence, Set, Tuple, Union

from . import _descriptors, _install
from ._bytes import _SAFE, _Reader, _limit_exceeded, _pack_double, _pack_int, _unpack_int, _write_length
from ._descriptors import Fields as _Fields
from ._dtypes import (
    _BY_DLPACK,
    _DTYPES,
    _Dtype,
    _check_shape,
    _checked_extents,
    _contiguous,
    _dtype,
    _extents,
    _integers,
    _raw_dtype,
    _received_dtype,
)
from ._errors import ClosedError, CuffiError, DriverNotFoundError, IpcError, NotSupportedError, PeerGoneError, RemoteError
from ._protocol import (
    BEGUN_IGNORING_VALUES,
    BEGUN_RECEIVING,
    BEGUN_SERVING,
    BINARY_TYPES,
    CHANNEL_FLAG_AHEAD,
    CHANNEL_FLAG_TO_ONE,
    CONTROL_BEGUN,
    CONTROL_CLOSED_POOLS,
    CONTROL_CLOSING,
    CONTROL_DONE,
    CONTROL_FORWARD_REQUESTS,
    CONTROL_POINTS,
    CONTROL_RELEASED,
    CONTROL_REVOKED,
    CONTROL_TIMELINE_PAGE,
    COUNTER_COUNT,
    END_OF_WAITS,
    ERROR_CAUSE,
    ERROR_CODE,
    ERROR_MESSAGE,
    ERROR_NAME,
    ERROR_STACK,
    ERROR_TYPES,
    FRAME_CANCELLATION,
    FRAME_CONTROL,
    FRAME_FAILURE,
    FRAME_MAGIC,
    FRAME_HELLO,
    FRAME_REQUEST,
    FRAME_RESPONSE,
    FRAME_UNSERVED,
    FRAME_VALUE,
    FRAME_VERIFICATION,
    ID_BYTE_LENGTH,
    KIND_CHANNEL,
    KIND_EVENT,
    KIND_LEGACY,
    KIND_PINNED,
    KIND_POOL,
    KIND_SIGNALER,
    KIND_TIMELINE,
    KIND_VIRTUAL,
    MAX_AXES,
    MAX_BIGINT_DIGITS,
    MAX_COLLISIONS,
    MAX_COLLISIONS_PER_KEY,
    MAX_CONTROL_BYTE_LENGTH,
    MAX_CONTROL_ENTRIES,
    MAX_META_BYTE_LENGTH,
    MAX_NAME_LENGTH,
    MAX_OBJECT_BYTE_LENGTH,
    MAX_PACKAGE_NAME_BYTE_LENGTH,
    MAX_PENDING_REQUESTS,
    MAX_PENDING_REQUEST_BYTE_LENGTH,
    MAX_QUEUED_BYTE_LENGTH,
    MAX_QUEUED_FDS,
    MAX_QUEUED_VALUES,
    MAX_RELEASE_POINTS,
    MAX_SLOTS,
    MAX_STEPS_PER_KEY,
    MAX_TABLE_BYTE_LENGTH,
    MAX_UNCOUNTED_KEYS,
    MAX_VALUE_BINARIES,
    MAX_VALUE_BYTE_LENGTH,
    MAX_VALUE_COLLECTIONS,
    MAX_VALUE_DEPTH,
    MAX_VALUE_OBJECTS,
    MAX_VALUE_PARTS,
    MAX_VERIFICATION_BYTE_LENGTH,
    MAX_VERSION,
    MIN_VERSION,
    OUTCOME_ABANDONED,
    OUTCOME_CLOSED,
    PACKET_BYTE_LENGTH,
    PACKET_FDS,
    PAGE_BYTE_LENGTH,
    PARENT_VARIABLE,
    READINESS_WAIT_MS,
    RECORD_BYTE_LENGTH,
    RECORD_AT_DTYPE,
    RECORD_FLAG_LAYOUT,
    RECORD_FLAG_SKIPPED,
    RECORD_AT_META,
    RECORD_AT_NDIM,
    RECORD_AT_SHAPE,
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
    SLOT_ALIGNMENT,
    TAG_ARRAY,
    TAG_BIGINT,
    TAG_BIGINT64,
    TAG_BINARY,
    TAG_DATE,
    TAG_ERROR,
    TAG_FALSE,
    TAG_FLOAT64,
    TAG_GPU_OBJECT,
    TAG_HOLE,
    TAG_INT32,
    TAG_LATIN1,
    TAG_MAP,
    TAG_NULL,
    TAG_OBJECT,
    TAG_SET,
    TAG_TRUE,
    TAG_UNDEFINED,
    TAG_UTF16,
    TIMELINE_LAST,
    TIMELINE_OUTCOME,
    TIMELINE_PID,
    TIMELINE_VALUE,
)

__all__ = [
    'BigInt', 'Channel', 'ChannelConsumer', 'ClosedError', 'ConsumerSlot', 'CudaError', 'CuffiError', 'DriverNotFoundError', 'Event', 'GpuArray',
    'GpuBuffer', 'GpuPool', 'IpcError', 'Listener', 'Map', 'NotSupportedError', 'Peer', 'PeerGoneError', 'PinnedBuffer', 'ProducerSlot',
    'RemoteError', 'Timeline', 'TimelineSignaler', 'connect', 'empty', 'leases', 'listen', 'parent', 'pinned',
]  # fmt: skip

# Of the npm package that this file comes from.
__version__ = '0.2.0'

# ---- The driver -------------------------------------------------------------------------------------------


class CudaError(CuffiError):
    """A call of the driver failed. `status` is its number, `code` its name, `hint` what can be done, if that is known."""

    def __init__(self, call: str, status: int, doing: str = '', *, driver: Optional['_Driver'] = None) -> None:
        """:param driver: which was asked, if it could not be initialized"""
        self.status, self.call = status, call
        self.code, description = _describe_status(status, driver or _driver)
        self.hint = _HINTS.get(status)
        while_doing = f' while {doing}' if doing else ''
        after = f'\n{self.hint}' if self.hint else ''
        super().__init__(f'{call} failed{while_doing}: {description} ({self.code}, {status}){after}')

    @property
    def sticky(self) -> bool:
        """Whether the context is lost: every later call fails until the process ends."""
        return self.status in _STICKY


# As src/hints.ts of cuffi in Node.
_HINTS = {
    34: 'This libcuda is the stub of the CUDA toolkit: remove its folder from the library path.',
    46: 'Another process has the device for itself (compute mode exclusive), or it is being reset: nvidia-smi shows who '
        'uses it, and nvidia-smi -c DEFAULT lets several use it.',
    100: 'No GPU is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES, permission for /dev/nvidia*, and that the container '
         'has access to GPUs.',
    304: 'The driver could not open or map a device file. Likely causes: no permission for /dev/nvidia*, a container without '
         'the devices (--gpus all) or without /dev/nvidia-uvm (nvidia-modprobe -u), a sandbox, or a limit such as ulimit -v.',
    802: 'The system is not ready: the fabric manager or a GPU reset may be pending.',
    803: 'The kernel driver and libcuda differ in version: reload the driver, or reboot.',
    804: 'This libcuda is of the forward compatibility package (cuda-compat), which this GPU does not support: remove its '
         'folder from LD_LIBRARY_PATH, or update the driver of the host.',
    999: 'Likely causes: the module nvidia-uvm is not loaded or stopped after the machine slept (nvidia-modprobe -u, or '
         'reload it), or the GPU has failed. Check dmesg for NVRM: Xid messages.',
}
_STICKY = frozenset((214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719))


# As ffi/driver.ts: the loader's own, then those of WSL, containers and distributions.
_LIBRARIES = (
    'libcuda.so.1',
    '/usr/lib/wsl/lib/libcuda.so.1',
    '/usr/local/nvidia/lib64/libcuda.so.1',
    '/usr/local/nvidia/lib/libcuda.so.1',
    '/usr/lib/x86_64-linux-gnu/libcuda.so.1',
    '/usr/lib/aarch64-linux-gnu/libcuda.so.1',
    '/usr/lib64/libcuda.so.1',
    '/run/opengl-driver/lib/libcuda.so.1',
    '/usr/local/cuda/compat/libcuda.so.1',
)

_u32, _u64, _int, _size, _out = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p


class _Handle64(ctypes.Structure):
    """The driver's 64 bytes for memory or an event, passed by value."""

    _fields_ = [('reserved', ctypes.c_ubyte * 64)]


class _AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [('type', _int), ('handle_types', _int), ('location_type', _int), ('location_id', _int),
                ('win32', ctypes.c_void_p), ('flags', ctypes.c_ubyte * 8)]  # fmt: skip


class _AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [('location_type', _int), ('location_id', _int), ('flags', _int)]


# https://docs.nvidia.com/cuda/cuda-driver-api/
_FUNCTIONS: Dict[str, Tuple[Any, ...]] = {
    'cuInit': (_u32,),
    'cuGetErrorName': (_int, _out),
    'cuGetErrorString': (_int, _out),
    'cuDeviceGetCount': (_out,),
    'cuDeviceGet': (_out, _int),
    'cuDeviceGetName': (_out, _int, _int),
    'cuDeviceGetUuid_v2': (_out, _int),
    'cuDevicePrimaryCtxRetain': (_out, _int),
    'cuCtxGetCurrent': (_out,),
    'cuCtxPushCurrent_v2': (_u64,),
    'cuCtxPopCurrent_v2': (_out,),
    'cuCtxGetDevice': (_out,),
    'cuCtxSynchronize': (),
    'cuStreamQuery': (_u64,),
    'cuStreamGetFlags': (_u64, _out),
    'cuStreamWaitEvent': (_u64, _u64, _u32),
    'cuStreamWaitValue64_v2': (_u64, _u64, _u64, _u32),
    'cuStreamWriteValue64_v2': (_u64, _u64, _u64, _u32),
    'cuEventCreate': (_out, _u32),
    'cuEventDestroy_v2': (_u64,),
    'cuEventQuery': (_u64,),
    'cuEventRecord': (_u64, _u64),
    'cuIpcGetEventHandle': (_out, _u64),
    'cuIpcOpenEventHandle': (_out, _Handle64),
    'cuIpcGetMemHandle': (_out, _u64),
    'cuIpcOpenMemHandle_v2': (_out, _Handle64, _u32),
    'cuIpcCloseMemHandle': (_u64,),
    'cuMemGetAddressRange_v2': (_out, _out, _u64),
    'cuPointerGetAttribute': (_out, _int, _u64),
    'cuMemHostRegister_v2': (_u64, _size, _u32),
    'cuMemHostGetDevicePointer_v2': (_out, _u64, _u32),
    'cuMemHostUnregister': (_u64,),
    'cuMemcpyAsync': (_u64, _u64, _size, _u64),
    'cuMemcpyDtoH_v2': (_out, _u64, _size),
    'cuMemcpyHtoD_v2': (_u64, _out, _size),
    'cuMemGetAllocationGranularity': (_out, _out, _int),
    'cuMemAddressReserve': (_out, _size, _size, _u64, _u64),
    'cuMemAddressFree': (_u64, _size),
    'cuMemCreate': (_out, _size, _out, _u64),
    'cuMemRelease': (_u64,),
    'cuMemMap': (_u64, _size, _size, _u64, _u64),
    'cuMemUnmap': (_u64, _size),
    'cuMemSetAccess': (_u64, _size, _out, _size),
    'cuMemExportToShareableHandle': (_out, _u64, _int, _u64),
    'cuMemImportFromShareableHandle': (_out, _u64, _int),
    'cuMemPoolImportFromShareableHandle': (_out, _u64, _int, _u64),
    'cuMemPoolImportPointer': (_out, _u64, _out),
    'cuMemPoolSetAccess': (_u64, _out, _size),
    'cuMemPoolDestroy': (_u64,),
    'cuMemFree_v2': (_u64,),
}

_POSIX_FD = 1
_READ, _READ_WRITE = 1, 3
_OUT_OF_MEMORY, _NOT_READY = 2, 600
_LEGACY_STREAM = 1
_WAIT_GEQ = 0
_ATTRIBUTE_BUFFER_ID, _ATTRIBUTE_IPC_CAPABLE, _ATTRIBUTE_RANGE_SIZE, _ATTRIBUTE_POOL = 7, 10, 12, 17


class _Driver:
    """libcuda. Opened when it is needed first."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, argtypes in _FUNCTIONS.items():
            function = getattr(library, name, None)
            if function is not None and isinstance(library, ctypes.CDLL):
                function.argtypes, function.restype = argtypes, _int
            setattr(self, name, function or self._missing(name))

    @staticmethod
    def _missing(name: str) -> Callable[..., int]:
        def missing(*_: Any) -> int:
            raise NotSupportedError(f'this CUDA driver has no {name}: update it')

        return missing

    def __getattr__(self, name: str) -> Callable[..., int]:  # Only for type checkers: all are set above.
        raise AttributeError(name)


_driver: Optional[_Driver] = None
_devices: List['_Device'] = []
_lock = threading.RLock()
# Held while memory of other processes is mapped or unmapped, which the driver may block. Taken before `_lock`.
_mapping_lock = threading.RLock()


def _cuda() -> _Driver:
    global _driver
    if _driver is None:
        with _lock:
            if _driver is None:
                driver = _Driver(_open_library())
                status = driver.cuInit(0)
                if status:
                    raise CudaError('cuInit', status, 'initialising the CUDA driver', driver=driver)
                _driver = driver
    return _driver


# As ffi/driver.ts.
_NO_DRIVER = """\
Install the NVIDIA driver. A container needs GPUs (--gpus all) and the driver in it
(NVIDIA_DRIVER_CAPABILITIES with compute). WSL has the Windows driver in /usr/lib/wsl/lib.
CUFFI_DRIVER can be the path of a libcuda. Without a GPU, CUFFI_DRIVER=emulated selects the
emulated driver."""


def _open_library() -> Any:
    chosen = os.environ.get('CUFFI_DRIVER') or 'cuda'
    if chosen == 'emulated':
        from . import _emulated  # Loaded only where it is chosen.

        return _emulated.Library()
    if chosen != 'cuda' and '/' not in chosen:
        raise DriverNotFoundError(f'CUFFI_DRIVER must be cuda, emulated, or the path of a libcuda, not {chosen!r}')
    tried = []
    for path in _LIBRARIES if chosen == 'cuda' else (chosen,):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            # The loader's words begin with the path, most times.
            tried.append(f'  {path}: {str(error).replace(f"{path}: ", "", 1)}')
    if chosen != 'cuda':
        raise DriverNotFoundError('\n'.join((
            'the chosen library is not a CUDA driver:', *tried, 'CUFFI_DRIVER must be cuda, emulated, or the path of a libcuda.')))
    raise DriverNotFoundError('\n'.join(('no CUDA driver (libcuda.so.1) was found. Tried:', *tried, _NO_DRIVER)))


def _describe_status(status: int, driver: Optional[_Driver]) -> Tuple[str, str]:
    texts = []
    for name in ('cuGetErrorName', 'cuGetErrorString'):
        text = ctypes.c_char_p()
        try:
            known = driver is not None and getattr(driver, name)(status, ctypes.byref(text)) == 0
        except NotSupportedError:
            known = False  # What failed is told, not what is missing.
        texts.append((text.value or b'').decode() if known else '')
    return texts[0] or f'CUDA_ERROR_{status}', texts[1] or 'unknown error'


def _check(status: int, call: str, doing: str = '') -> None:
    if status:
        raise CudaError(call, status, doing)


def _call(name: str, *arguments: Any, doing: str = '') -> None:
    """Calls a function of the driver. Raises CudaError."""
    _check(getattr(_cuda(), name)(*arguments), name, doing)


def _read(name: str, *arguments: Any, doing: str = '', kind: Any = _u64) -> int:
    """Calls a function that stores a number where its first argument points to."""
    found = kind()
    _call(name, ctypes.byref(found), *arguments, doing=doing)
    return found.value


def _has_pointers() -> bool:
    """Whether handles are pointers: those of an emulated driver may be any number."""
    return isinstance(_cuda()._library, ctypes.CDLL)


class _Device:
    """A GPU, and its primary context, which torch, cupy, numba and cuda.core use as well."""

    def __init__(self, ordinal: int) -> None:
        name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
        self.ordinal, self._number = ordinal, _read('cuDeviceGet', ordinal, kind=_int)
        _call('cuDeviceGetName', name, 256, self._number)
        _call('cuDeviceGetUuid_v2', ctypes.byref(uuid), self._number)
        self.name = name.value.decode('utf-8', 'replace')
        # A slice of a GPU (MIG) has its own UUID.
        self.uuid = (b'\x01' if b' MIG ' in name.value else b'\x00') + bytes(uuid)
        self._context = 0
        self.granularity = 0
        self.releases = _Releases(self)
        self._waiter: Optional[threading.Thread] = None

    @property
    def context(self) -> int:
        if not self._context:
            self._context = _read('cuDevicePrimaryCtxRetain', self._number)
        return self._context

    def __enter__(self) -> '_Device':
        """Makes its context the current one of this thread."""
        _call('cuCtxPushCurrent_v2', self.context)
        return self

    def __exit__(self, *_: Any) -> None:
        _cuda().cuCtxPopCurrent_v2(ctypes.byref(_u64()))

    def synchronize(self) -> None:
        with self:
            _call('cuCtxSynchronize')

    def wait(self, deadline: '_Deadline') -> None:
        """Waits until all work is done. Raises TimeoutError, CudaError."""
        if not deadline.is_limited and not _waiting_streams():
            self.synchronize()
            return
        # The driver knows no limit, and lets no signal end its waits. What was given up goes on: one thread for all.
        errors: List[Exception] = []

        def synchronize() -> None:
            try:
                self.synchronize()
            except CuffiError as error:
                errors.append(error)

        own: Optional[threading.Thread] = None
        while own is None or own.is_alive():
            with _lock:
                if own is None and not (self._waiter and self._waiter.is_alive()):
                    own = self._waiter = threading.Thread(target=synchronize, name='cuffi waits', daemon=True)
                    own.start()
                waiter = self._waiter
            if waiter:
                waiter.join(min(deadline.left('the work of the device'), 0.05))
            _signals.check()
        if errors:
            raise errors[0]

    def access(self, flags: int) -> _AccessDesc:
        return _AccessDesc(1, self._number, flags)

    def allocation_prop(self) -> _AllocationProp:
        return _AllocationProp(1, _POSIX_FD, 1, self._number, None, (ctypes.c_ubyte * 8)())


def _all_devices() -> List[_Device]:
    if not _devices:
        with _lock:
            if not _devices:
                _devices.extend(map(_Device, range(_read('cuDeviceGetCount', kind=_int))))
    return _devices


def _device_of(uuid: bytes) -> _Device:
    for device in _all_devices():
        if device.uuid == uuid:
            return device
    seen = ', '.join(_format_uuid(device.uuid) for device in _all_devices())
    raise IpcError(
        f'this memory is of GPU {_format_uuid(uuid)}, which this process does not see; it sees {seen}: '
        'make it visible (CUDA_VISIBLE_DEVICES)',
        'device-not-visible',
    )


def _format_uuid(uuid: bytes) -> str:
    text = uuid[1:].hex()
    return f'{"MIG" if uuid[0] else "GPU"}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}'


def _current_device() -> _Device:
    """The device of the current context, or the first one."""
    devices, current, number = _all_devices(), _u64(), _int()
    if _cuda().cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value:
        if _cuda().cuCtxGetDevice(ctypes.byref(number)) == 0:
            return next((device for device in devices if device._number == number.value), devices[0])
    if not devices:
        raise NotSupportedError('this process sees no GPU')
    return devices[0]


def _chosen_device(device: Any) -> _Device:
    """The device of an ordinal, by default that of the current context."""
    if device is None:
        return _current_device()
    try:
        ordinal = operator.index(device)
    except TypeError:
        ordinal = -1
    if ordinal < 0 and not isinstance(device, int) or isinstance(device, bool):
        raise TypeError(f"device must be an int, the device's ordinal, not {device!r}")
    devices = _all_devices()
    if not devices:
        raise NotSupportedError('this process sees no GPU')
    if not 0 <= ordinal < len(devices):
        raise ValueError(f'device must be from 0 to {len(devices) - 1}, as this process sees {len(devices)}, not {device}')
    return devices[ordinal]


# Pages at address 0 are never mapped: what is below is no pointer, as a time in seconds.
_MIN_HANDLE = 4096


def _stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of any library, by default the legacy default stream."""
    if stream is None:
        return _LEGACY_STREAM
    if isinstance(stream, int):
        if isinstance(stream, bool):
            raise TypeError("stream must be a stream's handle, not a bool")
        is_default = 0 <= stream <= 2
        if not (is_default or (_MIN_HANDLE if _has_pointers() else 3) <= stream < 1 << 64):
            raise ValueError(f'stream must be the handle of a stream, not {stream}: a time is given as timeout=SECONDS')
        return stream or _LEGACY_STREAM
    for name in ('cuda_stream', 'ptr', 'handle'):
        found = getattr(stream, name, None)
        if found is None:
            continue
        # numba has a ctypes pointer, cuda.core an object that int() takes.
        value = getattr(found, 'value', found)
        return int(value or 0) or _LEGACY_STREAM
    raise TypeError(f'stream must be an int, or have cuda_stream, ptr or handle, not {type(stream).__name__}')


# ---- DLPack -----------------------------------------------------------------------------------------------
# https://dmlc.github.io/dlpack/latest/c_api.html


class _DLTensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('device_type', ctypes.c_int32), ('device_id', ctypes.c_int32), ('ndim', ctypes.c_int32),
                ('code', ctypes.c_uint8), ('bits', ctypes.c_uint8), ('lanes', ctypes.c_uint16),
                ('shape', ctypes.POINTER(ctypes.c_int64)), ('strides', ctypes.POINTER(ctypes.c_int64)),
                ('byte_offset', ctypes.c_uint64)]  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManaged(ctypes.Structure):
    """DLManagedTensor, of versions before 1.0."""

    _fields_ = [('tensor', _DLTensor), ('context', ctypes.c_void_p), ('deleter', _Deleter)]


class _DLManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('context', ctypes.c_void_p), ('deleter', _Deleter),
                ('flags', ctypes.c_uint64), ('tensor', _DLTensor)]  # fmt: skip


_CUDA_DEVICE = 2
_READ_ONLY_FLAG = 1
_CapsuleDestructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _python_function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_new = _python_function('PyCapsule_New', ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor)
_capsule_is_valid = _python_function('PyCapsule_IsValid', _int, ctypes.c_void_p, ctypes.c_char_p)
_capsule_pointer = _python_function('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_pointer_of_dying_capsule = _python_function('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)

# Does nothing, but raises an error that is pending, as all functions of `pythonapi` do.
_raise_pending = _python_function('Py_IsInitialized', _int)

# What tensors of other libraries keep: by the address of the structure that they were given.
_given: Dict[int, Tuple[Any, ...]] = {}


# Tensors may end after the names of this module: both functions refer to none. They may also end while an error is pending,
# as temporary ones of an expression that fails. No function of Python can give that back to C: ctypes prints what is raised here.
@_Deleter
def _delete_given(address: int, given: Dict[int, Tuple[Any, ...]] = _given, raise_pending: Any = _raise_pending) -> None:
    try:
        raise_pending()
    finally:
        given.pop(address, None)


@_CapsuleDestructor
def _destroy_capsule(capsule: int, given: Dict[int, Tuple[Any, ...]] = _given, is_valid: Any = _capsule_is_valid,
                     get: Any = _pointer_of_dying_capsule, raise_pending: Any = _raise_pending) -> None:  # fmt: skip
    """Frees what nobody has taken. A consumer renames the capsule."""
    try:
        # Mostly `_Offers` prevents that there is one.
        raise_pending()
    finally:
        for name in (b'dltensor', b'dltensor_versioned'):
            if is_valid(capsule, name):
                given.pop(get(capsule, name) or 0, None)


for _callback in (_delete_given, _destroy_capsule):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def _reference_counts(capsules: Sequence[Any]) -> List[int]:
    return [sys.getrefcount(capsule) for capsule in capsules]


_HELD_BY_LIST_ONLY = _reference_counts([object()])[0]


class _Offers:
    """The capsules that an array has handed out, until nobody else has them.

    A consumer that refuses a tensor drops its capsule with its error pending, which no code of Python may run with. So it must
    not drop the last reference.
    """

    __slots__ = ('_capsules',)

    def __init__(self) -> None:
        self._capsules: List[Any] = []

    def add(self, capsule: Any) -> None:
        kept = self._capsules
        self._capsules = [one for one, count in zip(kept, _reference_counts(kept)) if count > _HELD_BY_LIST_ONLY]
        self._capsules.append(capsule)

    def __del__(self) -> None:
        # Here: Python puts a pending error aside while it calls this, but not while it deletes the list of an object.
        self._capsules = []


def _strides_in_items(array: 'GpuArray') -> List[int]:
    itemsize, is_empty = array.itemsize, array.size == 0
    strides = []
    for length, stride in zip(array.shape, array.strides):
        is_used = length > 1 and not is_empty
        if is_used and stride % itemsize:
            raise BufferError(f'DLPack has no strides that are not multiples of the {itemsize} bytes of an item: copy the array')
        if is_used and stride < 0:
            raise BufferError(
                f'the array has negative strides, {list(array.strides)}, and libraries end the process when they get such by DLPack: '
                'use __cuda_array_interface__, as cupy.asarray(array) does, or copy the array')
        # Any stride will do for one index: libraries check it all the same.
        strides.append(1 if not is_used and (stride % itemsize or stride < 0) else stride // itemsize)
    return strides


def _no_deleter() -> Any:
    """A function of C without effect: nothing of Python may be called once the interpreter has ended."""
    return ctypes.cast(_libc.getpid, _Deleter)


def _make_capsule(array: 'GpuArray', is_versioned: bool) -> Any:
    ndim, dtype = len(array.shape), array._dtype
    lanes = 1 if dtype.typestr[1:2] != 'V' else dtype.itemsize
    if lanes > 0xFFFF:
        raise BufferError(f'DLPack has no type for {dtype.name}')
    if array.read_only and not is_versioned:
        raise BufferError(
            'the array is read-only, and DLPack before 1.0 cannot say so: update the library, so that it asks with '
            'max_version=(1, 0), or copy the array')
    memory = array._held()
    shape = (ctypes.c_int64 * max(ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(ndim, 1))(*_strides_in_items(array))
    managed = (_DLManagedVersioned if is_versioned else _DLManaged)()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = array.ptr if array.size else None, _CUDA_DEVICE, array._device.ordinal
    tensor.ndim, tensor.code, tensor.lanes = ndim, dtype.code, lanes
    tensor.bits = dtype.itemsize * 8 if lanes == 1 else 8
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete_given if _is_exiting is False else _no_deleter()
    if is_versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY_FLAG if array.read_only else 0
    address = ctypes.addressof(managed)
    _given[address] = (managed, shape, strides, memory)
    name = b'dltensor_versioned' if is_versioned else b'dltensor'
    capsule = _capsule_new(address, name, _destroy_capsule)
    offers = array._offers
    if offers is None:
        offers = array._offers = _Offers()
    offers.add(capsule)
    return capsule


def _read_capsule(capsule: Any) -> Tuple[_DLTensor, bool]:
    """The tensor of a capsule, which stays the capsule's, and whether it is read-only."""
    if _capsule_is_valid(id(capsule), b'dltensor_versioned'):
        versioned = _DLManagedVersioned.from_address(_capsule_pointer(capsule, b'dltensor_versioned'))
        if versioned.major != 1:
            raise NotSupportedError(f'DLPack {versioned.major}.{versioned.minor} is not known here')
        return versioned.tensor, bool(versioned.flags & _READ_ONLY_FLAG)
    return _DLManaged.from_address(_capsule_pointer(capsule, b'dltensor')).tensor, False


# ---- Memory -----------------------------------------------------------------------------------------------


class _OwnMemory:
    """Virtual memory of this process, which any other one can map by its file descriptor."""

    def __init__(self, device: _Device, byte_length: int, read_only: bool = False) -> None:
        """`read_only` makes `read_only_fd`, too: the driver exports memory only by its creator's handle."""
        self.device, self.id, self.generation = device, secrets.token_bytes(16), secrets.randbits(48)
        self.address = self.byte_length = 0
        self.fd = self.read_only_fd = -1
        if byte_length >= 2**63:
            # The driver would take another size, modulo 2^64.
            raise ValueError(f'{byte_length} bytes are too large for any memory')
        prop, doing = device.allocation_prop(), f'allocating {byte_length} bytes'
        device.releases.start()
        with device:
            if not device.granularity:
                device.granularity = _read('cuMemGetAllocationGranularity', ctypes.byref(prop), 1, kind=_size)
            size = -(-byte_length // device.granularity) * device.granularity
            handle = self._create(device, size, prop, doing)
            try:
                self.fd = _export_physical(handle, doing)
                if read_only:
                    self.read_only_fd = _export_physical(handle, doing)
                    # The mark of memory that is shared for reading only.
                    flags = fcntl.fcntl(self.read_only_fd, fcntl.F_GETFL)
                    fcntl.fcntl(self.read_only_fd, fcntl.F_SETFL, flags | os.O_APPEND)
                self.address = _reserve(size)
                self.byte_length = size
                _call('cuMemMap', self.address, size, 0, handle, 0, doing=doing)
                _call('cuMemSetAccess', self.address, size, ctypes.byref(device.access(_READ_WRITE)), 1, doing=doing)
            except BaseException:
                self._free()
                raise
            finally:
                _cuda().cuMemRelease(handle)
        with _lock:
            _own_memory[self.address] = self

    @staticmethod
    def _create(device: _Device, size: int, prop: _AllocationProp, doing: str) -> int:
        try:
            return _read('cuMemCreate', size, ctypes.byref(prop), 0, doing=doing)
        except CudaError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
        # What was closed is freed in the background.
        device.releases.flush()
        return _read('cuMemCreate', size, ctypes.byref(prop), 0, doing=doing)

    def fields(self, offset: int, length: int, read_only: bool, array: Optional['_Described']) -> Dict[str, Any]:
        """The fields of a range of it, for other processes."""
        return {
            'kind': KIND_VIRTUAL,
            'exporter': _self().exporter(self.device),
            'memory': self.id,
            'first_piece': 0,
            'pieces': (self.byte_length,),
            'base_byte_length': self.byte_length,
            'byte_offset': offset,
            'byte_length': length,
            'access': _descriptors.READ_ONLY if read_only else _descriptors.READ_WRITE,
            'buffer_id': 0,
            'generation': self.generation,
            'layout': _layout_of(array),
        }

    def _free(self) -> None:
        self._close_fds()
        if self.address:
            cuda = _cuda()
            cuda.cuMemUnmap(self.address, self.byte_length)
            cuda.cuMemAddressFree(self.address, self.byte_length)
        self.address = 0

    def _close_fds(self) -> None:
        _close_fds([fd for fd in (self.fd, self.read_only_fd) if fd >= 0])
        self.fd = self.read_only_fd = -1

    def __del__(self) -> None:
        """It may run anywhere, as while a connection is read."""
        if self.address == 0 or _is_exiting is not False:
            return
        device, address, byte_length, fds = self.device, self.address, self.byte_length, (self.fd, self.read_only_fd)

        def free() -> None:
            try:
                with device:
                    _cuda().cuMemUnmap(address, byte_length)
                    _cuda().cuMemAddressFree(address, byte_length)
            finally:
                # If the context is lost, the memory ends with the process.
                _close_fds([fd for fd in fds if fd >= 0])

        device.releases.add(free)


# What tensors of other libraries are found by, when they are sent. Weak: only users keep memory alive.
_own_memory: 'weakref.WeakValueDictionary[int, _OwnMemory]' = weakref.WeakValueDictionary()
_received_memory: 'weakref.WeakSet[_ReceivedMemory]' = weakref.WeakSet()
_is_exiting = False


def _export_physical(handle: int, doing: str) -> int:
    fd = _read('cuMemExportToShareableHandle', handle, _POSIX_FD, 0, doing=doing, kind=_int)
    os.set_inheritable(fd, False)
    return fd


def _reserve(byte_length: int) -> int:
    return _read('cuMemAddressReserve', byte_length, 0, 0, 0, doing=f'reserving {byte_length} bytes')


class _Mapping:
    """Memory of another process that is mapped here, once for all who received it."""

    def __init__(self, device: _Device, base: int, byte_length: int, unmap: Callable[[], None], is_read_only: bool = False) -> None:
        self.device, self.base, self.byte_length, self._unmap, self.is_read_only = device, base, byte_length, unmap, is_read_only
        self.users = self.version = 0
        self.key: Tuple[Any, ...] = ()
        # Of virtual memory: kept, so that the same memory is found when it comes again.
        self.fds: List[int] = []

    def release(self) -> None:
        """Ends one use. The last one unmaps it, which the driver may block. The work that used it must be done."""
        with _mapping_lock:
            if not self.release_unless_last():
                self.users = 0
                del _mappings[self.key], _mapped_at[self.base]
                _close_fds(self.fds)
                with self.device:
                    self._unmap()

    def release_unless_last(self) -> bool:
        """As `release`, without waiting. Returns False if this is the last use: it goes on."""
        with _lock:
            if self.users == 1:
                return False
            self.users -= 1
            return True


class _ReceivedMemory:
    """A range of memory of another process: one lease. It is given back when nothing refers to it."""

    def __init__(self, connection: '_Connection', lease: int, fields: _Fields, mapping: _Mapping) -> None:
        self.connection, self.lease, self.fields, self.mapping = connection, lease, fields, mapping
        self.device = mapping.device
        self.address = mapping.base + fields.byte_offset
        self.byte_length = fields.byte_length
        # The stream behind which it is given back.
        self.stream: Optional[int] = None
        self.revoked_by: Optional[str] = None
        with _lock:
            _received_memory.add(self)

    def __del__(self) -> None:
        if _is_exiting is False:
            self.connection.give_back_later(self.lease, self.mapping, self.stream)


class _BorrowedMemory:
    """Memory of another library of this process."""

    def __init__(self, device: _Device, address: int, byte_length: int, owner: Any) -> None:
        self.device, self.address, self.byte_length, self.owner = device, address, byte_length, owner


_Memory = Union[_OwnMemory, _ReceivedMemory, _BorrowedMemory]


class _Owner:
    """What owns something, which a copy would free or release as well."""

    __slots__ = ()
    _instead = 'refer to it'

    def __reduce_ex__(self, _: Any) -> Any:
        # All of copy, deepcopy and pickle come here.
        raise TypeError(f'this {type(self).__name__} can neither be copied nor pickled, as a copy would free what it uses: {self._instead}')


class _Context(_Owner):
    """What a `with` block closes."""

    _why_closed = 'close() was called'

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.closed:  # type: ignore[attr-defined]
            self._why_closed = 'its with block ended'
        self.close()  # type: ignore[attr-defined]

    def _closed_error(self) -> ClosedError:
        return ClosedError(f'this {type(self).__name__} is closed: {self._why_closed}')


class GpuArray(_Context):
    """An array in the memory of a GPU: made by `empty`, or received.

    torch, cupy, numba, cuda.core and jax take it as it is: `torch.from_dlpack(array)`,
    `cupy.asarray(array)`, `numba.cuda.as_cuda_array(array)`, `jax.dlpack.from_dlpack(array)`. Their
    tensors share its memory, and keep it. torch refuses the `__cuda_array_interface__` of read-only
    arrays: use `torch.from_dlpack`. torch does not refuse to write into such a tensor, but the GPU
    does: the kernel fails with 700, and the context is lost.
    """

    _instead = ('refer to it, send it with peer.send(), or copy its items: copy_to_host(), or clone() and copy() of torch and cupy. '
                'dataclasses.asdict() makes deep copies: use dataclasses.replace() or vars()')  # fmt: skip

    def __init__(self, memory: _Memory, address: int, shape: Tuple[int, ...], dtype: _Dtype,
                 strides: Tuple[int, ...], read_only: bool, stream: Optional[int] = None) -> None:  # fmt: skip
        self._memory: Optional[_Memory] = memory
        self._device = memory.device
        self._address, self._shape, self._dtype, self._strides = address, shape, dtype, strides
        self._read_only, self._stream = read_only, stream
        # What a consumer of the __cuda_array_interface__ keeps by keeping this object.
        self._exposed: Optional[_Memory] = None
        self._offers: Optional[_Offers] = None

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> str:
        """NumPy's name, such as float32; `bfloat16`, `float8_e4m3fn` and `float8_e5m2`; raw bytes are `V12`."""
        return self._dtype.name

    @property
    def itemsize(self) -> int:
        return self._dtype.itemsize

    @property
    def strides(self) -> Tuple[int, ...]:
        """In bytes."""
        return self._strides

    @property
    def size(self) -> int:
        """The number of items."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all items."""
        return self.size * self.itemsize

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def device(self) -> int:
        """The ordinal of the device."""
        return self._device.ordinal

    @property
    def closed(self) -> bool:
        return self._memory is None

    @property
    def ptr(self) -> int:
        """The address of item [0, 0, ...]. Raises ClosedError."""
        self._held()
        return self._address

    def _held(self) -> _Memory:
        memory = self._memory
        if memory is None:
            raise self._closed_error()
        if isinstance(memory, _ReceivedMemory) and memory.revoked_by:
            raise ClosedError(f'this {type(self).__name__} is closed: {memory.revoked_by} has revoked it')
        return memory

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """Version 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html"""
        if not self._dtype.typestr:
            raise AttributeError(f'{self.dtype} has no typestr: use DLPack, such as torch.from_dlpack(array)')
        self._exposed = self._held()
        is_contiguous = self._strides == _contiguous(self._shape, self.itemsize)
        return {
            'shape': self._shape,
            'typestr': self._dtype.typestr,
            'data': (self._address if self.size else 0, self._read_only),
            'strides': None if is_contiguous else self._strides,
            'version': 3,
            'stream': self._stream,
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _CUDA_DEVICE, self._device.ordinal

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:  # fmt: skip
        """https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html"""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f'the array is on device {self.__dlpack_device__()}, not {dl_device}')
        if copy:
            raise BufferError('cuffi does not copy: copy the tensor')
        if stream == 0:
            raise ValueError('stream 0 is ambiguous: 1 is the legacy default stream, 2 the one of the thread')
        self._held()
        if stream != -1 and self._stream is not None:
            self._let_wait(_LEGACY_STREAM if stream is None else int(stream))
        return _make_capsule(self, max_version is not None and tuple(max_version) >= (1, 0))

    def _let_wait(self, stream: int) -> None:
        """Makes a stream wait for the one that this array is ordered by."""
        own = self._stream
        if own is None or own == stream:
            return
        event = _event_behind(_stream_of(self._device, own))
        with self._device:
            _call('cuStreamWaitEvent', stream, event.value, 0)
        if _is_behind_wait(self._device, own):
            with _waits_lock:
                _stream_of(self._device, stream).add_event(event)

    def copy_to_host(self) -> bytes:
        """Returns the bytes of all items, of a contiguous array. Waits for the work of the device."""
        self._assert_contiguous()
        out = ctypes.create_string_buffer(max(self.nbytes, 1))
        # Another thread may close this array meanwhile.
        memory = self._held()
        if self.nbytes:
            with memory.device:
                _call('cuCtxSynchronize')
                _call('cuMemcpyDtoH_v2', out, self._address, self.nbytes)
        return out.raw[: self.nbytes]

    def copy_from_host(self, data: Any) -> None:
        """Writes all items of a contiguous array: from bytes, or from an array of the same type in the memory of the host.

        Items are taken in the order of their indices, whatever the layout of `data`. Bits of 16-bit floats may be uint16.
        """
        self._assert_contiguous()
        if self._read_only:
            raise CuffiError('this array is read-only')
        try:
            view = memoryview(data)
        except TypeError:
            raise TypeError(
                f'data must be bytes or an array of {self.dtype} in the memory of the host, as of numpy or array.array, '
                f'not {type(data).__name__}'
            ) from None
        if view.nbytes != self.nbytes:
            raise ValueError(f'{view.nbytes} bytes for an array of {self.nbytes}')
        _check_format(view, self._dtype)
        if not view.nbytes:
            return
        memory = self._held()
        with memory.device:
            _call('cuMemcpyHtoD_v2', self._address, view.tobytes(), view.nbytes)
            # A copy from pageable memory may return before it is done.
            _call('cuCtxSynchronize')

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            'this array is in the memory of a GPU, where NumPy cannot read it: copy it with '
            'numpy.frombuffer(array.copy_to_host(), array.dtype).reshape(array.shape), or use a library of the GPU, such as '
            'cupy.asarray(array) or torch.from_dlpack(array)')

    def _assert_contiguous(self) -> None:
        self._held()
        if self.size and self._strides != _contiguous(self._shape, self.itemsize):
            raise CuffiError('this array is not contiguous: copy it with torch or cupy')

    def close(self, *, stream: Any = None) -> None:
        """Gives the memory back, once no tensor made of this array uses it. The second call does nothing.

        Without `stream` it waits until all work of the device is done; not if a stream waits for another process: the
        memory is then given back in the background. With `stream`, nothing waits: the memory is given back behind the
        work that is queued in that stream.
        """
        handle = None if stream is None else _stream_handle(stream)
        memory = self._memory
        if memory is None:
            return
        if handle is not None and isinstance(memory, _ReceivedMemory):
            memory.stream = handle
        self._memory = None
        self._offers = None
        connection = memory.connection if isinstance(memory, _ReceivedMemory) else None
        del memory
        if connection is not None:
            with _signals:
                connection.give_back(may_wait=True)

    def __enter__(self) -> 'GpuArray':
        self._held()
        return self

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError('len() of an array without axes')
        return self._shape[0]

    def __repr__(self) -> str:
        state = ' closed' if self.closed else ''
        return f'<cuffi.{type(self).__name__} {self.dtype} {list(self._shape)} on device {self.device}{state}>'


# The kinds of items by the formats of Python's buffers. Bytes may be anything.
_BUFFER_KINDS = {**dict.fromkeys('bhilqn', 'i'), **dict.fromkeys('BHILQN', 'u'), **dict.fromkeys('efdg', 'f'), '?': 'b', 'Z': 'c'}


def _check_format(view: memoryview, dtype: _Dtype) -> None:
    """Raises TypeError for items that are not of a dtype, though they may have as many bytes."""
    form, kind = (view.format or 'B').lstrip('<=@'), dtype.typestr[1:2]
    if form in ('B', 'b', 'c') or kind == 'V':
        return
    found = _BUFFER_KINDS.get(form[:1])
    if dtype.itemsize < 4 and found == 'u' and (kind == 'f' or not kind):
        # The bits.
        found = kind
    elif kind == 'c' and found == 'f' and view.itemsize * 2 == dtype.itemsize:
        # Real parts and imaginary ones.
        return
    if found != kind or view.itemsize != dtype.itemsize:
        raise TypeError(f'data has items of format {view.format!r}, and the array of {dtype.name}: convert them, or pass their bytes')


class GpuBuffer(GpuArray):
    """Plain bytes in the memory of a GPU: what Node sends as a DeviceBuffer. An array of uint8."""


class GpuPool:
    """A memory pool of another process. Its memory arrives as arrays and buffers; this only names it."""

    def __init__(self, uuid: bytes) -> None:
        self._uuid = uuid

    @property
    def device(self) -> int:
        return _device_of(self._uuid).ordinal

    def close(self) -> None:
        """Does nothing: the pool is closed with its last array, and with the connection."""


class _EventHandle:
    """An event of the driver. It is destroyed with its last user: as memory, what is sent outlives `close()`."""

    def __init__(self, device: _Device, value: int, received: Optional[Tuple['_Connection', int, bytes]] = None) -> None:
        self.device, self.value = device, value
        # The connection, the lease and the fields of an event of another process.
        self.received = received
        # Whether it was recorded behind a wait for another process.
        self.is_behind_wait = False

    def has_run(self) -> bool:
        """Whether the work is done that was queued before the last record. Raises CudaError."""
        with self.device:
            status = _cuda().cuEventQuery(self.value)
        if status not in (0, _NOT_READY):
            raise CudaError('cuEventQuery', status)
        return status == 0

    def __del__(self) -> None:
        if _is_exiting is not False:
            return
        try:
            with self.device:
                _cuda().cuEventDestroy_v2(self.value)
        except CuffiError:
            pass  # The context is lost.
        if self.received:
            self.received[0].give_back_later(self.received[1], None, None)


class Event(_Context):
    """An event that processes share: made here, or received.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
    """

    def __init__(self, *, device: Optional[int] = None) -> None:
        where = _chosen_device(device)
        with where:
            # Without timing, for other processes.
            self._own: Optional[_EventHandle] = _EventHandle(where, _read('cuEventCreate', 2 | 4))

    _instead = 'refer to it, or send it with peer.send()'

    @classmethod
    def _of(cls, handle: _EventHandle) -> 'Event':
        event = cls.__new__(cls)
        event._own = handle
        return event

    @property
    def closed(self) -> bool:
        return self._own is None

    def _held(self) -> _EventHandle:
        own = self._own
        if own is None:
            raise self._closed_error()
        return own

    @property
    def _device(self) -> _Device:
        return self._held().device

    @property
    def handle(self) -> int:
        """The driver's handle. Raises ClosedError."""
        return self._held().value

    @property
    def done(self) -> bool:
        """Whether the work is done that was queued before the last record."""
        return self._held().has_run()

    def record(self, stream: Any = _LEGACY_STREAM) -> None:
        """Records the work that is queued in a stream, by default the legacy default stream."""
        event, handle = self._held(), _stream_handle(stream)
        with event.device:
            _call('cuEventRecord', event.value, handle)
        event.is_behind_wait = _is_behind_wait(event.device, handle)

    def wait(self, stream: Any = _LEGACY_STREAM) -> None:
        """Makes later work of a stream wait for the last record."""
        event, handle = self._held(), _stream_handle(stream)
        with event.device:
            _call('cuStreamWaitEvent', handle, event.value, 0)
        if event.is_behind_wait:
            with _waits_lock:
                _stream_of(event.device, handle).add_event(event)

    def synchronize(self, *, timeout: Optional[float] = None) -> None:
        """Waits on the host for the last record. Raises TimeoutError."""
        _wait_until(lambda: self.done, timeout, 'an event')

    def close(self) -> None:
        """Destroys it, once the other end has closed what it was sent. The second call does nothing."""
        own, self._own = self._own, None
        connection = own.received[0] if own and own.received else None
        del own
        if connection:
            connection.give_back()


def empty(shape: Any, dtype: Any = 'float32', *, device: Optional[int] = None) -> GpuArray:
    """Returns uninitialized memory that every process and library can share, whatever allocates theirs.

    >>> frame = torch.from_dlpack(cuffi.empty((1080, 1920, 3), 'uint8'))
    >>> peer.send(frame)

    Raises CudaError if the device has no memory left.
    """
    lengths, kind = _check_shape(shape), _dtype(dtype)
    where = _chosen_device(device)
    memory = _OwnMemory(where, max(math.prod(lengths) * kind.itemsize, 1))
    return GpuArray(memory, memory.address, lengths, kind, _contiguous(lengths, kind.itemsize), False)


def _seconds(timeout: Any) -> float:
    """A limit as a float. Raises TypeError, ValueError."""
    try:
        seconds = math.nan if isinstance(timeout, (bool, str, bytes)) else float(timeout)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        seconds = math.nan
    if seconds >= 0:
        return seconds
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        raise ValueError(f'timeout must be a number of seconds that is not negative, not {timeout}')
    raise TypeError(f'timeout must be a number of seconds, or None, not {timeout!r}')


class _Deadline:
    """The end of a wait that has a limit in seconds, if any."""

    def __init__(self, timeout: Optional[float]) -> None:
        self._timeout, self._at = timeout, math.inf if timeout is None else time.monotonic() + _seconds(timeout)

    @property
    def is_limited(self) -> bool:
        return self._at < math.inf

    def left_or_none(self) -> Optional[float]:
        """How many seconds are left; None if none are."""
        left = self._at - time.monotonic()
        return left if left > 0 else None

    def left(self, what: Union[str, Callable[[], str]]) -> float:
        """How many seconds are left. Raises TimeoutError if none are."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f'waiting for {what() if callable(what) else what} took more than {self._timeout} s')
        return left


def _pauses(is_done: Callable[[], bool], deadline: _Deadline, what: Any) -> Iterator[float]:
    """How long to sleep each time until it is done. Raises TimeoutError."""
    pause = 0.0
    while not is_done():
        deadline.left(what)
        yield pause
        pause = min(pause + 0.00002, 0.001)


def _wait_until(is_done: Callable[[], bool], timeout: Optional[float], what: Any) -> None:
    for pause in _pauses(is_done, _Deadline(timeout), what):
        time.sleep(pause)


async def _await_until(is_done: Callable[[], bool], timeout: Optional[float], what: Any) -> None:
    """As `_wait_until`, for asyncio."""
    await _turn_if_due()
    for pause in _pauses(is_done, _Deadline(timeout), what):
        await asyncio.sleep(pause)


class _LastTurn(threading.local):
    """When the event loop of this thread was last made to turn."""

    at = 0.0


_last_turn = _LastTurn()
_MAX_S_WITHOUT_TURN = 0.001


async def _turn_if_due() -> None:
    """Lets the event loop turn, once a millisecond. What may be ready at once awaits this first.

    A coroutine that awaits in a loop what is always ready would otherwise keep all other tasks waiting.
    """
    if time.monotonic() - _last_turn.at > _MAX_S_WITHOUT_TURN:
        await asyncio.sleep(0)
        _last_turn.at = time.monotonic()


# ---- This process, as others see it -----------------------------------------------------------------------


def _start_time(pid: Union[int, str]) -> int:
    """In clock ticks since boot; 0 if the process is gone. Pids are reused, start times are not."""
    try:
        with open(f'/proc/{pid}/stat', 'rb') as file:
            return int(file.read().rpartition(b')')[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class _Process:
    """This process: the fields of what it exports."""

    def __init__(self) -> None:
        with open('/proc/sys/kernel/random/boot_id') as file:
            self.machine = bytes.fromhex(file.read().strip().replace('-', ''))
        self.pid, self.start_time = os.getpid(), _start_time('self')
        try:
            self.namespace = os.stat('/proc/self/ns/pid').st_ino
        except OSError:
            self.namespace = 0
        # A pointer's number would tell other processes about this one.
        self.secret = secrets.randbits(48)
        self.identity = (self.machine, self.pid, self.start_time, self.namespace)
        self._exporters: Dict[_Device, _descriptors.Exporter] = {}

    def exporter(self, device: _Device) -> _descriptors.Exporter:
        found = self._exporters.get(device)
        if found is None:
            found = self._exporters[device] = _descriptors.Exporter(device.uuid, *self.identity)
        return found

    def has_made(self, fields: _Fields) -> bool:
        """Whether this process has made a descriptor."""
        return fields.exporter[1:] == self.identity


_process: Optional[_Process] = None


def _self() -> _Process:
    global _process
    if _process is None or _process.pid != os.getpid():
        _process = _Process()
    return _process


# ---- Bytes ------------------------------------------------------------------------------------------------


class BigInt(int):
    """An int that Node gets as a bigint, whatever its size. Received bigints are of this type."""

    def __repr__(self) -> str:
        # Python refuses to print long ones in decimal, or takes very long.
        return int.__repr__(self) if self.bit_length() < 4096 else hex(self)


class Map(Dict[Any, Any]):
    """A dict that Node gets as a Map. Received Maps are of this type."""


# ---- Values -----------------------------------------------------------------------------------------------
# Types of binary data: their format in Python. All others are bytes.
_FORMATS = {
    'Int8Array': 'b', 'Uint16Array': 'H', 'Int16Array': 'h', 'Uint32Array': 'I', 'Int32Array': 'i',
    'Float32Array': 'f', 'Float64Array': 'd', 'BigUint64Array': 'Q', 'BigInt64Array': 'q',
}  # fmt: skip
# By their number: the format, or None, and the bytes of an item. The number of bytes, and of each format and size.
_BINARIES = tuple((_FORMATS.get(name), size) for name, size in BINARY_TYPES)
_BYTES = [name for name, _ in BINARY_TYPES].index('Uint8Array')
_BINARY_OF = {found: number for number, found in enumerate(_BINARIES) if found[0]}
# Node has the bits of float16, as in its arrays.
_BINARY_OF['e', 2] = _BINARY_OF['H', 2]
# Which of these has 4 bytes, and which 8, depends on the machine.
_BINARY_OF.update({
    (form, size): number
    for family in ('ilq', 'ILQ')
    for (known, size), number in list(_BINARY_OF.items()) if known in family
    for form in family
})  # fmt: skip
_AGGREGATE_ERROR = ERROR_TYPES.index('AggregateError')
# The fields of an error that are strings, in order.
_ERROR_TEXTS = (ERROR_NAME, ERROR_MESSAGE, ERROR_STACK, ERROR_CODE)
_CONSTANTS = {TAG_UNDEFINED: None, TAG_NULL: None, TAG_FALSE: False, TAG_TRUE: True}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)

Put = Callable[[Any], None]


class _Encoder:
    """Writes a value. GPU objects in it are collected in `objects`, in order."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.objects: List[Any] = []
        self._parts = self._binaries = self._collections = 0

    def write(self, value: Any, depth: int = 0) -> None:
        out = self.out
        self._parts += 1
        if self._parts > MAX_VALUE_PARTS or len(out) > MAX_VALUE_BYTE_LENGTH:
            raise ValueError(f'the value is too large: it may have {MAX_VALUE_PARTS} parts and 16 MiB')
        kind = type(value)
        if value is None:
            out.append(TAG_NULL)
        elif kind is bool:
            out.append(TAG_TRUE if value else TAG_FALSE)
        elif kind is int:
            self._int(value)
        elif kind is float:
            out.append(TAG_FLOAT64)
            out += _pack_double(value)
        elif kind is str:
            self.string(value)
        elif isinstance(value, (GpuArray, Event, _Closable)):
            self._object(value)
        elif isinstance(value, (dict, list, tuple, set, frozenset, BaseException)):
            if depth >= MAX_VALUE_DEPTH:
                raise ValueError(f'the value is nested deeper than {MAX_VALUE_DEPTH}, or contains itself')
            self._container(value, depth + 1)
        elif isinstance(value, BigInt):
            self._bigint(value)
        elif isinstance(value, str):
            # A subclass, such as an enum, is sent as what it contains: its own conversions say something else.
            self.string(str.__str__(value))
        elif isinstance(value, int):
            self._int(int.__int__(value))
        elif isinstance(value, float):
            out.append(TAG_FLOAT64)
            out += _pack_double(float.__float__(value))
        elif isinstance(value, datetime.datetime):
            out.append(TAG_DATE)
            out += _pack_double(_milliseconds(value))
        elif _is_on_gpu(value):
            self._object(value)
        else:
            self._binary(value, depth)

    def _object(self, value: Any) -> None:
        self.out.append(TAG_GPU_OBJECT)
        self.objects.append(value)

    def _int(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self.out.append(TAG_INT32)
            self.out += _pack_int(value)
        elif -_SAFE <= value <= _SAFE:
            self.out.append(TAG_FLOAT64)
            self.out += _pack_double(value)
        else:
            self._bigint(value)

    def _bigint(self, value: int) -> None:
        if -(2**63) <= value < 2**63:
            self.out += struct.pack('<Bq', TAG_BIGINT64, value)
            return
        digits = b'%x' % abs(value)
        if len(digits) > MAX_BIGINT_DIGITS:
            raise ValueError(f'an int may have {MAX_BIGINT_DIGITS} hexadecimal digits')
        self.out += bytes((TAG_BIGINT, value < 0))
        _write_length(self.out, len(digits))
        self.out += digits

    def string(self, value: str) -> None:
        try:
            tag, data = TAG_LATIN1, value.encode('latin-1')
        except UnicodeEncodeError:
            tag, data = TAG_UTF16, value.encode('utf-16-le', 'surrogatepass')
        if len(data) > MAX_VALUE_BYTE_LENGTH:
            raise ValueError('the value is too large: it may have 16 MiB')
        self.out.append(tag)
        _write_length(self.out, len(data))
        self.out += data

    def _container(self, value: Any, depth: int) -> None:
        out = self.out
        if isinstance(value, BaseException):
            self._error(value, depth)
            return
        # Copies: other threads, and the properties of what is within, may change a container while it is written.
        if isinstance(value, (list, tuple)):
            out.append(TAG_ARRAY)
            self._items(tuple(value), depth)
            return
        if not isinstance(value, dict):
            self._count_collection()
            out.append(TAG_SET)
            members = tuple(value)
            if len(members) > MAX_UNCOUNTED_KEYS:
                _check_collisions_in_node(members)
            self._items(members, depth)
            return
        pairs = tuple(value.items())
        is_object = not isinstance(value, Map) and all(isinstance(key, str) for key, _ in pairs)
        if not is_object:
            self._count_collection()
        out.append(TAG_OBJECT if is_object else TAG_MAP)
        _write_length(out, len(pairs))
        if not is_object and len(pairs) > MAX_UNCOUNTED_KEYS:
            _check_collisions_in_node([key for key, _ in pairs])
        if is_object and any(type(key) is not str for key, _ in pairs):
            pairs = tuple((str.__str__(key), item) for key, item in pairs)
            if len(dict(pairs)) < len(pairs):
                raise ValueError('a dict has two names that are the same as text: send a cuffi.Map')
        for key, item in pairs:
            if is_object:
                if key == '__proto__':
                    raise ValueError('a name of an object must not be __proto__')
                if _utf16_length(key) > MAX_NAME_LENGTH:
                    raise ValueError(f'a name of an object has more than {MAX_NAME_LENGTH} characters: send a Map')
                self.string(key)
            else:
                self.write(key, depth)
            self.write(item, depth)

    def _items(self, items: Tuple[Any, ...], depth: int) -> None:
        _write_length(self.out, len(items))
        for item in items:
            self.write(item, depth)

    def _count_collection(self) -> None:
        self._collections += 1
        if self._collections > MAX_VALUE_COLLECTIONS:
            raise ValueError(f'the value has more than {MAX_VALUE_COLLECTIONS} dicts, sets and errors')

    def _error(self, error: BaseException, depth: int) -> None:
        self._count_collection()
        if isinstance(error, RemoteError):
            name, message, stack, errors = error.name, error.message, error.stack, error.errors
        else:
            name, message, errors = type(error).__name__, str(error), []
            stack = ''.join(traceback.format_exception(type(error), error, error.__traceback__))
        kind = ERROR_TYPES.index(name) if name in ERROR_TYPES else ERROR_TYPES.index('RangeError' if isinstance(error, ValueError) else 'Error')
        code = getattr(error, 'code', None)
        texts = [name, message, stack, code]
        cause = error.__cause__
        bits = sum(bit for bit, text in zip(_ERROR_TEXTS, texts) if isinstance(text, str)) | (ERROR_CAUSE if cause else 0)
        self.out += bytes((TAG_ERROR, kind, bits))
        for text in texts:
            if isinstance(text, str):
                self.string(text)
        if kind == _AGGREGATE_ERROR:
            # They are an array in the error.
            if depth >= MAX_VALUE_DEPTH:
                raise ValueError(f'the value is nested deeper than {MAX_VALUE_DEPTH}, or contains itself')
            _write_length(self.out, len(errors))
            for one in errors:
                self.write(one, depth + 1)
        if cause:
            self.write(cause, depth)

    def _binary(self, value: Any, depth: int) -> None:
        is_dated = getattr(getattr(value, 'dtype', None), 'kind', '') in ('M', 'm')
        try:
            view = None if is_dated else memoryview(value)
        except (TypeError, ValueError):
            view = None
        if view is None:
            instead = 'send datetime.datetime with a time zone, or the integers' if is_dated else (
                'only None, bool, int, float, str, datetime, list, tuple, dict, set, exceptions, bytes, arrays of numbers, '
                'and arrays, buffers and events of a GPU, timelines, channels and page-locked memory are')  # fmt: skip
            raise _not_sent(value, instead)
        if view.ndim == 0:
            # A scalar of NumPy. Other libraries have none, and some of NumPy's are their own items.
            item = value.item() if hasattr(value, 'item') else value
            if type(item) not in (bool, int, float, str, bytes):
                raise _not_sent(value, 'convert it to an int, a float or a str')
            self.write(item, depth)
            return
        form = view.format.lstrip('<=@')
        kind = _BYTES if form in ('B', 'c', '?') else _BINARY_OF.get((form, view.itemsize))
        if kind is None:
            raise _not_sent(value, f'its items have the format {view.format!r}, which JavaScript has not: convert them, or send its bytes')
        if view.ndim > 1:
            raise ValueError(
                f'an array of shape {list(view.shape)} would arrive without its shape: send array.ravel() and array.shape, '
                'or copy it to the GPU: cuffi.empty(array.shape, array.dtype).copy_from_host(array)')
        self._binaries += 1
        if view.nbytes > MAX_VALUE_BYTE_LENGTH or self._binaries > MAX_VALUE_BINARIES:
            raise ValueError('the value is too large: it may have 16 MiB')
        self.out += bytes((TAG_BINARY, kind))
        _write_length(self.out, view.nbytes)
        self.out += view.tobytes()


def _not_sent(value: Any, instead: str) -> TypeError:
    return TypeError(f'{type(value).__module__}.{type(value).__name__} cannot be sent: {instead}')


def _milliseconds(moment: datetime.datetime) -> float:
    """Since 1970, as Node counts. Raises ValueError."""
    try:
        aware = moment if moment.tzinfo else moment.astimezone()
        microseconds = (aware - _EPOCH) // datetime.timedelta(microseconds=1)
    except (OverflowError, ValueError, OSError):
        raise ValueError(
            f'{moment!r} has no time zone, and cannot be converted from the local one: give it one, as with '
            'moment.replace(tzinfo=datetime.timezone.utc)'
        ) from None
    milliseconds = microseconds / 1000
    # Far from 1970 it may be rounded up, and the last one is in no year of Python.
    return milliseconds if math.floor(milliseconds) == microseconds // 1000 else microseconds // 1000


def _utf16_length(text: str) -> int:
    """How many characters a string has in JavaScript."""
    return len(text) if len(text) <= MAX_NAME_LENGTH // 2 else len(text.encode('utf-16-le', 'surrogatepass')) // 2


class _HashTable:
    """Counts the steps of CPython to fill a dict or a set. Hashes of numbers and tuples have no seed: another
    process can choose keys that take the same steps, and each of them passes all others."""

    def __init__(self, is_set: bool) -> None:
        self._is_set = is_set
        # The hash in each slot, and the hashes in order: a set forgets the order when it grows.
        self._slots: List[Optional[int]] = [None] * 8
        self._hashes: List[int] = []
        self._count = self._steps = 0
        # Hashes of strings have a seed. Keys are counted from the first other one on.
        self._strings: Optional[List[str]] = []

    def add(self, key: Any) -> bool:
        """Adds the next key. Returns False if the keys so far take too many steps."""
        strings = self._strings
        if strings is not None:
            if type(key) is str:
                strings.append(key)
                return True
            self._strings = None
            for string in strings:
                self._add(hash(string))
        self._add(hash(key))
        return self._steps <= MAX_COLLISIONS + MAX_STEPS_PER_KEY * self._count

    def _add(self, hashed: int) -> None:
        self._count += 1
        size = len(self._slots)
        if self._is_set:
            self._place(hashed)
            if self._count * 5 >= (size - 1) * 3:
                self._grow(self._count * (2 if self._count > 50000 else 4) + 1, [one for one in self._slots if one is not None])
        else:
            if self._count > size * 2 // 3:
                self._grow(size * 2, self._hashes)
            self._hashes.append(hashed)
            self._place(hashed)

    def _place(self, hashed: int) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        perturb, at = hashed & 0xFFFFFFFFFFFFFFFF, hashed & mask
        steps, most = 0, _TOO_MANY_STEPS - self._steps
        while slots[at] is not None and steps < most:
            if self._is_set and at + 9 <= mask:
                # Nine neighbours follow, which are in one or two lines of the cache.
                near = slots[at : at + 10]
                if None in near:
                    at += near.index(None)
                    break
            steps += 1
            perturb >>= 5
            at = (at * 5 + perturb + 1) & mask
        slots[at] = hashed
        self._steps += steps

    def _grow(self, least: int, hashes: List[int]) -> None:
        self._slots = [None] * (1 << (least - 1).bit_length())
        for hashed in hashes:
            self._place(hashed)


# More than any keys may take that are accepted.
_TOO_MANY_STEPS = MAX_COLLISIONS + MAX_STEPS_PER_KEY * MAX_VALUE_PARTS
_COLLIDING = ('a Map or Set has too many keys or members with the same hash in Python', 'limit-exceeded')


# What is the same as a key of a Map in Node if it is equal and of one type here.
_COMPARED = (str, int, float, bool, BigInt)


def _unusable(why: str) -> Tuple[str, str]:
    """Why Python cannot hold a value that may be sent."""
    return why, 'not-supported'



def _check_collisions_in_node(keys: Any) -> None:
    """Refuses the keys that Node's Maps and Sets take too long for. As `HashCollisions` of Node."""
    hashes: List[int] = []
    buckets, collisions = [0, 0], 0
    for count, key in enumerate(keys):
        if count == 2 * len(buckets):
            buckets = [0] * (2 * len(buckets))
            for hashed in hashes:
                buckets[hashed & len(buckets) - 1] += 1
        found = _hash_in_node(key)
        if found is None:
            continue
        hashes.append(found)
        at = found & len(buckets) - 1
        collisions += buckets[at]
        buckets[at] += 1
        if collisions > MAX_COLLISIONS + MAX_COLLISIONS_PER_KEY * (count + 1):
            raise ValueError(
                'a Map or set has too many keys or members with the same hash in Node, and would be very slow there: '
                'send a list of them, or strings in their place'
            )


def _hash_in_node(key: Any) -> Optional[int]:
    """Returns the hash of V8 for keys whose hash has no seed."""
    if isinstance(key, str):
        length = _utf16_length(key)
        return length if length > MAX_NAME_LENGTH else None
    if isinstance(key, bool) or not isinstance(key, (int, float)):
        return None
    is_bigint = isinstance(key, int) and (isinstance(key, BigInt) or abs(key) > _SAFE)
    if is_bigint:
        bits = abs(key) & 0xFFFFFFFFFFFFFFFF
    elif -(2**31) <= key < 2**31 and key == math.floor(key):
        low = int(key) & 0xFFFFFFFF
        low = ((low ^ 0xFFFFFFFF) + (low << 15)) & 0xFFFFFFFF
        low ^= low >> 12
        low = low * 5 & 0xFFFFFFFF
        low ^= low >> 4
        low = low * 2057 & 0xFFFFFFFF
        return (low ^ low >> 16) & 0x3FFFFFFF
    else:
        bits = int.from_bytes(_pack_double(key), 'little')
    bits = ((bits ^ 0xFFFFFFFFFFFFFFFF) + (bits << 18)) & 0xFFFFFFFFFFFFFFFF
    bits ^= bits >> 31
    bits = bits * 21 & 0xFFFFFFFFFFFFFFFF
    bits ^= bits >> 11
    bits = bits * 65 & 0xFFFFFFFFFFFFFFFF
    return (bits ^ bits >> 22) & 0x3FFFFFFF


class _Decoder:
    """Reads a value. The places of GPU objects are collected in `places`: functions that put them there."""

    def __init__(self, reader: _Reader) -> None:
        self._from = reader
        self.places: List[Optional[Put]] = []
        self._parts = self._binaries = self._collections = 0
        # Why the value cannot be taken, although its end is found: a reason, and the code of its error.
        self.refusal: Optional[Tuple[str, str]] = None

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_VALUE_PARTS:
            raise _limit_exceeded(f'a value has more than {MAX_VALUE_PARTS} parts')

    def read(self, put: Optional[Put], depth: int = 0) -> Any:
        """Returns a value; for a GPU object None, and `put` will be called with it."""
        reader = self._from
        self._count_part()
        tag = reader.byte()
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == TAG_INT32:
            return _unpack_int(reader.data, reader.skip(4))[0]
        if tag == TAG_FLOAT64:
            value = reader.double()
            # JavaScript has no integers besides numbers.
            is_int = value.is_integer() and abs(value) <= _SAFE and (value != 0 or math.copysign(1, value) > 0)
            return int(value) if is_int else value
        if tag == TAG_LATIN1 or tag == TAG_UTF16:
            reader.at -= 1
            return reader.string()
        if tag == TAG_BIGINT64:
            return BigInt(struct.unpack_from('<q', reader.data, reader.skip(8))[0])
        if tag == TAG_GPU_OBJECT:
            self.places.append(put)
            if len(self.places) > MAX_VALUE_OBJECTS:
                raise _limit_exceeded(f'a value has more than {MAX_VALUE_OBJECTS} GPU objects')
            return None
        if tag == TAG_BIGINT:
            return self._read_bigint()
        if tag == TAG_BINARY:
            return self._read_binary()
        if tag == TAG_DATE:
            return self._read_date()
        return self._read_container(tag, self._deeper(depth))

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_VALUE_DEPTH:
            raise _limit_exceeded(f'a value is nested deeper than {MAX_VALUE_DEPTH}')
        return depth + 1

    def _read_bigint(self) -> BigInt:
        reader = self._from
        is_negative, count = reader.flag(), reader.length()
        if count > MAX_BIGINT_DIGITS:
            raise _limit_exceeded(f'a bigint has {count} hexadecimal digits')
        digits = reader.take(count)
        if not digits or digits.strip(b'0123456789abcdef'):
            raise IpcError('the digits of a bigint are not digits')
        return BigInt(-int(digits, 16) if is_negative else int(digits, 16))

    def _read_container(self, tag: int, depth: int) -> Any:
        reader = self._from
        if tag == TAG_ARRAY:
            items: List[Any] = []
            for at in range(reader.length()):
                items.append(None)
                # An item that is missing.
                if reader.at < reader.end and reader.data[reader.at] == TAG_HOLE:
                    reader.at += 1
                    self._count_part()
                else:
                    items[at] = self.read(_put_item(items, at), depth)
            return items
        if tag == TAG_OBJECT:
            return self._read_object(depth)
        if tag not in (TAG_MAP, TAG_SET, TAG_ERROR):
            raise IpcError('a hole stands outside of an array' if tag == TAG_HOLE else f'{tag} is no kind of value')
        self._collections += 1
        if self._collections > MAX_VALUE_COLLECTIONS:
            raise _limit_exceeded(f'a value has more than {MAX_VALUE_COLLECTIONS} Maps, Sets and errors')
        if tag == TAG_MAP:
            return self._read_map(depth)
        return self._read_set(depth) if tag == TAG_SET else self._read_error(depth)

    def _read_object(self, depth: int) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for _ in range(self._from.length(3)):
            name = self._from.string()
            if _utf16_length(name) > MAX_NAME_LENGTH:
                raise _limit_exceeded(f'a name of an object has more than {MAX_NAME_LENGTH} characters')
            if name in found or name == '__proto__':
                raise IpcError(f'the name {name[:80]!r} of an object is repeated or not allowed')
            found[name] = None
            found[name] = self.read(_put_item(found, name), depth)
        return found

    def _read_map(self, depth: int) -> Map:
        found = Map()
        count = self._from.length(2)
        nulls: Set[bytes] = set()
        table = _HashTable(False) if count > MAX_UNCOUNTED_KEYS else None
        for _ in range(count):
            places, tag = len(self.places), self._from.data[self._from.at : self._from.at + 1]
            key = self._hashable(self.read(lambda _: None, depth))
            if key is None:
                nulls.add(tag)
            if table and not table.add(key):
                # What follows is still read, and checked.
                table, found, self.refusal = None, Map(), _COLLIDING
            if self.refusal is _COLLIDING:
                self.read(None, depth)
                continue
            if len(self.places) > places:
                self.refusal = _unusable('a GPU object is in the key of a Map')
            elif key in found:
                self.refusal = self._repeated(key, found, nulls, f'a Map has the key {str(key)[:80]!r} twice')
            found[key] = None
            found[key] = self.read(_put_item(found, key), depth)
        return found

    def _read_set(self, depth: int) -> set:
        found: set = set()
        count = self._from.length()
        nulls: Set[bytes] = set()
        table = _HashTable(True) if count > MAX_UNCOUNTED_KEYS else None
        for _ in range(count):
            places, tag = len(self.places), self._from.data[self._from.at : self._from.at + 1]
            member = self._hashable(self.read(found.add, depth))
            if member is None:
                nulls.add(tag)
            if table and not table.add(member):
                table, self.refusal = None, _COLLIDING
            if self.refusal is _COLLIDING:
                continue
            if len(self.places) == places:
                if member in found:
                    self.refusal = self._repeated(member, found, nulls, f'a Set has the member {str(member)[:80]!r} twice')
                found.add(member)
            elif member is not None:
                self.refusal = _unusable('a GPU object is within a member of a Set')
        return found

    def _repeated(self, key: Any, found: Any, tags: Set[bytes], why: str) -> Tuple[str, str]:
        """Says why a key is refused: it came before, or Python takes it for another one that did."""
        known = next(each for each in found if each == key)
        # What Node compares by its identity is never the same. None stands for undefined and for null.
        is_same = len(tags) == 1 if key is None else type(known) is type(key) and type(key) in _COMPARED
        return (why, 'ipc-failed') if is_same else _unusable(f'{why}, as Python compares them')

    def _hashable(self, key: Any) -> Any:
        if isinstance(key, list):
            return tuple(self._hashable(item) for item in key)
        if isinstance(key, (dict, set, _array.array)):
            self.refusal = _unusable('a Map has a key, or a Set a member, that Python cannot hash')
            return None
        return key

    def _read_binary(self) -> Any:
        reader = self._from
        kind, length = reader.byte(), reader.length()
        self._binaries += 1
        if self._binaries > MAX_VALUE_BINARIES:
            raise _limit_exceeded(f'a value has more than {MAX_VALUE_BINARIES} parts of binary data')
        if kind >= len(_BINARIES) or length % _BINARIES[kind][1]:
            raise IpcError(f'{length} bytes are no binary data of type {kind}')
        data, form = reader.take(length), _BINARIES[kind][0]
        return data if form is None else _array.array(form, data)

    def _read_date(self) -> datetime.datetime:
        milliseconds = self._from.double()
        try:
            return _EPOCH + datetime.timedelta(milliseconds=milliseconds)
        except (OverflowError, ValueError):
            self.refusal = _unusable('a date is invalid, or before the year 1 or after 9999')
            return _EPOCH

    def _read_error(self, depth: int) -> RemoteError:
        reader = self._from
        kind, bits = reader.byte(), reader.byte()
        if kind >= len(ERROR_TYPES) or bits >= 2 * ERROR_CAUSE:
            raise IpcError('an error is of no known class')
        texts = [reader.string() if bits & bit else None for bit in _ERROR_TEXTS]
        name, message, stack, code = texts
        error = RemoteError(message or '', name or ERROR_TYPES[kind], code or 'remote-error', stack)
        if kind == _AGGREGATE_ERROR:
            # They are an array in the error.
            error.errors = self._read_container(TAG_ARRAY, self._deeper(depth))
        if bits & ERROR_CAUSE:
            cause = self.read(lambda _: None, depth)
            # Anything may be thrown in JavaScript.
            error.__cause__ = cause if isinstance(cause, BaseException) else RemoteError(repr(cause))
        return error


def _put_item(container: Any, key: Any) -> Put:
    def put(item: Any) -> None:
        container[key] = item

    return put


# ---- What is sent -----------------------------------------------------------------------------------------


def _is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch, or of a class made of it."""
    return hasattr(value, 'data_ptr') and any(kind.__module__.partition('.')[0] == 'torch' for kind in type(value).__mro__)


def _is_on_gpu(value: Any) -> bool:
    if _is_torch(value):
        if not value.is_cuda:
            raise TypeError('a tensor in host memory cannot be sent: move it to the GPU, or send tensor.numpy().ravel() and its shape')
        return True
    if hasattr(type(value), '__cuda_array_interface__') or hasattr(value, '__cuda_array_interface__'):
        return True
    find = getattr(value, '__dlpack_device__', None)
    return find is not None and int(find()[0]) == _CUDA_DEVICE


class _Described:
    """An array of any library: where its items are, and what keeps them alive."""

    __slots__ = ('address', 'shape', 'dtype', 'strides', 'read_only', 'is_buffer', 'owner', 'memory')

    def __init__(self, value: Any) -> None:
        self.owner: Any = value
        self.memory: Optional[_Memory] = None
        self.is_buffer = False
        if isinstance(value, GpuArray):
            self.memory = value._held()
            self.address, self.shape, self.dtype = value.ptr, value.shape, value._dtype
            self.strides, self.read_only = value.strides, value.read_only
            self.is_buffer = type(value) is GpuBuffer
            # The array may be closed before the other end has released it.
            self.owner = self.memory
        else:
            _refuse_lazy_bits(value)
            if _is_torch(value):
                self._describe_torch(value)
            else:
                self._describe(value)
            _checked_extents(self.shape, self.strides, self.dtype.itemsize)

    def _describe_torch(self, value: Any) -> None:
        layout = str(value.layout)
        if layout != 'torch.strided':
            raise TypeError(f'a tensor of layout {layout} cannot be sent: send value.to_dense(), or its indices and values')
        self.address, self.shape, self.dtype = value.data_ptr(), tuple(value.shape), _dtype(value.dtype)
        itemsize = self.dtype.itemsize
        self.strides, self.read_only = tuple(step * itemsize for step in value.stride()), False

    def _describe(self, value: Any) -> None:
        try:
            interface = value.__cuda_array_interface__
        except (AttributeError, RuntimeError, TypeError):
            interface = None
        if interface is None:
            self._describe_by_dlpack(value)
            return
        version, mask = interface.get('version', 0), interface.get('mask')
        if not 0 <= version <= 3:
            raise NotSupportedError(f'version {version} of the __cuda_array_interface__ is not known here')
        if mask is not None:
            raise NotSupportedError('a masked array cannot be sent: send its values and its mask as an array each')
        try:
            typestr, shape, (address, read_only) = interface['typestr'], interface['shape'], interface['data']
            address, strides = operator.index(address), interface.get('strides')
            strides = None if strides is None else _integers(strides)
        except (KeyError, TypeError, ValueError) as error:
            raise TypeError(
                f'the __cuda_array_interface__ of a {type(value).__name__} must have a typestr, a shape, data of an address and a '
                f'flag, and strides that are None or integers: {type(error).__name__} {error}'
            ) from None
        if not isinstance(typestr, str):
            raise TypeError(f'typestr must be a str, not {type(typestr).__name__}')
        if not 0 <= address < 2**64:
            raise ValueError(f'data must have the address of the items, not {address}')
        self.dtype, self.shape = _dtype(typestr), _check_shape(shape)
        self.address, self.read_only = address, bool(read_only)
        self.strides = _contiguous(self.shape, self.dtype.itemsize) if strides is None else strides
        if len(self.strides) != len(self.shape):
            raise ValueError(f'strides {self.strides} are not those of a shape with {len(self.shape)} axes')

    def _describe_by_dlpack(self, value: Any) -> None:
        try:
            # Only this version tells what is read-only.
            capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = value.__dlpack__()
        tensor, self.read_only = _read_capsule(capsule)
        self.owner = (value, capsule)
        self.dtype = _dtype_of_dlpack(tensor)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = _check_shape(tensor.shape[: tensor.ndim])
        itemsize = self.dtype.itemsize
        steps = tensor.strides[: tensor.ndim] if tensor.strides else None
        self.strides = _contiguous(self.shape, itemsize) if steps is None else tuple(step * itemsize for step in steps)


def _refuse_lazy_bits(value: Any) -> None:
    """Refuses tensors of torch whose memory holds the items before an operation that is still to be done."""
    for bit, what in (('conj', 'conjugated'), ('neg', 'negated')):
        is_set = getattr(value, f'is_{bit}', None)
        if callable(is_set) and is_set():
            raise ValueError(f'the memory of this tensor holds its items before they are {what}: send tensor.resolve_{bit}()')


def _layout_of(array: Optional[_Described]) -> Optional[_descriptors.Layout]:
    """The layout that others get; none for plain bytes."""
    if array is None or array.is_buffer:
        return None
    return _descriptors.Layout(array.dtype.name, array.shape, array.strides)


def _dtype_of_dlpack(tensor: _DLTensor) -> _Dtype:
    found = _BY_DLPACK.get((tensor.code, tensor.bits))
    if found is None:
        raise NotSupportedError(f'DLPack type {tensor.code} of {tensor.bits} bits has no dtype here')
    # Vectors are raw bytes, as in Node.
    return found if tensor.lanes <= 1 else _raw_dtype(found.itemsize * tensor.lanes)


class _Exported:
    """What is sent for one object, and what must be kept until the other end has released it."""

    __slots__ = ('fields', 'fds', 'keep', 'device', 'begin', 'stream', 'owned', 'root', 'restore')

    def __init__(self, fields: bytes, fds: Tuple[int, ...], keep: Any, device: Optional[_Device], begin: int = 0,
                 owned: Optional[List[int]] = None, root: Any = None) -> None:  # fmt: skip
        """
        :param begin: the address of the first byte of the range; 0 for an event
        """
        self.fields, self.fds, self.keep, self.device, self.begin = fields, fds, keep, device, begin
        # Descriptors for one process only, before the others. They are closed when they were sent.
        self.owned: List[int] = owned or []
        # What `leases.returned` waits for.
        self.root = root
        # Later work of this stream runs behind the other end's.
        self.stream: Optional[int] = None
        # Takes `owned` back if it is not sent, and returns whether it has. Otherwise they are closed.
        self.restore: Optional[Callable[[List[int]], bool]] = None

    def undo(self) -> None:
        """It is not sent."""
        owned, self.owned = self.owned, []
        if not (owned and self.restore and self.restore(owned)):
            _close_fds(owned)

    def __del__(self) -> None:
        self.undo()


def _export(value: Any, peer: '_Connection') -> _Exported:
    if isinstance(value, Event):
        return _export_event(value, peer)
    if isinstance(value, _Closable):
        return value._export()
    described = _Described(value)
    low, high = _extents(described.shape, described.strides, described.dtype.itemsize)
    if low == high:
        raise ValueError('an array without items has no memory that can be shared')
    begin, length = described.address + low, high - low
    memory = described.memory
    base = size = 0
    if memory is None or isinstance(memory, _BorrowedMemory):
        base, size = _address_range(begin)
        memory = _own_memory.get(base) or _received_at(base, begin, length)
    if isinstance(memory, _OwnMemory):
        _check_within(begin, length, memory.address, memory.byte_length)
        fields = memory.fields(begin - memory.address, length, described.read_only, described)
        return _Exported(_descriptors.encode_known(**fields), (memory.fd,), (described.owner, memory), memory.device, begin, root=memory)
    if isinstance(memory, _ReceivedMemory):
        return _send_back(memory, begin, length, described, peer)
    if size:
        _check_within(begin, length, base, size)
    return _export_legacy(described, base, size, begin, length)


def _check_within(begin: int, length: int, base: int, size: int) -> None:
    if begin < base or begin + length > base + size:
        raise ValueError(f'the array takes bytes {begin - base} to {begin - base + length} of an allocation that has {size}')


def _address_range(address: int) -> Tuple[int, int]:
    base, size = _u64(), _size()
    with _device_at(address):
        status = _cuda().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), address)
    if status:
        error = CudaError('cuMemGetAddressRange_v2', status)
        raise IpcError(f'there is no device memory at {address:#x} that could be shared: {error}')
    return base.value, size.value


def _received_at(base: int, begin: int, length: int) -> Optional[_ReceivedMemory]:
    mapping = _mapped_at.get(base)
    if mapping is None:
        return None
    with _lock:
        received = list(_received_memory)
    for memory in received:
        if memory.mapping is mapping and memory.address <= begin:
            if begin + length <= memory.address + memory.byte_length:
                return memory
    return None


def _attribute(attribute: int, address: int) -> int:
    value = _u64()
    return value.value if _cuda().cuPointerGetAttribute(ctypes.byref(value), attribute, address) == 0 else 0


def _export_legacy(described: _Described, base: int, size: int, begin: int, length: int) -> _Exported:
    if described.read_only:
        raise IpcError('this memory is read-only here, but the driver maps it for writing as well: send a copy',
                       'not-supported')  # fmt: skip
    device = _device_at(begin)
    handle = _Handle64()
    with device:
        status = _cuda().cuIpcGetMemHandle(ctypes.byref(handle), base)
        if status or not _attribute(_ATTRIBUTE_IPC_CAPABLE, begin):
            is_pool = _attribute(_ATTRIBUTE_POOL, begin) != 0
            what = 'memory of a pool (cudaMallocAsync)' if is_pool else 'memory that is virtual (expandable segments) or managed'
            raise IpcError(
                f'{what} has no handle for other processes: copy it into cuffi.empty(shape, dtype), which every '
                'library takes; or unset expandable_segments in PYTORCH_CUDA_ALLOC_CONF, or use the default '
                "memory pool of cupy, or jax with XLA_PYTHON_CLIENT_ALLOCATOR=platform",
                'not-supported',
            )
        # Tells apart the allocations that had the same address one after the other.
        buffer_id = (_attribute(_ATTRIBUTE_BUFFER_ID, begin) * 0x9E3779B97F4A7C15 ^ _self().secret) & (2**48 - 1)
    fields = _descriptors.encode_known(
        KIND_LEGACY, exporter=_self().exporter(device), handle=bytes(handle.reserved), base_byte_length=size,
        byte_offset=begin - base, byte_length=length, access=_descriptors.READ_WRITE, buffer_id=buffer_id, generation=0,
        layout=_layout_of(described))  # fmt: skip
    return _Exported(fields, (), described.owner, device, begin, root=(KIND_LEGACY, base))


def _device_at(address: int) -> _Device:
    ordinal, device = _int(), _current_device()
    with device:
        is_known = _cuda().cuPointerGetAttribute(ctypes.byref(ordinal), 9, address) == 0
    return _all_devices()[ordinal.value] if is_known and ordinal.value >= 0 else device


def _send_back(memory: _ReceivedMemory, begin: int, length: int, described: _Described, peer: '_Connection') -> _Exported:
    """Sends memory back to its owner, as part of what it has sent."""
    fields = memory.fields
    if memory.connection.pid != peer.pid or fields.exporter.pid != peer.pid:
        raise NotSupportedError(
            'this memory is of another process, and the companion for Python does not pass it on: copy it into '
            'cuffi.empty(shape, dtype), or let its owner send it')
    access = _descriptors.READ_ONLY if described.read_only else fields.access
    data = fields.encode_part(
        byte_offset=begin - memory.mapping.base, byte_length=length, access=access, layout=_layout_of(described))
    return _Exported(data, (), (described.owner, memory), memory.device, root=memory)


def _export_event(event: Event, peer: '_Connection') -> _Exported:
    own = event._held()
    if own.received is not None:
        fields = own.received[2]
        if _descriptors.decode_known(fields).exporter.pid != peer.pid:
            raise NotSupportedError('this event is of another process: the companion for Python does not pass it on')
        return _Exported(fields, (), own, own.device, root=own)
    handle = _Handle64()
    with own.device:
        _call('cuIpcGetEventHandle', ctypes.byref(handle), own.value)
    made = _Fields(KIND_EVENT, exporter=_self().exporter(own.device), handle=bytes(handle.reserved))
    return _Exported(_descriptors.encode(made), (), own, own.device, root=own)


# ---- What arrives -----------------------------------------------------------------------------------------

# Memory of other processes that is mapped here, by what it is called there and by its address here.
_mappings: Dict[Tuple[Any, ...], _Mapping] = {}
_mapped_at: Dict[int, _Mapping] = {}


def _map(key: Tuple[Any, ...], version: int, make: Callable[[], _Mapping], fds: Sequence[int] = ()) -> _Mapping:
    """Adds a user to a mapping, or makes it, with duplicates of its descriptors."""
    with _mapping_lock:
        mapping = _mappings.get(key)
        if mapping is None:
            kept: List[int] = []
            try:
                kept.extend(map(os.dup, fds))
                mapping = make()
            except BaseException as error:
                _close_fds(kept)
                if isinstance(error, OSError):
                    raise IpcError(f'memory of another process cannot be opened: {error.strerror}') from None
                raise
            mapping.key, mapping.version, mapping.fds = key, version, kept
            _mappings[key] = _mapped_at[mapping.base] = mapping
        elif mapping.version != version:
            raise IpcError('an earlier allocation with the same handle is still open here: close its arrays first')
        mapping.device.releases.start()
        with _lock:
            mapping.users += 1
        return mapping


@contextlib.contextmanager
def _opening(exporter: _descriptors.Exporter) -> Iterator[None]:
    """Says whose memory could not be opened."""
    try:
        yield
    except CudaError as error:
        raise IpcError(f'memory of process {exporter.pid} could not be opened: {error}') from None


def _check_exporter(fields: _Fields, allow_other_users: bool) -> None:
    """Raises IpcError for what cannot be opened here, before the driver is asked."""
    here = _self()
    _, machine, pid, start_time, namespace = fields.exporter
    if machine != here.machine:
        raise IpcError('the descriptor was made on another machine, or before the last boot of this one: '
                       'device memory can only be shared within one machine', 'other-machine')  # fmt: skip
    if namespace != here.namespace or namespace == 0:
        if pid == here.pid and fields.kind in (KIND_LEGACY, KIND_EVENT):
            raise IpcError(f"its exporter has this process's pid number, {pid}, in another pid namespace: the driver "
                           'mistakes it for this process', 'same-pid')  # fmt: skip
        return
    # The descriptors of virtual memory keep it alive themselves.
    if fields.kind != KIND_VIRTUAL and _start_time(pid) != start_time:
        raise IpcError(f'process {pid}, which shared it, has exited', 'exporter-gone')
    if not allow_other_users:
        try:
            user = os.stat(f'/proc/{pid}').st_uid
        except OSError:
            return
        if user != os.geteuid():
            raise IpcError(f'process {pid}, which shared it, runs as user {user}, and this one as user {os.geteuid()}',
                           'other-user')  # fmt: skip


def _map_legacy(fields: _Fields, device: _Device) -> _Mapping:
    size, handle = _size(), _Handle64((ctypes.c_ubyte * 64)(*(fields.handle or b'')))
    with device, _opening(fields.exporter):
        base = _read('cuIpcOpenMemHandle_v2', handle, 1)
        try:
            _call('cuMemGetAddressRange_v2', None, ctypes.byref(size), base)
        except CudaError:
            _cuda().cuIpcCloseMemHandle(base)
            raise
    return _Mapping(device, base, size.value, lambda: _call('cuIpcCloseMemHandle', base))


def _map_virtual(fields: _Fields, device: _Device, fds: Sequence[int], read_only: bool) -> _Mapping:
    size, access = fields.base_byte_length, device.access(_READ if read_only else _READ_WRITE)
    with device:
        base = end = _reserve(size)
        try:
            for fd, length in zip(fds, fields.pieces):
                with _opening(fields.exporter):
                    handle = _read('cuMemImportFromShareableHandle', fd, _POSIX_FD)
                    try:
                        _call('cuMemMap', end, length, 0, handle, 0)
                    finally:
                        _cuda().cuMemRelease(handle)
                    end += length
                    _call('cuMemSetAccess', end - length, length, ctypes.byref(access), 1)
        except BaseException:
            _unmap_virtual(base, end - base, size)
            raise
    return _Mapping(device, base, size, lambda: _unmap_virtual(base, size, size), read_only)


def _unmap_virtual(base: int, mapped: int, size: int) -> None:
    if mapped:
        _cuda().cuMemUnmap(base, mapped)
    _cuda().cuMemAddressFree(base, size)


class _ImportedPool:
    """A pool of another process. It lives as long as its memory here, and the connection."""

    def __init__(self, device: _Device, fd: int, exporter: _descriptors.Exporter) -> None:
        self.device, self.users = device, 1
        device.releases.start()
        with device, _opening(exporter):
            self.handle = _read('cuMemPoolImportFromShareableHandle', fd, _POSIX_FD, 0)
            try:
                _call('cuMemPoolSetAccess', self.handle, ctypes.byref(device.access(_READ_WRITE)), 1)
            except CudaError:
                _cuda().cuMemPoolDestroy(self.handle)
                raise

    def release(self) -> None:
        with _mapping_lock:
            self.users -= 1
            if self.users == 0:
                with self.device:
                    _cuda().cuMemPoolDestroy(self.handle)


def _map_pool(fields: _Fields, pool: _ImportedPool) -> _Mapping:
    with pool.device, _opening(fields.exporter):
        base = _read('cuMemPoolImportPointer', pool.handle, ctypes.create_string_buffer(fields.handle, 64))
        try:
            size = _read('cuPointerGetAttribute', _ATTRIBUTE_RANGE_SIZE, base)
        except CudaError:
            _cuda().cuMemFree_v2(base)
            raise
    pool.users += 1

    def unmap() -> None:
        try:
            _call('cuMemFree_v2', base)
        finally:
            pool.release()

    return _Mapping(pool.device, base, size, unmap)


_libc = ctypes.CDLL(None, use_errno=True)
_SCM_PIDFD, _O_PATH, _HUGETLBFS_MAGIC, _F_SEAL_FUTURE_WRITE = 4, 0o10000000, 0x958458F6, 0x10
_SYS_KCMP, _SYS_STATX = {'x86_64': (312, 332), 'aarch64': (272, 291)}.get(os.uname().machine, (-1, -1))
_NVIDIA_MAJOR, _NULL_MAJOR = 195, 1


def _file_type(fd: int) -> Tuple[int, int]:
    """The type bits of a descriptor's mode, 0 for the kernel's own, and the major number of a device."""
    kind, major, _ = _file_facts(fd)
    return kind, major


def _file_facts(fd: int) -> Tuple[int, int, Tuple[int, int]]:
    """As `_file_type`, and the number of the file system, which the kernel assigns.

    `fstat` would ask the file system, which may be another process's (FUSE) and never reply.
    """
    found = ctypes.create_string_buffer(256)
    # AT_EMPTY_PATH, AT_STATX_DONT_SYNC
    if _SYS_STATX < 0 or _libc.syscall(_SYS_STATX, fd, b'', 0x5000, 0x7FF, found):
        return -1, 0, (0, 0)
    mode, (major, _, *file_system) = struct.unpack_from('<H', found, 28)[0], struct.unpack_from('<4I', found, 128)
    return stat.S_IFMT(mode), major, (file_system[0], file_system[1])


def _is_driver_fd(fd: int) -> bool:
    """Whether a descriptor can be memory of the driver: never hand it a pipe, a file or a terminal."""
    kind, major = _file_type(fd)
    if os.environ.get('CUFFI_DRIVER') == 'emulated':
        return os.readlink(f'/proc/self/fd/{fd}').startswith('/memfd:cuffi.')
    if kind == stat.S_IFCHR:
        return not (1 <= major <= 5 or 136 <= major <= 143)
    return kind == 0


def _is_same_file(a: int, b: int) -> bool:
    """Whether two descriptors are of one open file. The files of the driver all have the same inode."""
    return _SYS_KCMP >= 0 and _libc.syscall(_SYS_KCMP, os.getpid(), os.getpid(), 0, a, b) == 0


def _virtual_key(fields: _Fields, device: _Device, fds: Sequence[int], read_only: bool) -> Tuple[Any, ...]:
    """The name of a mapping. What the sender calls the memory proves nothing: the files are compared."""
    for at in range(1 << 20):
        key = (KIND_VIRTUAL, device.ordinal, fields.memory, fields.first_piece, fields.pieces, read_only, at)
        known = _mappings.get(key)
        if known is None or all(map(_is_same_file, known.fds, fds)):
            return key
    raise IpcError('too many mappings of one name', 'limit-exceeded')


# ---- Connections ------------------------------------------------------------------------------------------

_HEADER, _MAGIC = struct.Struct('<2sBBIIII'), FRAME_MAGIC.encode()
# The value null: what a message without content has.
_NULL = bytes((TAG_NULL,))
# Frames behind the hello.
_KINDS = (FRAME_VALUE, FRAME_CONTROL, FRAME_VERIFICATION, FRAME_REQUEST, FRAME_RESPONSE, FRAME_FAILURE, FRAME_CANCELLATION, FRAME_UNSERVED)
# Control fields that do not come with a value, and what an end may say that it has begun.
_ALONE = (CONTROL_TIMELINE_PAGE, CONTROL_CLOSING, CONTROL_FORWARD_REQUESTS, CONTROL_DONE, CONTROL_BEGUN)
_BEGUN = (BEGUN_RECEIVING, BEGUN_SERVING, BEGUN_RECEIVING | BEGUN_SERVING, BEGUN_SERVING | BEGUN_IGNORING_VALUES)
_PART = PACKET_BYTE_LENGTH - _HEADER.size
_MAX_MESSAGE = MAX_VALUE_BYTE_LENGTH + MAX_TABLE_BYTE_LENGTH + MAX_CONTROL_BYTE_LENGTH
_MAX_POOLS = 1024
_MAX_LIST = 1024
# What a whole frame takes of the room of a socket, with what the system adds, and how much room is wanted.
_FRAME_IN_SOCKET, _WANTED_IN_SOCKET = PACKET_BYTE_LENGTH + 8192, 1 << 20
# A thread that has just received probably receives again, faster than the connection's own thread would.
_IDLE_S = 0.005
_REPAIR_S = 2.0
# The system counts milliseconds in 32 bits.
_MAX_POLL_S = 86_400.0
# How often a wait that has no time left asks another thread that reads to look.
_MAX_LOOKS = 3
# As in Node: only the end of the process tells a crash from a close.
_MAX_EXIT_S = 2.0

_Points = List[Tuple[int, int]]
# A value in bytes, its GPU objects, and points behind the work on them.
_Prepared = Tuple[bytearray, List[_Exported], _Points]


class _NoWords:
    """In place of the words of a closed page: all have ended, and none is written."""

    def __getitem__(self, _: int) -> int:
        return END_OF_WAITS

    def __setitem__(self, _: int, __: int) -> None:
        pass


_NO_WORDS = _NoWords()


class _Page:
    """512 counters in memory that two processes and their GPUs share. One of them writes."""

    def __init__(self, fd: int, byte_length: int = PAGE_BYTE_LENGTH) -> None:
        self._map, self._byte_length, self.word_count = mmap.mmap(fd, byte_length), byte_length, byte_length // 8
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.words: Any = memoryview(self._map).cast('Q')
        self._addresses: Dict[int, int] = {}
        self.arguments = _Arguments(self)
        # For each word what the host still has to store in it, in order.
        self.host_stores: Dict[int, Deque[Tuple[int, _EventHandle, int]]] = {}

    def is_reached(self, points: _Points) -> bool:
        return all(self.reached(index, count) for index, count in points)

    def reached(self, index: int, count: int) -> bool:
        return (self.words[index] - count) & (2**64 - 1) < 2**63

    def _end_host_stores(self) -> None:
        """Stores what the host still has to, when its work is done: others wait for that."""
        for ordinal in self._addresses:
            _all_devices()[ordinal].synchronize()
        for index, pending in list(self.host_stores.items()):
            for count, _, _ in list(pending):
                if not self.reached(index, count):
                    self.words[index] = count

    def address(self, device: _Device, index: int) -> int:
        """The address of a counter for the streams of a device, whose context is current."""
        base = self._addresses.get(device.ordinal)
        if base is None:
            if self.words is _NO_WORDS:
                raise ClosedError('the memory that processes share is closed')
            if not self._addresses:
                # Portable, for all contexts, and mapped.
                _call('cuMemHostRegister_v2', self.host, self._byte_length, 3, doing=f'locking {self._byte_length} bytes')
            try:
                base = self._addresses[device.ordinal] = _read('cuMemHostGetDevicePointer_v2', self.host, 0)
            finally:
                if not self._addresses:
                    _cuda().cuMemHostUnregister(self.host)
        return base + 8 * index

    def close(self) -> None:
        if self.host_stores:
            self._end_host_stores()
        self.words = _NO_WORDS
        self.arguments.clear()
        addresses, self._addresses = self._addresses, {}
        for ordinal in addresses:
            # Streams may still write these words, or wait for them.
            _all_devices()[ordinal].synchronize()
        if addresses:
            with _all_devices()[next(iter(addresses))]:
                _cuda().cuMemHostUnregister(self.host)
        try:
            self._map.close()
        except BufferError:
            pass  # Another thread reads it; it goes with the last reference.


class _Arguments(Dict[_Device, List[ctypes.c_uint64]]):
    """For each device the addresses of words, as the driver takes them: to convert them takes longer than a call."""

    def __init__(self, words: _Page) -> None:
        self._words = weakref.proxy(words)

    def __missing__(self, device: _Device) -> List[ctypes.c_uint64]:
        with device:
            base = self._words.address(device, 0)
        self[device] = [_u64(base + at) for at in range(0, self._words.word_count * 8, 8)]
        return self[device]


def _again(error: Any) -> Any:
    """A copy of an error: a kept one that is raised would keep the frames that it passes, and what they hold."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again


class _Signals:
    """Puts off the signals of the main thread while it changes a connection: their handlers may raise at any instruction.

    What waits calls `check`, where those run that came meanwhile; the rest run at the end.
    """

    # Those that programs handle in Python.
    _NUMBERS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGALRM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: Dict[int, Any] = {}
        self._came: List[Tuple[Any, int, Any]] = []
        self._wake: Optional[Callable[[], None]] = None
        self._put_off = self._on_signal

    def _is_elsewhere(self) -> bool:
        """Handlers run only in the main thread."""
        return threading.get_ident() != threading.main_thread().ident

    def __enter__(self) -> None:
        if self._is_elsewhere():
            return
        if not self._depth:
            get = _signal.getsignal
            self._handlers = handlers = {
                number: handler for number, handler in [(number, get(number)) for number in self._NUMBERS] if callable(handler)}
            try:
                for number in handlers:
                    _signal.signal(number, self._put_off)
            except BaseException:
                self._restore(list(handlers))
                raise
        self._depth += 1

    def __exit__(self, *_: Any) -> None:
        if self._is_elsewhere():
            return
        if self._depth > 1:
            self._depth -= 1
            return
        # Its last instruction that a handler cannot end is the first one here that sets one back.
        self._depth = 0
        self._restore(list(self._handlers))
        self._deliver()

    def abandon(self) -> None:
        """In a child by fork: the call that has put them off is another thread's, which the child has not."""
        self._depth, self._came, self._wake = 0, [], None
        self._restore(list(self._handlers))

    def _restore(self, numbers: List[int]) -> None:
        if numbers:
            try:
                # A handler that has run may have set another one.
                if _signal.getsignal(numbers[-1]) is self._put_off:
                    _signal.signal(numbers[-1], self._handlers[numbers[-1]])
            finally:
                self._restore(numbers[:-1])

    def _on_signal(self, number: int, frame: Any) -> None:
        self._came.append((self._handlers.get(number), number, frame))
        if self._wake:
            self._wake()

    def check(self) -> None:
        """Runs the handlers of what came. They may raise."""
        if self._came and not self._is_elsewhere():
            self._deliver()

    def _deliver(self) -> None:
        if self._came:
            handler, number, frame = self._came.pop(0)
            try:
                if handler:
                    handler(number, frame)
            finally:
                self._deliver()

    def wake_by(self, wake: Optional[Callable[[], None]]) -> Optional[Callable[[], None]]:
        """Has `wake` called when a signal comes, as to end a poll: in the middle of any work. Returns what was called before."""
        if self._is_elsewhere():
            return None
        before, self._wake = self._wake, wake
        return before


_signals = _Signals()


class _Slot:
    """Somebody who waits for a value or an answer: a thread, or the future of an event loop."""

    def __init__(self, is_async: bool = False) -> None:
        self.is_done = False
        self.result: Any = None
        self._loop = asyncio.get_running_loop() if is_async else None
        self.future: Optional['asyncio.Future[None]'] = self._loop.create_future() if self._loop else None

    def settle(self, result: Any) -> None:
        if self.is_done:
            return
        self.is_done, self.result = True, result
        if self._loop:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # The loop is closed: nobody waits any more.

    def _wake(self) -> None:
        if self.future and not self.future.done():
            self.future.set_result(None)

    def take(self) -> Any:
        if isinstance(self.result, Exception):
            raise _again(self.result)
        return self.result


class _Control:
    """A control block, read up to the end of a message."""

    __slots__ = ('has_page', 'points', 'released', 'revoked', 'is_closing', 'forwards', 'closed_pools', 'is_done', 'begun')

    def __init__(self, reader: _Reader, fd_count: Optional[int]) -> None:
        """:param fd_count: how many descriptors came with it, if it came alone; None behind a value"""
        self.has_page = self.is_closing = self.is_done = False
        self.points: _Points = []
        self.released: List[Tuple[int, bool, _Points]] = []
        self.revoked: List[int] = []
        self.forwards: List[Tuple[int, int, int]] = []
        self.closed_pools: List[bytes] = []
        self.begun = last = 0
        begin, is_alone = reader.at, fd_count is not None
        while reader.at < reader.end:
            field = reader.byte()
            if field <= last or (field in _ALONE and not is_alone) or (field == CONTROL_POINTS and is_alone):
                raise IpcError(f'the control field {field} is not allowed here')
            last = field
            if field == CONTROL_TIMELINE_PAGE:
                self.has_page = True
            elif field == CONTROL_POINTS:
                self.points = reader.points()
            elif field == CONTROL_RELEASED:
                self._read_releases(reader)
            elif field == CONTROL_REVOKED:
                self.revoked = [reader.number() for _ in range(_list_length(reader, 8))]
            elif field == CONTROL_CLOSING:
                self.is_closing = True
            elif field == CONTROL_FORWARD_REQUESTS:
                count = _list_length(reader, 24)
                self.forwards = [(reader.number(), reader.number(), reader.number()) for _ in range(count)]
            elif field == CONTROL_CLOSED_POOLS:
                self.closed_pools = [reader.take(ID_BYTE_LENGTH) for _ in range(_list_length(reader, ID_BYTE_LENGTH))]
            elif field == CONTROL_DONE:
                self.is_done = True
            elif field == CONTROL_BEGUN:
                self.begun = reader.byte()
                if self.begun not in _BEGUN:
                    raise IpcError(f'{self.begun} does not say what an end has begun')
            else:
                raise IpcError(f'unknown control field {field}')
        if self.has_page and reader.end - begin > 1:
            raise IpcError('a page of counters came with something else')
        expected = self.has_page + len(self.forwards)
        if is_alone and fd_count != expected:
            raise IpcError(f'received {fd_count} descriptors with a control message that has {expected}')

    def _read_releases(self, reader: _Reader) -> None:
        point_count = 0
        for _ in range(_list_length(reader, 10)):
            self.released.append((reader.number(), reader.flag(), reader.points()))
            point_count += len(self.released[-1][2])
            if point_count > MAX_RELEASE_POINTS:
                raise _limit_exceeded(f'a message releases leases behind more than {MAX_RELEASE_POINTS} points')


class _Outgoing:
    """A message that is sent, in frames. It gets its number with its first one: until then it can be taken back."""

    __slots__ = ('kind', 'request', 'body', 'at', 'fds', 'owned', 'slot', 'leases', 'releases', 'shares')

    def __init__(self, kind: int, request: int, body: Union[bytes, bytearray], fds: Sequence[int], owned: Sequence[int],
                 slot: Optional[_Slot]) -> None:  # fmt: skip
        """:param owned: those of the descriptors that are closed when they were sent"""
        self.kind, self.request, self.body, self.at, self.fds, self.owned, self.slot = kind, request, body, 0, fds, owned, slot
        # What comes with it: the leases of its objects, whose each of `owned` is, and releases of others.
        self.leases: Sequence[int] = ()
        self.shares: List[Tuple[_Exported, List[int]]] = []
        self.releases: List[Tuple[int, bool, _Points]] = []


class _Later:
    """A message that is sent when work is done."""

    __slots__ = ('prepared', 'devices', 'post', 'posted', 'on_error')

    def __init__(self, post: Callable[[_Prepared], Any], on_error: Callable[[Exception], None]) -> None:
        # None again when it was sent, or given up.
        self.prepared: Optional[_Prepared] = None
        self.devices: List[_Device] = []
        self.post, self.on_error, self.posted = post, on_error, None


class _Arrived:
    """A value that has arrived. Its GPU objects are opened when somebody takes it."""

    __slots__ = ('connection', 'kind', 'request', 'value', 'places', 'objects', 'points', 'events', 'size', 'fd_count', 'refusal',
                 'is_cut')  # fmt: skip

    def __init__(self, connection: '_Connection', kind: int, request: int, size: int) -> None:
        self.connection, self.kind, self.request, self.size, self.fd_count = connection, kind, request, size, 0
        self.value: Any = None
        # None: the value is the object. A function would keep this object, and this object it.
        self.places: List[Optional[Put]] = []
        self.objects: List[Tuple[bytes, List[int], int]] = []
        # What the host waits for: points and events of the sender.
        self.points: _Points = []
        self.events: List[Event] = []
        self.refusal: Optional[Tuple[str, str]] = None
        # Whether no descriptor was left for those of its objects.
        self.is_cut = False

    def take(self) -> Any:
        """Returns the value, which only its receiver keeps from now on."""
        value, self.value, self.places = self.value, None, []
        return value

    def __del__(self) -> None:
        """Gives back what nobody has taken. It may run anywhere, as while this thread sends."""
        if _is_exiting is False:
            for _, fds, lease in self.objects:
                _close_fds(fds)
                self.connection.give_back_later(lease, None, None)


class _Connection:
    """One end of a connection. Whoever waits reads it; its own thread does while nobody waits."""

    def __init__(self, sock: socket.socket, allow_other_users: bool) -> None:
        _start_closing()
        self.pid, self.uid, self.gid = _credentials(sock)
        self.name = f'process {self.pid}' if self.pid else 'a process of another pid namespace'
        self._allow_other_users = allow_other_users
        self._socket, self._fd = sock, sock.fileno()
        sock.setblocking(False)
        # The system gives what it allows.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WANTED_IN_SOCKET)
        self._socket_size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._cond = threading.Condition(threading.RLock())
        self._wake_lock = threading.RLock()
        self._poll = select.poll()
        self._poll_events = 0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake_read, select.POLLIN)
        self._pidfd = self._watch_process()
        self._started = _start_time(self.pid) if self.pid else 0
        # Who reads.
        self._is_read = self._is_read_by_own_thread = self._is_kicked = False
        self._waiting, self._last_wait = 0, 0.0
        # The end.
        self.end: Optional[Exception] = None
        self._is_closing = self._is_closed_here = self._is_socket_closed = self._is_gone = self._is_dropped = False
        # A parent learns how this process exits.
        self._is_of_parent = False
        # Until when the end of the process may follow that of its socket.
        self._gone_until: Optional[float] = None
        # Whether the other end has said which versions it speaks: it does so as soon as it exists.
        self._has_met = False
        # Messages.
        self._sent = self._received = 0
        self._parts: List[bytes] = []
        self._part_header: Tuple[int, ...] = ()
        self._part_fds: List[int] = []
        self._is_part_cut = False
        self._outgoing: Deque[_Outgoing] = collections.deque()
        # What is sent when work is done.
        self._later: Deque[_Later] = collections.deque()
        self._unsent: List[_Slot] = []
        self._values: Deque[_Arrived] = collections.deque()
        self._value_slots: Deque[_Slot] = collections.deque()
        self._requests: Deque[_Arrived] = collections.deque()
        self._request_slots: Deque[_Slot] = collections.deque()
        self._queued_bytes = self._queued_fds = self._request_bytes = 0
        self._canceled: set = set()
        self._unanswered: set = set()
        # For each request whose handler is a task: what cancels that.
        self._cancels: Dict[int, Callable[[], None]] = {}
        self._asked: Dict[int, _Slot] = {}
        self._last_question = 0
        # What each end has begun; how many threads wait for what; sends whose values may never be received.
        self._begun = self._peer_begun = 0
        self._waiting_for = {0: 0, FRAME_VALUE: 0, FRAME_REQUEST: 0}
        self._unconfirmed: List[_Slot] = []
        self._stuck_until: Optional[float] = None
        # What each end holds of the other.
        self._exports: Dict[int, _Exported] = {}
        self._next_export = self._next_import = 0
        self._imports: Dict[int, Optional['weakref.ref[_ReceivedMemory]']] = {}
        self._links: Dict[int, int] = {}
        self._revoked: set = set()
        self._forwarded: Dict[int, Tuple[socket.socket, _Exported]] = {}
        self._pools: Dict[bytes, _ImportedPool] = {}
        # Descriptors of pools that were not opened yet: each comes once.
        self._pool_fds: Dict[bytes, int] = {}
        self._given_back: Deque[Tuple[int, Optional[_Mapping], Optional[int]]] = collections.deque()
        self._behind_streams: List[Tuple[_Points, int, _Mapping]] = []
        self._releases: List[Tuple[int, bool, _Points]] = []
        # Order.
        self._page: Optional[_Page] = None
        self._page_fd = -1
        self._counters: Dict[Tuple[int, int], List[int]] = {}
        self._peer_page: Optional[_Words] = None
        self._is_peer_page_fixed = True
        self._awaited: Dict[int, int] = {}
        self._held: _Points = []
        self._after_hold: List[int] = []
        self._thread = threading.Thread(target=self._run, name=f'cuffi {self.name}', daemon=True)
        self._say_hello()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._close_own_fds()
            raise IpcError(f'a connection needs a thread: {error}') from None
        _connections.add(self)

    def _watch_process(self) -> int:
        """A descriptor of the other process, unlike whose number it never comes to mean another one."""
        try:
            pidfd = struct.unpack('i', self._socket.getsockopt(socket.SOL_SOCKET, 77, 4))[0]  # SO_PEERPIDFD
        except OSError:
            try:
                pidfd = os.pidfd_open(self.pid) if self.pid else -1
            except (AttributeError, OSError):
                pidfd = -1
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)
        # Without one, for lack of the system or as the process is gone, the socket tells.
        return pidfd

    def end_of_process(self) -> int:
        """A new descriptor that can be read once the other process has ended; -1 if it has. Raises OSError if there is none."""
        with self._wake_lock:
            if self._pidfd >= 0:
                return os.dup(self._pidfd)
        if self._is_gone:
            return -1
        if not self._started or not hasattr(os, 'pidfd_open'):
            raise OSError(errno.ENOSYS, 'the end of the process cannot be observed')
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return -1
        # The number may have come to be that of another process.
        if _start_time(self.pid) == self._started:
            return pidfd
        os.close(pidfd)
        return -1

    def _close_own_fds(self) -> None:
        with self._wake_lock:
            fds = (self._page_fd, self._pidfd, self._wake_read, self._wake_write)
            self._page_fd = self._pidfd = self._wake_read = self._wake_write = -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    # ---- Reading ----

    def wait(self, is_done: Callable[[], bool], deadline: _Deadline, what: Any, kind: int = 0) -> None:
        """Waits in this thread, and reads meanwhile. Raises TimeoutError.

        :param kind: FRAME_VALUE or FRAME_REQUEST, if that is what it waits for
        """
        begun, cond, looks = time.monotonic(), self._cond, 0
        with _signals:
            wake = _signals.wake_by(self._kick)
            if kind:
                self.begin(kind)
            with cond:
                self._waiting += 1
                self._waiting_for[kind] += 1
                if self._is_read and (self._are_requests_stuck() or self._are_values_stuck()):
                    # The thread that reads must refuse them in time.
                    self._kick()
            try:
                while True:
                    _signals.check()
                    with cond:
                        if is_done():
                            return
                        left = deadline.left_or_none()
                        if left is None and looks >= _MAX_LOOKS:
                            deadline.left(what)
                        if self._is_read or self._is_socket_closed:
                            if self._is_read_by_own_thread or left is None:
                                self._kick()
                            looks += left is None
                            cond.wait(0.01 if left is None else min(left, 0.05))
                            continue
                        self._is_read = True
                    try:
                        # What has arrived is looked at even if no time is left.
                        if not self._step(left or 0) and left is None:
                            looks = _MAX_LOOKS
                    finally:
                        with cond:
                            self._is_read = False
                            if self._waiting > 1:
                                # It may have come for them.
                                cond.notify_all()
            finally:
                _signals.wake_by(wake)
                with cond:
                    self._waiting -= 1
                    self._waiting_for[kind] -= 1
                    self._last_wait = time.monotonic()
                    if self._waiting or self._last_wait - begun > 0.02:
                        cond.notify_all()

    def _run(self) -> None:
        """Reads while nobody waits, so that what the other end gives back is freed."""
        cond = self._cond
        while True:
            with cond:
                if self._is_over():
                    break
                if self._is_dropped and not self._is_closed_here:
                    self.close()
                if (self._given_back or self._is_closing) and not self._is_read:
                    self._last_wait = 0.0
                is_awaited = any(slot.future for slot in (*self._value_slots, *self._request_slots, *self._asked.values()))
                rest = 0.05 if self._is_read or self._waiting else self._last_wait + _IDLE_S - time.monotonic()
                if rest > 0 and not (is_awaited and not self._is_read and not self._waiting):
                    cond.wait(rest)
                    continue
                self._is_read = self._is_read_by_own_thread = True
            try:
                self._step(math.inf)
            except Exception as error:  # What another process sends must not end this thread without a word.
                self.fail(IpcError(f'the connection to {self.name} was closed: {error}'))
            finally:
                with cond:
                    self._is_read = self._is_read_by_own_thread = False
                    cond.notify_all()
        self._discard()

    def _kick(self) -> None:
        """Ends the poll of the thread that reads."""
        # Its number may come to be that of another file: nobody closes it meanwhile.
        with self._wake_lock:
            if self._wake_write >= 0 and not self._is_kicked:
                self._is_kicked = True
                os.write(self._wake_write, b'\0')

    def _step(self, timeout: float) -> bool:
        """Waits for one thing to happen, and handles it. Returns whether something has. Only the thread that reads calls this."""
        if self._held and (self._is_gone or (self._peer_page and self._peer_page.is_reached(self._held))):
            with self._cond:
                self._held = []
                leases, self._after_hold = self._after_hold, []
                for lease in leases:
                    self._exports.pop(lease, None)
        if self._given_back:
            self.give_back()
        if self._releases:
            with self._cond:
                self._send_releases()
        if self._stuck_until is not None or self._requests or self._values:
            self._watch_stuck()
        if self._gone_until is not None or self._stuck_until is not None:
            until = min(each for each in (self._gone_until, self._stuck_until) if each is not None)
            timeout = max(0.0, min(timeout, until - time.monotonic()))
        milliseconds = None if timeout == math.inf else math.ceil(min(timeout, _MAX_POLL_S) * 1000)
        if self._held or self._behind_streams:
            time.sleep(0.0001)
            milliseconds = 0
        self._register()
        events = self._poll.poll(milliseconds)
        with self._cond:
            for fd, event in events:
                if fd == self._wake_read:
                    with self._wake_lock:
                        os.read(fd, 4096)
                        self._is_kicked = False
                elif fd == self._fd:
                    if event & select.POLLOUT:
                        self._flush()
                    if event & ~select.POLLOUT and not self._is_socket_closed:
                        self._read()
                elif fd == self._pidfd:
                    self._on_gone()
                elif fd in self._forwarded:
                    self._poll.unregister(fd)
                    _close_fds([self._forwarded.pop(fd)[0].detach()])
            if self._gone_until is not None and time.monotonic() >= self._gone_until:
                self._on_closed()
            if self._stuck_until is not None and time.monotonic() >= self._stuck_until:
                self._refuse_stuck()
            self._close_if_unused()
        self.give_back()
        return bool(events)

    def _register(self) -> None:
        if self._is_socket_closed:
            return
        is_full = not self._is_closing and (
            len(self._values) >= MAX_QUEUED_VALUES
            or self._queued_bytes >= MAX_QUEUED_BYTE_LENGTH
            or self._queued_fds >= MAX_QUEUED_FDS
        )
        is_held = is_full or self._held or self._gone_until is not None
        events = (0 if is_held else select.POLLIN) | (select.POLLOUT if self._outgoing else 0)
        if events == self._poll_events:
            return
        # A socket without events would still report its end, over and over.
        if events and self._poll_events:
            self._poll.modify(self._fd, events)
        elif events:
            self._poll.register(self._fd, events)
        else:
            self._poll.unregister(self._fd)
        self._poll_events = events

    def _read(self) -> bool:
        """Reads one frame. Returns False if there is none."""
        try:
            data, controls, flags, _ = self._socket.recvmsg(PACKET_BYTE_LENGTH + 1, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            # It is told first that the other end has not read all; then comes what that end has sent.
            return True
        except OSError:
            data, controls, flags = b'', [], 0
        fds = _received_fds(controls)
        try:
            if flags & socket.MSG_TRUNC:
                raise IpcError('received a message that is too long')
            # There is room for as many descriptors as the kernel sends, but this process has none left for them.
            is_cut = flags & socket.MSG_CTRUNC != 0
            if is_cut:
                _close_fds(fds)
                fds.clear()
            if data:
                self._on_frame(data, fds, is_cut)
                return True
            self._on_socket_end()
        except BaseException as error:
            _close_fds(fds)
            what = error if isinstance(error, CuffiError) else f'it has sent what cannot be read: {error!r}'
            code = error.code if isinstance(error, IpcError) else 'ipc-failed'
            self.fail(IpcError(f'the connection to {self.name} was closed: {what}', code))
            if not isinstance(error, Exception):
                raise
        return False

    def _on_frame(self, data: bytes, fds: List[int], is_cut: bool) -> None:
        """Puts frames together. Takes the descriptors out of the list when they have another owner."""
        if len(data) <= _HEADER.size or len(data) > PACKET_BYTE_LENGTH:
            raise IpcError(f'a frame has {len(data)} bytes')
        magic, version, kind, number, length, offset, request = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise IpcError('not a cuffi frame (wrong magic number)')
        if not self._has_met:
            is_plain = (number, length, offset, request) == (0, len(data) - _HEADER.size, 0, 0)
            self._meet(version, kind, data[_HEADER.size :], is_plain)
            _close_fds(fds)
            fds.clear()
            return
        if version != MAX_VERSION:
            raise IpcError(f'a frame is of version {version}, although both ends speak {MAX_VERSION}')
        part, had = data[_HEADER.size :], sum(map(len, self._parts))
        header = (kind, number, length, request)
        if number != self._received or offset != had or (had and header != self._part_header):
            raise IpcError(f'received byte {offset} of message {number} instead of byte {had} of message {self._received}')
        if kind not in _KINDS or (request > 0) != (kind > FRAME_CONTROL):
            raise IpcError(f'a frame of kind {kind} has the request number {request}')
        if length > _MAX_MESSAGE:
            raise _limit_exceeded(f'a message of {length} bytes is too large')
        if len(part) != min(_PART, length - offset) or (kind == FRAME_CONTROL and len(part) != length):
            raise IpcError(f'a frame has {len(part)} bytes of a message of {length}: too few or too many')
        if offset and fds:
            raise IpcError('received descriptors in the middle of a message')
        if not offset:
            self._part_fds, self._is_part_cut = list(fds), is_cut
            fds.clear()
        self._parts.append(part)
        self._part_header = header
        if had + len(part) < length:
            return
        body = b''.join(self._parts) if had else part
        self._parts = []
        self._received = (number + 1) & 0xFFFFFFFF
        own, self._part_fds = self._part_fds, []
        try:
            self._on_message(kind, request, body, own, self._is_part_cut)
        except BaseException:
            _close_fds(own)
            raise

    def _say_hello(self) -> None:
        text = bytes((MIN_VERSION, MAX_VERSION)) + _package().encode('utf-8', 'replace')[:MAX_PACKAGE_NAME_BYTE_LENGTH]
        try:
            self._socket.send(_HEADER.pack(_MAGIC, MAX_VERSION, FRAME_HELLO, 0, len(text), 0, 0) + text, socket.MSG_NOSIGNAL)
        except OSError:
            pass  # It is gone. What it has left is still read.

    def _meet(self, version: int, kind: int, content: bytes, is_plain: bool) -> None:
        """Takes the first frame of the other end: the versions that it speaks, and what it is.

        :param is_plain: whether all other numbers of the header are 0 but the length
        """
        if kind != FRAME_HELLO and version < _OLDEST_WITH_HELLO:
            raise self._other_version(version, version, None)
        is_whole = kind == FRAME_HELLO and is_plain and 2 <= len(content) <= 2 + MAX_PACKAGE_NAME_BYTE_LENGTH
        if not is_whole or content[1] < content[0]:
            raise IpcError('the other end did not say first which versions of the protocol it speaks')
        if _choose_version((content[0], content[1]), (MIN_VERSION, MAX_VERSION)) is None:
            raise self._other_version(content[0], content[1], content[2:])
        self._has_met = True

    def _other_version(self, least: int, most: int, theirs: Optional[bytes]) -> IpcError:
        there = '' if theirs is None else f'There: {_printable(theirs)}. '
        return IpcError(f'the other end speaks {_versions(least, most)} of the protocol, '
                        f'this one {_versions(MIN_VERSION, MAX_VERSION)}. {there}Here: {_package()}. '
                        + _install.remedy(_package(), theirs, least > MAX_VERSION), 'version-mismatch')  # fmt: skip

    def _on_message(self, kind: int, request: int, body: bytes, fds: List[int], is_cut: bool) -> None:
        reader = _Reader(body)
        if kind == FRAME_CONTROL:
            # Without the counters of the other end, or a link of a third process, order and memory are not safe.
            if is_cut:
                raise IpcError(_NO_ROOM, 'limit-exceeded')
            self._apply_control(reader, fds, True)
            return
        arrived = _Arrived(self, kind, request, len(body))
        decoder = _Decoder(reader)
        arrived.value = decoder.read(None)
        arrived.places, arrived.refusal, arrived.is_cut = decoder.places, decoder.refusal, is_cut
        if reader.at > (MAX_VERIFICATION_BYTE_LENGTH if kind == FRAME_VERIFICATION else MAX_VALUE_BYTE_LENGTH):
            raise _limit_exceeded(f'a value of {reader.at} bytes is too large')
        entries = self._read_table(reader, len(arrived.places)) if arrived.places else []
        if reader.end - reader.at > MAX_CONTROL_BYTE_LENGTH:
            raise _limit_exceeded('a control block is too large')
        if not is_cut and sum(count + has_link for _, count, has_link, _ in entries) != len(fds):
            raise IpcError(f'received {len(fds)} descriptors with a value that has others')
        arrived.points = self._apply_control(reader, fds, False)
        if arrived.points and self._peer_page is None:
            raise IpcError('received points before their page')
        for data, count, has_link, lease in entries:
            self._imports[lease] = None
            self._next_import = lease + 1
            own, fds[:count] = fds[:count], []
            arrived.objects.append((data, own, lease))
            if is_cut:
                continue
            arrived.fd_count += count
            if has_link:
                self._links[lease] = fds.pop(0)
            if count == 1 and data[:1] == bytes((KIND_POOL,)):
                self._keep_pool(_descriptors.pool_of(data), own)
        self._deliver(arrived)

    def _read_table(self, reader: _Reader, count: int) -> List[Tuple[bytes, int, bool, int]]:
        begin, first = reader.at, reader.number()
        if first < self._next_import or first + count > _SAFE:
            raise IpcError(f'lease {first} was sent after lease {self._next_import - 1}, or a second time')
        entries = []
        for at in range(count):
            own, has_link, length = reader.length(0), reader.flag(), reader.length()
            if length > MAX_OBJECT_BYTE_LENGTH:
                raise _limit_exceeded(f'a descriptor of {length} bytes is too long')
            entries.append((reader.take(length), own, has_link, first + at))
            if reader.at - begin > MAX_TABLE_BYTE_LENGTH:
                raise _limit_exceeded('a table of objects is too long')
        return entries

    def _keep_pool(self, name: bytes, fds: List[int]) -> None:
        """Keeps the descriptor of a pool, which later memory of it needs also if this is never opened."""
        if name not in self._pools and name not in self._pool_fds:
            if len(self._pools) + len(self._pool_fds) >= _MAX_POOLS:
                raise IpcError(f'more than {_MAX_POOLS} memory pools came over one connection', 'limit-exceeded')
            self._pool_fds[name] = fds.pop()

    def _deliver(self, arrived: _Arrived) -> None:
        kind, request = arrived.kind, arrived.request
        if self.end is not None:
            self.discard(arrived)
        elif kind == FRAME_VALUE:
            self.offer(arrived)
        elif kind == FRAME_REQUEST:
            self._on_request(arrived)
        elif kind in (FRAME_RESPONSE, FRAME_FAILURE):
            slot = self._asked.pop(request, None)
            if slot is None:
                raise IpcError(f'received an answer to request {request}, which was not made')
            if slot.is_done:
                self.discard(arrived)  # Given up.
            else:
                slot.settle(arrived)
        elif kind == FRAME_UNSERVED and not arrived.objects and arrived.value is None:
            slot = self._asked.pop(request, None)
            if slot is None:
                raise IpcError(f'received a refusal of request {request}, which was not made')
            slot.settle(IpcError(f'{self.name} serves no requests: it waits for values and has never called serve(). '
                                 'Serve there, or send values', 'not-served'))  # fmt: skip
        elif kind == FRAME_CANCELLATION and not arrived.objects and arrived.value is None:
            # Handlers of threads may ask; what waits is not begun.
            if request in self._unanswered:
                self._canceled.add(request)
                cancel = self._cancels.get(request)
                if cancel:
                    cancel()
        elif kind == FRAME_VERIFICATION and not arrived.objects:
            self._on_verification(request)
        else:
            raise IpcError(f'received a message of kind {kind} that is none')

    def _on_verification(self, request: int) -> None:
        """Answers at once, as nothing waits for a handler."""
        self._check_number(request)
        # Its answers count as pending until they are sent, for an end that asks and does not read.
        if len(self._outgoing) >= MAX_PENDING_REQUESTS:
            if sum(message.kind == FRAME_FAILURE for message in self._outgoing) >= MAX_PENDING_REQUESTS:
                raise IpcError(f'{MAX_PENDING_REQUESTS} answers wait to be sent, and nobody there reads them', 'limit-exceeded')
        error = IpcError('the companion for Python confirms no descriptors', 'not-supported')
        self._post(FRAME_FAILURE, _encoded(error), request=request)

    def _check_number(self, request: int) -> None:
        if request in self._unanswered:
            raise IpcError(f'received request {request} a second time')

    def _on_request(self, arrived: _Arrived) -> None:
        self._check_number(arrived.request)
        self._request_bytes += arrived.size
        if len(self._requests) >= MAX_PENDING_REQUESTS or self._request_bytes > MAX_PENDING_REQUEST_BYTE_LENGTH:
            raise IpcError('too many requests wait to be served', 'limit-exceeded')
        self._unanswered.add(arrived.request)
        self.offer(arrived)

    def offer(self, arrived: _Arrived, is_first: bool = False) -> None:
        """Gives a value or request to somebody who waits for one, or queues it: `is_first` if it was taken already."""
        is_value = arrived.kind == FRAME_VALUE
        slots, queued = (self._value_slots, self._values) if is_value else (self._request_slots, self._requests)
        while slots:
            slot = slots.popleft()
            if not slot.is_done:
                slot.settle(arrived)
                return
        if not self._is_closed_here:
            queued.insert(0 if is_first else len(queued), arrived)
            if is_value:
                self._queued_bytes += arrived.size + 4096 * len(arrived.objects)
                self._queued_fds += arrived.fd_count
        self._cond.notify_all()

    def _apply_control(self, reader: _Reader, fds: List[int], is_alone: bool) -> _Points:
        """Applies a control block, up to the end of the message. Returns the points of the value."""
        control = _Control(reader, len(fds) if is_alone else None)
        if control.has_page:
            self._accept_page(fds[0])
            fds.clear()
        self._apply_releases(control.released)
        self._apply_revocations(control.revoked)
        if control.forwards:
            self._apply_forwards(control.forwards, fds)
        for name in control.closed_pools:
            fd, pool = self._pool_fds.pop(name, -1), self._pools.pop(name, None)
            _close_fds([fd] if fd >= 0 else [])
            if pool:
                pool.device.releases.add(pool.release)
        if control.begun:
            self._on_peer_begun(control.begun)
        if control.is_closing or control.is_done:
            self._begin_closing(ClosedError(f'this Peer is closed: {self.name} has closed the connection'))
        if control.is_done:
            self._exports.clear()
        return control.points

    def _apply_releases(self, released: Sequence[Tuple[int, bool, _Points]]) -> None:
        for lease, is_final, points in released:
            exported = self._exports.get(lease)
            if exported is None:
                raise IpcError(f'lease {lease} was released, but is not in use')
            if points and self._peer_page is None:
                raise IpcError('received points before their page')
            if points and not self._peer_page.is_reached(points):  # type: ignore[union-attr]
                # What follows must not overtake the other end's work.
                try:
                    is_ordered = exported.stream is not None and self._let_wait(exported.device, exported.stream, points)
                except CudaError:
                    is_ordered = False  # The stream may be gone, or the context lost.
                if not is_ordered:
                    self._held += points
            if is_final and self._held:
                self._after_hold.append(lease)
            elif is_final:
                del self._exports[lease]

    def _apply_revocations(self, leases: List[int]) -> None:
        for lease in leases:
            if lease >= self._next_import:
                raise IpcError(f'lease {lease} was revoked, but was never sent')
            found = self._imports.get(lease)
            memory = found() if found else None
            if memory:
                memory.revoked_by = self.name
            elif lease in self._imports:
                self._revoked.add(lease)

    def _apply_forwards(self, asked: Sequence[Tuple[int, int, int]], fds: List[int]) -> None:
        """Keeps objects for third processes: until those close their ends of the links."""
        if len(self._forwarded) + len(asked) > 2048:
            raise IpcError('received links for other objects than were passed on')
        for at, (lease, _, _) in enumerate(asked):
            exported = self._exports.get(lease)
            fd = fds[at]
            if exported is None or _file_type(fd)[0] != stat.S_IFSOCK:
                raise IpcError(f'lease {lease} was passed on without a link, or is not in use')
            link = socket.socket(fileno=os.dup(fd))
            is_link = link.type == socket.SOCK_SEQPACKET and link.family == socket.AF_UNIX
            if not is_link or _credentials(link)[0] != self.pid:
                _close_fds([link.detach()])
                raise IpcError(f'lease {lease} was passed on with a link that {self.name} has not made')
            self._forwarded[link.fileno()] = (link, exported)
            self._poll.register(link.fileno(), select.POLLIN)
            try:
                link.send(b'\x01', socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                pass  # It is gone, and its end of the link: the poll tells.
        _close_fds(fds)

    # ---- What each end has begun ----

    def begin(self, kind: int) -> None:
        """Tells the other end that this one receives values, or serves requests. Call it before it waits for any."""
        what = BEGUN_RECEIVING if kind == FRAME_VALUE else BEGUN_SERVING
        if not self._begun & what:
            with self._cond:
                begun = self._begun | what
                self._tell_begun(begun & ~BEGUN_IGNORING_VALUES if begun & BEGUN_RECEIVING else begun)

    def _tell_begun(self, begun: int) -> None:
        self._begun = begun
        if self.end is None:
            self._post(FRAME_CONTROL, bytes((CONTROL_BEGUN, begun)))

    def _watch_stuck(self) -> None:
        with self._cond:
            if not (self._are_requests_stuck() or self._are_values_stuck()):
                self._stuck_until = None
            elif self._stuck_until is None:
                self._stuck_until = time.monotonic() + READINESS_WAIT_MS / 1000

    def _is_waiting_for(self, kind: int) -> bool:
        slots = self._value_slots if kind == FRAME_VALUE else self._request_slots
        return self._waiting_for[kind] > 0 or any(not slot.is_done for slot in slots)

    def _are_requests_stuck(self) -> bool:
        """Whether requests wait for an end that waits for values, and has never served."""
        return not self._begun & BEGUN_SERVING and bool(self._requests) and not self._values and self._is_waiting_for(FRAME_VALUE)

    def _are_values_stuck(self) -> bool:
        """Whether values wait for an end that waits for requests, and has never received."""
        return self._begun == BEGUN_SERVING and bool(self._values) and not self._unanswered and self._is_waiting_for(FRAME_REQUEST)

    def _refuse_stuck(self) -> None:
        self._stuck_until = None
        if self._are_values_stuck():
            self._tell_begun(self._begun | BEGUN_IGNORING_VALUES)
        while self._requests and self._are_requests_stuck():
            arrived = self._requests.popleft()
            self._request_bytes -= arrived.size
            self._unanswered.discard(arrived.request)
            self._canceled.discard(arrived.request)
            self.discard(arrived)
            if self.end is None:
                self._post(FRAME_UNSERVED, _NULL, request=arrived.request)

    def _on_peer_begun(self, begun: int) -> None:
        self._peer_begun = begun
        if begun & BEGUN_RECEIVING:
            self._confirm(None)
        elif begun & BEGUN_IGNORING_VALUES:
            error = self._not_received()
            self._confirm(error)
            for message in self._outgoing:
                # It is still sent, but nobody receives it.
                if message.slot:
                    message.slot.settle(error)

    def _confirm(self, result: Optional[Exception]) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for slot in unconfirmed:
            slot.settle(result)
        self._cond.notify_all()

    def _not_received(self) -> IpcError:
        return IpcError(f'{self.name} receives no values: it serves requests and has never called receive(). '
                        'Receive there, or send requests', 'not-received')  # fmt: skip

    def hint(self, kind: int) -> str:
        """Why a value or a request may still wait, for its time-out."""
        begun = self._peer_begun
        name, what = ('receive', BEGUN_RECEIVING) if kind == FRAME_VALUE else ('serve', BEGUN_SERVING)
        if kind == FRAME_REQUEST and begun & BEGUN_IGNORING_VALUES:
            return ': values wait there that it does not receive, and what comes behind them waits, too'
        if begun & what:
            return ''
        does = ('has neither received nor served yet' if not begun else 'serves requests and has never received'
                if begun & BEGUN_SERVING else 'receives values and has never served')  # fmt: skip
        return f': {self.name} {does}: does it call {name}()?'

    # ---- Sending ----

    def prepare(self, value: Any, stream: Any, deadline: Optional[_Deadline] = None) -> _Prepared:
        """Encodes a value and exports its GPU objects. Waits for the work on them, or returns points behind it."""
        until, (prepared, devices) = deadline or _Deadline(None), self.encode(value, stream)
        for device in devices:
            device.wait(until)
        return prepared

    def encode(self, value: Any, stream: Any) -> Tuple[_Prepared, List[_Device]]:
        """As `prepare`, without waiting. Returns the devices whose work must be done before it is sent, too."""
        encoder = _Encoder()
        encoder.write(value)
        if len(encoder.out) > MAX_VALUE_BYTE_LENGTH or len(encoder.objects) > MAX_VALUE_OBJECTS:
            raise ValueError(f'the value is too large: it may have 16 MiB, and {MAX_VALUE_OBJECTS} GPU objects')
        exported = [_export(value, self) for value in encoder.objects]
        if sum(len(one.fds) + len(one.owned) for one in exported) > PACKET_FDS:
            raise ValueError(f'the value has more than {PACKET_FDS} descriptors')
        points: _Points = []
        handle = None if stream is None else _stream_handle(stream)
        # Events are the order themselves.
        devices = list({one.device for one in exported if one.device and one.fields[0] != KIND_EVENT})
        if handle is not None:
            for device in devices[:]:
                behind = self._points_behind(device, handle)
                if behind is not None:
                    points += behind
                    devices.remove(device)
        for one in exported:
            one.stream = handle if one.device else None
        return (encoder.out, exported, points), devices

    def send_later(self, value: Any, stream: Any, post: Callable[[_Prepared], Any], on_error: Callable[[Exception], None]) -> '_Later':
        """Encodes a value now, and has `post` send it when the work on it is done, in the order of the calls. Does not wait."""
        later = _Later(post, on_error)
        try:
            prepared, devices = self.encode(value, stream)
            with _signals, self._cond:
                if self._later or devices:
                    later.prepared, later.devices = prepared, devices
                    self._later.append(later)
                    if len(self._later) == 1:
                        threading.Thread(target=self._send_later, name='cuffi sends', daemon=True).start()
                else:
                    later.posted = post(prepared)
        except Exception as error:
            on_error(error)
        return later

    def _send_later(self) -> None:
        while True:
            later = self._later[0]
            error: Optional[Exception] = None
            try:
                for device in later.devices:
                    device.synchronize()
            except Exception as failed:
                error = failed
            with self._cond:
                self._later.popleft()
                is_last = not self._later
                prepared, later.prepared = later.prepared, None
                if prepared is not None and error is None:
                    try:
                        later.posted = later.post(prepared)
                    except Exception as failed:
                        error = failed
            del prepared
            if error:
                later.on_error(error)
            if is_last:
                return

    def send(self, prepared: _Prepared, kind: int = FRAME_VALUE, request: int = 0, slot: Optional[_Slot] = None) -> _Outgoing:
        """Sends a value, or queues it. `slot` is settled when it was sent."""
        body, exported, points = prepared
        fds: List[int] = []
        owned: List[int] = []
        with _signals, self._cond:
            if self.end is not None:
                raise _again(self.end)
            if kind == FRAME_VALUE and self._peer_begun == BEGUN_SERVING | BEGUN_IGNORING_VALUES:
                raise self._not_received()
            first, shares = self._next_export, [(one, one.owned) for one in exported if one.owned]
            if exported:
                body += _pack_double(first)
                for one in exported:
                    _write_length(body, len(one.owned) + len(one.fds))
                    body.append(0)
                    _write_length(body, len(one.fields))
                    body += one.fields
                    fds += one.owned
                    fds += one.fds
                    owned += one.owned
                    one.owned = []
                    self._exports[self._next_export] = one
                    self._next_export += 1
            self._send_page()
            releases = self._write_control(body, points)
            if slot and kind == FRAME_VALUE and self._peer_begun == BEGUN_SERVING:
                # Settled when the other end receives, or refuses.
                self._unconfirmed.append(slot)
                slot = None
            message = _Outgoing(kind, request, body, fds, owned, slot)
            message.leases, message.releases, message.shares = range(first, self._next_export), releases, shares
            self._post_message(message)
            return message

    def take_back(self, message: _Outgoing, slot: _Slot) -> bool:
        """Takes a message back of which nothing was sent yet. Returns False if it is too late."""
        with _signals, self._cond:
            if message.at or message not in self._outgoing:
                return False
            self._outgoing.remove(message)
            if slot in self._unconfirmed:
                self._unconfirmed.remove(slot)
            for one, one.owned in message.shares:
                one.undo()
            for lease in message.leases:
                self._exports.pop(lease, None)
            self._releases[:0] = message.releases
            self._close_if_unused()
            return True

    def _write_control(self, body: bytearray, points: _Points = []) -> List[Tuple[int, bool, _Points]]:
        """Returns the releases that it has written."""
        releases: List[Tuple[int, bool, _Points]] = []
        if points:
            body.append(CONTROL_POINTS)
            _write_points(body, points)
        if self._releases:
            releases, self._releases = self._releases[:_MAX_LIST], self._releases[_MAX_LIST:]
            body.append(CONTROL_RELEASED)
            _write_length(body, len(releases))
            for lease, is_final, behind in releases:
                body += _pack_double(lease)
                body.append(is_final)
                _write_points(body, behind)
        return releases

    def _send_page(self) -> None:
        """Sends this end's counters before the first points."""
        if self._page_fd >= 0:
            fd, self._page_fd = self._page_fd, -1
            self._post(FRAME_CONTROL, bytes((CONTROL_TIMELINE_PAGE,)), (fd,), owned=[fd])

    def _send_releases(self) -> None:
        if self._is_socket_closed:
            self._releases = []
        while self._releases:
            self._send_page()
            body = bytearray()
            self._write_control(body)
            self._post(FRAME_CONTROL, body)

    def _post(self, kind: int, body: Union[bytes, bytearray], fds: Sequence[int] = (), request: int = 0,
              owned: Sequence[int] = ()) -> None:  # fmt: skip
        self._post_message(_Outgoing(kind, request, body, fds, owned, None))

    def _post_message(self, message: _Outgoing) -> None:
        self._outgoing.append(message)
        self._flush()
        if self._outgoing and self._is_read and not self._poll_events & select.POLLOUT:
            self._kick()

    def _flush(self) -> None:
        outgoing = self._outgoing
        while outgoing:
            message = outgoing[0]
            at, body, fds, owned, slot = message.at, message.body, message.fds, message.owned, message.slot
            length = len(body)
            if length > _PART and not at and not self._has_room(length):
                return
            header = _HEADER.pack(_MAGIC, MAX_VERSION, message.kind, self._sent, length, at, message.request)
            frame = header + body if length <= _PART else header + body[at : at + _PART]
            is_lost = False
            try:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f'{len(fds)}i', *fds))] if fds and not at else []
                if not self._is_socket_closed:
                    self._socket.sendmsg((frame,), ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.ENOBUFS, errno.ETOOMANYREFS, errno.ENOMEM):
                    return
                # The other end is closed: what it has sent before is read first, and its end is seen there.
                is_lost = True
            message.at = at + _PART
            if owned and not at:
                _close_fds(list(owned))
                message.owned, message.shares = (), []
            if message.at < length:
                continue
            outgoing.popleft()
            self._sent = (self._sent + 1) & 0xFFFFFFFF
            if not slot:
                continue
            if is_lost:
                self._unsent.append(slot)
            else:
                slot.settle(self.end if self._is_socket_closed else None)

    def _has_room(self, length: int) -> bool:
        """Whether the frames of a message fit into the socket, so that it need not be left half sent. None above 3/4 of it do."""
        frames = -(-length // _PART) * _FRAME_IN_SOCKET
        if self._is_socket_closed or frames > self._socket_size * 3 // 4:
            return True
        unread = struct.unpack('i', fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4)))[0]
        return unread + frames <= self._socket_size

    def _points_behind(self, device: _Device, stream: int) -> Optional[_Points]:
        """Points behind the work that is queued in a stream; none if it is done. None if the host must wait for it."""
        cuda = _cuda()
        with self._cond, device:
            if stream != _LEGACY_STREAM and cuda.cuStreamQuery(stream) == 0:
                return []
            key = (device.ordinal, stream)
            has_counter = key in self._counters or len(self._counters) < COUNTER_COUNT
            if self._is_socket_closed or not has_counter:
                # Nobody could wait for points any more, or none is left for this stream.
                return None
            if self._page is None:
                self._page_fd = _sealed_memory(PAGE_BYTE_LENGTH)
                self._page = _Page(self._page_fd)
            counter = self._counters.setdefault(key, [len(self._counters), 0])
            counter[1] += 1
            _enqueue_store(self._page, counter[0], counter[1], _stream_of(device, stream))
            return [(counter[0], counter[1])]

    # ---- Order ----

    def _accept_page(self, fd: int) -> None:
        """Maps the other end's counters. Nobody may take the memory away from under this process."""
        if self._peer_page or not _is_sealed(fd, PAGE_BYTE_LENGTH):
            raise IpcError('received a second page of counters, or one that is not sealed memory of its size')
        try:
            self._peer_page = _Words(fd, PAGE_BYTE_LENGTH)
        except OSError as error:
            raise IpcError(f'received a page of counters that cannot be written: {error.strerror}') from None
        self._is_peer_page_fixed = _seal_against_holes(fd)
        os.close(fd)

    def is_reached(self, points: _Points) -> bool:
        return not points or self._peer_page is None or self._peer_page.is_reached(points)

    def _let_wait(self, device: _Device, stream: int, points: _Points) -> bool:
        """Makes a stream wait for points. Returns False if the host must wait, also as too many streams wait."""
        page = self._peer_page
        if page is None or not self._is_peer_page_fixed or self._is_gone:
            return False
        found = _stream_of(device, stream)
        unreached = [(index, count) for index, count in points if not page.reached(index, count)]
        if not _have_room_for_waits(found, len(unreached)):
            return False
        for index, count in unreached:
            # Noted before: a wait that nobody knows could block for ever.
            self._awaited[index] = max(count, self._awaited.get(index, 0))
            if not _enqueue_wait(page, index, count, found):
                return False
        return True

    def _abandon_waits(self) -> int:
        """Frees the streams that wait for an ended process. Returns how many waits were not over."""
        page = self._peer_page
        if page is None:
            return 0
        open_waits = [index for index, count in self._awaited.items() if not page.is_reached([(index, count)])]
        for index in open_waits:
            page.words[index] = END_OF_WAITS
        return len(open_waits)

    # ---- Opening ----

    def open(self, arrived: _Arrived, stream: Any, deadline: _Deadline) -> Any:
        """Returns the value with its GPU objects, when the sender's work on them is done or `stream` waits for it."""
        self.begin_open(arrived, stream)
        self.finish_open(arrived, deadline)
        return arrived.take()

    def finish_open(self, arrived: _Arrived, deadline: _Deadline) -> None:
        """Waits until the sender's work is done. Raises TimeoutError, PeerGoneError."""
        if arrived.points or arrived.events:
            for pause in _pauses(lambda: self.is_ready(arrived), deadline, "the sender's work"):
                time.sleep(pause)
                _signals.check()

    def is_ready(self, arrived: _Arrived) -> bool:
        if self.is_reached(arrived.points) and all(event.done for event in arrived.events):
            arrived.points = []
            while arrived.events:
                arrived.events.pop().close()
            return True
        if self._is_gone:
            raise PeerGoneError(f'{self.name} has ended before its work on what it had sent was done', self.pid)
        return False

    def begin_open(self, arrived: _Arrived, stream: Any) -> None:
        """As `open`, once. If `is_ready` is false then, the host must wait."""
        if arrived.is_cut:
            self.discard(arrived)
            raise IpcError(f'the objects of a value of {self.name} were refused: {_NO_ROOM}', 'limit-exceeded')
        if arrived.refusal is not None:
            self.discard(arrived)
            why, code = arrived.refusal
            what = 'cannot be one of Python' if code == 'not-supported' else 'is refused'
            raise IpcError(f'a value of {self.name} {what}: {why}', code)
        if not arrived.objects:
            return
        handle = None if stream is None else _stream_handle(stream)
        opened: List[Any] = []
        try:
            for data, fds, lease in arrived.objects:
                opened.append(self._open_object(arrived, data, fds, lease, handle))
                _close_fds(fds)
            if handle is not None and arrived.points:
                devices = {one._device for one in opened if hasattr(one, '_device')}
                if devices and all(self._let_wait(device, handle, arrived.points) for device in devices):
                    arrived.points = []
        except BaseException:
            arrived.objects = arrived.objects[len(opened) :]
            self.discard(arrived)
            for one in opened:
                one.close()
            raise
        arrived.objects = []
        for put, one in zip(arrived.places, opened):
            if put:
                put(one)
            else:
                arrived.value = one
        arrived.places = []

    def _open_object(self, arrived: _Arrived, data: bytes, fds: List[int], lease: int, stream: Optional[int]) -> Any:
        if lease in self._revoked:
            raise ClosedError(f'{self.name} has revoked what it had sent')
        fields = _descriptors.decode_known(data)
        if fields.kind in _HOST_KINDS:
            return _HOST_KINDS[fields.kind](fields).open(self, fds, lease)
        if _self().has_made(fields):
            return self._open_own(fields, lease)
        device = _device_of(fields.exporter.device)
        if fields.kind == KIND_EVENT:
            _check_exporter(fields, self._allow_other_users)
            return self._open_event(fields, device, (self, lease, data))
        if fields.read_only and fields.kind != KIND_VIRTUAL:
            raise IpcError('memory that the driver always maps for writing was sent as read-only', 'not-supported')
        if fields.ready_event:
            event = self._open_event(fields.ready_event, device)
            if stream is None:
                arrived.events.append(event)
            else:
                event.wait(stream)
        mapping = self._map(fields, device, fds)
        if mapping is None:
            self._imports.pop(lease, None)
            self._release(lease)
            return GpuPool(fields.exporter.device)
        if fields.byte_offset + fields.byte_length > mapping.byte_length:
            mapping.release()
            raise IpcError(f'a range ends at byte {fields.byte_offset + fields.byte_length} of memory that has '
                           f'{mapping.byte_length}', 'invalid-descriptor')  # fmt: skip
        memory = _ReceivedMemory(self, lease, fields, mapping)
        self._imports[lease] = weakref.ref(memory)
        if lease in self._revoked:
            memory.revoked_by = self.name
        read_only = fields.read_only or mapping.is_read_only
        return _array_of(memory, memory.address, fields.layout, fields.byte_length, read_only, stream)

    def _map(self, fields: _Fields, device: _Device, fds: List[int]) -> Optional[_Mapping]:
        if fields.kind == KIND_LEGACY:
            key: Tuple[Any, ...] = (KIND_LEGACY, device.ordinal, fields.handle)
            return _map(key, fields.buffer_id, lambda: _map_legacy(self._checked(fields), device))
        if fields.kind == KIND_VIRTUAL:
            if not all(map(_is_driver_fd, fds)):
                raise IpcError("a descriptor that came with memory is not one of the driver's", 'no-file-descriptor')
            if len(fds) != len(fields.pieces):
                raise IpcError(f'virtual memory of {len(fields.pieces)} pieces came with {len(fds)} descriptors',
                               'no-file-descriptor')  # fmt: skip
            # The mark of memory that is shared for reading only.
            read_only = fields.read_only or any(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND for fd in fds)
            with _mapping_lock:
                key = _virtual_key(fields, device, fds, read_only)
                return _map(key, 0, lambda: _map_virtual(self._checked(fields), device, fds, read_only), fds)
        with _mapping_lock:
            pool = self._pools.get(fields.pool)
            if pool is None:
                exporter, fd = self._checked(fields).exporter, self._pool_fds.pop(fields.pool, -1)
                try:
                    if fd < 0 or not _is_driver_fd(fd):
                        raise IpcError('memory of a pool came without the descriptor of the pool', 'no-file-descriptor')
                    pool = self._pools[fields.pool] = _ImportedPool(device, fd, exporter)
                finally:
                    _close_fds([fd] if fd >= 0 else [])
            if fields.handle is None:
                return None
            # The driver finds memory by its pool and handle; what the sender calls the pool proves nothing.
            found = pool
            return _map((KIND_POOL, found.handle, fields.handle), fields.generation, lambda: _map_pool(self._checked(fields), found))

    def _checked(self, fields: _Fields) -> _Fields:
        _check_exporter(fields, self._allow_other_users)
        return fields

    def _open_own(self, fields: _Fields, lease: int) -> Any:
        """Returns what was sent to the other end and came back."""
        for exported in list(self._exports.values()):
            known = _descriptors.decode_known(exported.fields)
            if known.kind in _HOST_KINDS:
                continue
            if KIND_EVENT in (known.kind, fields.kind):
                if known.kind == fields.kind and known.handle == fields.handle:
                    self._release(lease)
                    return Event._of(exported.keep)
                continue
            inside = known.byte_offset <= fields.byte_offset and (
                fields.byte_offset + fields.byte_length <= known.byte_offset + known.byte_length)
            if known.allocation != fields.allocation or not inside:
                continue
            address = exported.begin + fields.byte_offset - known.byte_offset
            memory = _BorrowedMemory(exported.device, address, fields.byte_length, exported.keep)
            self._release(lease)
            return _array_of(memory, address, fields.layout, fields.byte_length, fields.read_only, None)
        raise IpcError(f'{self.name} sent a descriptor of memory of this very process that it does not hold', 'same-process')

    def _open_event(self, fields: _Fields, device: _Device,
                    received: Optional[Tuple['_Connection', int, bytes]] = None) -> Event:  # fmt: skip
        handle = _Handle64((ctypes.c_ubyte * 64)(*fields.handle))
        with device, _opening(fields.exporter):
            return Event._of(_EventHandle(device, _read('cuIpcOpenEventHandle', handle), received))

    # ---- Giving back ----

    def _release(self, lease: int) -> None:
        """Tells the other end that nothing here uses what it has sent."""
        with self._cond:
            link = self._links.pop(lease, -1)
            if link >= 0:
                _close_fds([link])
            self._revoked.discard(lease)
            self._imports.pop(lease, None)
            if self._is_socket_closed:
                if self._is_read:
                    # Its thread may be over.
                    self._kick()
            else:
                # It goes with the next value, or when somebody reads.
                self._releases.append((lease, True, []))
                if self._is_closing:
                    self._send_releases()
                    self._close_if_unused()
                elif self._is_read or len(self._releases) >= _MAX_LIST:
                    self._kick()

    def give_back_later(self, lease: int, mapping: Optional[_Mapping], stream: Optional[int]) -> None:
        """As `give_back`, from anywhere: objects may be collected in the middle of any work."""
        self._given_back.append((lease, mapping, stream))
        if self._is_read:
            self._kick()

    def give_back(self, may_wait: bool = False) -> None:
        """Unmaps what nobody refers to any more, and tells the other end: behind the work that may use it.

        :param may_wait: whether this thread may wait for that work, unless it stands behind a wait for another process.
            Whoever reads must not: what is waited for may need a message
        """
        is_free = may_wait and bool(self._given_back) and not _waiting_streams()
        while self._given_back:
            try:
                lease, mapping, stream = self._given_back.popleft()
            except IndexError:
                break
            if mapping is None:
                self._finish(lease, None)
                continue
            points: Optional[_Points] = None
            try:
                if stream is not None:
                    points = self._points_behind(mapping.device, stream or _LEGACY_STREAM)
                elif is_free:
                    mapping.device.synchronize()
                    points = []
            except CuffiError:
                pass  # The context is lost: nothing runs in it.
            if points is None or (not points and not is_free and not mapping.release_unless_last()):
                self._finish_later(lease, mapping)
            elif points:
                with self._cond:
                    self._releases.append((lease, False, points))
                    self._behind_streams.append((points, lease, mapping))
                    self._send_releases()
                    self._kick()
            else:
                self._finish(lease, mapping if is_free else None)
        if self._behind_streams:
            with self._cond:
                pending, self._behind_streams = self._behind_streams, []
            for points, lease, mapping in pending:
                if self._page and not self._page.is_reached(points):
                    self._behind_streams.append((points, lease, mapping))
                elif mapping.release_unless_last():
                    self._finish(lease, None)
                else:
                    self._finish_later(lease, mapping)

    def _finish_later(self, lease: int, mapping: _Mapping) -> None:
        mapping.device.releases.add(lambda: self._finish(lease, mapping))

    def _finish(self, lease: int, mapping: Optional[_Mapping]) -> None:
        try:
            if mapping:
                mapping.release()
        except CuffiError:
            pass  # The context is lost, and the mapping with it.
        self._release(lease)

    def discard(self, arrived: _Arrived) -> None:
        """Releases what nobody takes."""
        objects, arrived.objects = arrived.objects, []
        for _, fds, lease in objects:
            _close_fds(fds)
            self._release(lease)

    # ---- The end ----

    def close(self, why: str = 'close() was called') -> None:
        with _signals, self._cond:
            self._is_closed_here = True
            self._begin_closing(ClosedError(f'this Peer is closed: {why}'))
            for waiting in (self._values, self._requests):
                while waiting:
                    self.discard(waiting.popleft())
            self._close_if_unused()
            self._kick()
            self._cond.notify_all()

    def fail(self, error: Exception) -> None:
        """Ends the connection because of what the other end did."""
        with self._cond:
            self._finish_with(error)
            self._close_socket()

    def _finish_with(self, error: Exception) -> None:
        if self.end is None:
            self.end = error
        for slot in (*self._value_slots, *self._request_slots, *self._asked.values(), *self._unconfirmed):
            slot.settle(self.end)
        self._unconfirmed.clear()
        self._value_slots.clear()
        self._request_slots.clear()
        self._asked.clear()
        for cancel in list(self._cancels.values()):
            cancel()
        self._cond.notify_all()

    def _begin_closing(self, error: ClosedError) -> None:
        self._finish_with(error)
        if not self._is_closing and not self._is_socket_closed:
            self._is_closing = True
            self._send_releases()
            self._post(FRAME_CONTROL, bytes((CONTROL_CLOSING,)))

    def _close_if_unused(self) -> None:
        if not self._is_closing or self._is_socket_closed or self._outgoing:
            return
        if self._exports or self._imports or self._given_back or self._behind_streams:
            return
        self._post(FRAME_CONTROL, bytes((CONTROL_DONE,)))
        self._close_socket()

    def _close_socket(self) -> None:
        if self._is_socket_closed:
            return
        self._is_socket_closed = True
        if self._poll_events:
            self._poll.unregister(self._fd)
        self._poll_events = 0
        self._flush()
        for slot in self._unsent:
            slot.settle(self.end)
        self._socket.close()
        _close_fds(self._part_fds)
        _close_fds(self._links.values())
        self._part_fds, self._parts, self._links = [], [], {}
        self._cond.notify_all()
        # Whoever polls does so without the socket.
        self._kick()

    def _on_socket_end(self) -> None:
        """The end of a process comes soon after that of its socket, and tells more."""
        if self._is_gone or self._gone_until is not None:
            return
        if self._is_closing or self._pidfd < 0:
            self._on_closed()
        else:
            self._gone_until = time.monotonic() + _MAX_EXIT_S

    def _on_closed(self) -> None:
        """The other end is closed, and its process lives, as far as is known."""
        self._gone_until = None
        self._finish_with(
            ClosedError(f'this Peer is closed: {self.name} has closed the connection')
            if self._has_met else
            IpcError(f'{self.name} has closed the connection without a word: it has refused this process, or needs an earlier '
                     'version of cuffi'))  # fmt: skip
        self._close_socket()
        if self._pidfd < 0:
            self._on_gone()

    def _on_gone(self) -> None:
        """The other process has ended: it holds nothing any more."""
        if self._is_gone:
            return
        self._is_gone, self._gone_until = True, None
        if self._pidfd >= 0:
            self._poll.unregister(self._pidfd)
        while not self._is_socket_closed and self._read():
            pass
        waits = self._abandon_waits()
        after = f'; {waits} waits for its work were abandoned' if waits else ' without closing the connection'
        self._finish_with(PeerGoneError(f'{self.name} has ended{after}', self.pid))
        self._exports.clear()
        self._close_socket()

    def _is_over(self) -> bool:
        """Whether nothing is left to do for the thread of this connection."""
        is_lent = (self._exports and not self._is_gone) or self._forwarded
        is_held = self._imports or self._given_back or self._behind_streams
        return self._is_socket_closed and not self._is_read and not is_lent and not is_held

    def _discard(self) -> None:
        """Ends what needs no other process."""
        _connections.discard(self)
        until = time.monotonic() + (_REPAIR_S if self._is_gone and self._awaited else 0)
        while time.monotonic() < until:
            # A GPU may still do what the ended process had queued.
            self._abandon_waits()
            time.sleep(0.02)
        with _mapping_lock:
            pools, self._pools = list(self._pools.values()), {}
            _close_fds(self._pool_fds.values())
            self._pool_fds.clear()
        for one in (*pools, self._page, self._peer_page):
            try:
                if isinstance(one, _ImportedPool):
                    one.release()
                elif one:
                    one.close()
            except CuffiError:
                pass  # The context is lost.
        self._close_own_fds()

    def abandon(self) -> None:
        """In a child by fork: closes what it has inherited, and says nothing."""
        self._cond, self._wake_lock = threading.Condition(threading.RLock()), threading.RLock()
        self._is_socket_closed = self._is_closing = self._is_closed_here = self._is_gone = True
        self.end = ClosedError('this Peer is closed: it belongs to the process that this one was forked from')
        self._waiting, self._is_read = 0, False
        self._outgoing.clear()
        self._later.clear()
        self._socket.close()
        self._close_own_fds()

    def drain_at_exit(self) -> None:
        """Before this process ends: the other one may wait for work that is still running."""
        if _has_failed():
            # As a killed one: its work may itself wait for what never comes.
            return
        page = self._page
        if page and not page.is_reached([(index, count) for index, count in self._counters.values()]):
            for device in {ordinal for ordinal, _ in self._counters}:
                try:
                    _all_devices()[device].synchronize()
                except CuffiError:
                    pass  # The context is lost.
        # A closing message would make an orderly end of an exit with any code. A parent sees the end of this
        # process, until which its socket stays open.
        if not self._is_of_parent:
            self.close()


def _has_failed() -> bool:
    """Whether an exception ends this process. An interactive session goes on after one."""
    return getattr(sys, 'last_value', None) is not None and not hasattr(sys, 'ps1')


_connections: 'set[_Connection]' = set()
_FD_SPACE = socket.CMSG_SPACE(4 * PACKET_FDS)
_NO_ROOM = "no descriptor is left for those of a message, which are lost: raise the limit ('ulimit -n')"


@atexit.register
def _at_exit() -> None:
    global _is_exiting
    for connection in list(_connections):
        try:
            connection.drain_at_exit()
        except Exception:
            traceback.print_exc()
    _is_exiting = True
    # Libraries may delete tensors when the interpreter is gone, such as those in static objects of C++.
    for managed, *_ in list(_given.values()):
        managed.deleter = _no_deleter()


def _after_fork() -> None:
    """A child by fork has no threads, no driver, and no part in the connections of its parent."""
    global _is_exiting, _lock, _mapping_lock, _closing_thread
    _lock, _mapping_lock, _closing_thread = threading.RLock(), threading.RLock(), None
    _signals.abandon()
    for connection in list(_connections):
        connection.abandon()
    _connections.clear()
    for listener in list(_listeners):
        listener._socket.close()
    # Nothing that the parent has made is the child's to free; nor can it use the driver, if its parent did.
    _is_exiting = _driver is not None


os.register_at_fork(after_in_child=_after_fork)


def _array_of(memory: _Memory, begin: int, layout: Optional[_descriptors.Layout],
              byte_length: int, read_only: bool, stream: Optional[int]) -> GpuArray:  # fmt: skip
    if layout is None:
        return GpuBuffer(memory, begin, (byte_length,), _DTYPES['uint8'], (1,), read_only, stream)
    dtype = _dtype(layout.dtype)
    low, _ = _extents(layout.shape, layout.strides, dtype.itemsize)
    return GpuArray(memory, begin - low, layout.shape, dtype, layout.strides, read_only, stream)


# Versions before it begin with a value.
_OLDEST_WITH_HELLO = 4


def _choose_version(a: Tuple[int, int], b: Tuple[int, int]) -> Optional[int]:
    """The highest version that both ranges have."""
    highest = min(a[1], b[1])
    return highest if highest >= max(a[0], b[0]) else None


def _versions(least: int, most: int) -> str:
    return f'version {most}' if least == most else f'versions {least} to {most}'


def _package() -> str:
    return f'cuffi {__version__} for Python in {os.path.dirname(os.path.abspath(__file__))}'


def _printable(text: bytes) -> str:
    """Text of another process for an error message: short, in one line, and without control characters."""
    shown = text.decode('utf-8', 'replace')[:MAX_PACKAGE_NAME_BYTE_LENGTH]
    return ''.join(each if each.isprintable() else ' ' for each in shown)


def _encoded(value: Any) -> bytes:
    encoder = _Encoder()
    encoder.write(value)
    return bytes(encoder.out)


def _write_points(out: bytearray, points: _Points) -> None:
    _write_length(out, len(points))
    for index, count in points:
        _write_length(out, index)
        out += _pack_double(count)


def _list_length(reader: _Reader, each: int) -> int:
    length = reader.length(each)
    if length == 0:
        raise IpcError('a list without entries is not valid')
    if length > MAX_CONTROL_ENTRIES:
        raise _limit_exceeded(f'a list of {length} entries is too long')
    return length


def _close_fds(fds: Any) -> None:
    """Closes descriptors, of which another process may have made some so that their `close` blocks."""
    for fd in list(fds):
        kind, major = _file_type(fd)
        is_simple = kind == stat.S_IFCHR and major in (_NULL_MAJOR, _NVIDIA_MAJOR)
        if is_simple or _closing_thread is None or _is_in_memory(fd):
            os.close(fd)
        elif kind >= 0:
            _closing.put(fd)
    if isinstance(fds, list):
        fds.clear()


def _received_fds(controls: List[Tuple[int, int, bytes]]) -> List[int]:
    """The descriptors that came with a message."""
    fds: List[int] = []
    for level, kind, part in controls:
        found = struct.unpack(f'{len(part) // 4}i', part[: len(part) // 4 * 4])
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.extend(found)
        elif (level, kind) == (socket.SOL_SOCKET, _SCM_PIDFD):
            # A process that shares the socket can order one for each message (SO_PASSPIDFD).
            _close_fds(found)
    return fds


def _is_in_memory(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0
    except OSError:
        return False


# May be filled while objects are collected, when no thread can be started.
_closing: 'queue.SimpleQueue[int]' = queue.SimpleQueue()
_closing_thread: Optional[threading.Thread] = None


def _start_closing() -> None:
    global _closing_thread
    with _lock:
        if _closing_thread is None:
            _closing_thread = threading.Thread(target=_close_others, name='cuffi closes', daemon=True)
            _closing_thread.start()


def _close_others() -> None:
    while True:
        fd = _closing.get()
        try:
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
        except RuntimeError:  # No thread is left.
            os.close(fd)


def _sealed_memory(byte_length: int, name: str = 'cuffi-points') -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, byte_length)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def _credentials(sock: socket.socket) -> Tuple[int, int, int]:
    return struct.unpack('=iII', sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))  # type: ignore[return-value]


# ---- Peers ------------------------------------------------------------------------------------------------


class Peer(_Context):
    """The process at the other end of a connection. `with peer:` closes it.

    Any thread may use it. Each method that waits takes `timeout` in seconds, and raises TimeoutError.
    After the end they raise ClosedError, PeerGoneError or IpcError, as `peer.end`.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def __del__(self) -> None:
        """Nobody can use it any more: its thread closes it."""
        if _is_exiting is False:
            self._connection._is_dropped = True
            self._connection._kick()

    @property
    def pid(self) -> int:
        """Of the other process; 0 if it is in another pid namespace."""
        return self._connection.pid

    @property
    def uid(self) -> int:
        return self._connection.uid

    @property
    def gid(self) -> int:
        return self._connection.gid

    @property
    def end(self) -> Optional[Exception]:
        """Why the connection has ended; None while it is open."""
        return self._connection.end

    @property
    def closed(self) -> bool:
        return self.end is not None

    @property
    def lent(self) -> int:
        """How many arrays, buffers and events the other end holds of this one."""
        return len(self._connection._exports)

    @property
    def held(self) -> int:
        """How many arrays, buffers and events this end holds of the other."""
        return len(self._connection._imports)

    # ---- Values ----

    def send(self, value: Any, *, stream: Any = None, timeout: Optional[float] = None) -> None:
        """Sends a value. Waits for the work on its GPU objects, unless `stream` is given.

        Raises TypeError and ValueError for what cannot be sent, IpcError for memory without a handle; with the
        code `not-received` if the other end serves requests and has never received.
        """
        connection, slot, deadline = self._connection, _Slot(), _Deadline(timeout)
        with _signals:
            message = connection.send(connection.prepare(value, stream, deadline), slot=slot)
            if not slot.is_done:
                is_over = lambda: slot.is_done or connection._is_socket_closed  # noqa: E731
                try:
                    connection.wait(is_over, deadline, 'room to send')
                except BaseException as error:
                    is_limit = isinstance(error, TimeoutError)
                    if not connection.take_back(message, slot) and is_limit and slot not in connection._unconfirmed:
                        # The other end reads it already. It would arrive in any case.
                        connection.wait(is_over, _Deadline(None), 'room to send')
                    elif is_limit:
                        raise TimeoutError(f'{error}{connection.hint(FRAME_VALUE)}') from None
                    else:
                        raise
        slot.take()

    def receive(self, *, stream: Any = None, timeout: Optional[float] = None) -> Any:
        """Returns the next value, when the sender's work on it is done, or makes `stream` wait for that.

        What was not returned in time is returned by the next call.
        """
        _stream_handle(stream)
        connection, deadline = self._connection, _Deadline(timeout)
        taken: List[_Arrived] = []
        with _signals:
            connection.wait(lambda: self._take_value(taken), deadline, 'a value', FRAME_VALUE)
            arrived = taken.pop()
            connection.begin_open(arrived, stream)
            try:
                connection.finish_open(arrived, deadline)
                _signals.check()
            except BaseException as error:
                if not isinstance(error, CuffiError):
                    self._put_back(arrived)
                raise
            value = arrived.take()
            # Here: what a signal raises in the end of an object is lost.
            del arrived
            return value

    def _take_value(self, taken: List[_Arrived]) -> bool:
        """Takes a value, if there is one. Raises the end."""
        connection = self._connection
        with connection._cond:
            if not connection._values:
                if connection.end is not None:
                    raise _again(connection.end)
                return False
            arrived = connection._values.popleft()
            connection._queued_bytes -= arrived.size + 4096 * len(arrived.objects)
            connection._queued_fds -= arrived.fd_count
            if connection._is_read and not connection._poll_events & select.POLLIN:
                connection._kick()
            taken.append(arrived)
            return True

    def _put_back(self, arrived: _Arrived) -> None:
        """The next call gets what this one has not returned."""
        with self._connection._cond:
            self._connection.offer(arrived, is_first=True)

    def __iter__(self) -> Iterator[Any]:
        """The values, until the other end closes the connection. Raises PeerGoneError, IpcError."""
        while True:
            try:
                value = self.receive()
            except ClosedError:
                if self.closed:
                    return
                raise
            yield value
            del value

    # ---- Requests ----

    def request(self, value: Any, *, stream: Any = None, timeout: Optional[float] = None) -> Any:
        """Returns what the other end's handler answers. Raises RemoteError for what it throws.

        Raises IpcError with the code `not-served` if the other end waits for values and has never served.
        """
        connection, slot, deadline = self._connection, _Slot(), _Deadline(timeout)
        with _signals:
            message = self._ask(connection.prepare(value, stream, deadline), slot)
            try:
                connection.wait(lambda: slot.is_done, deadline, 'an answer')
            except BaseException as error:
                self._give_up(message, slot)
                if isinstance(error, TimeoutError):
                    raise TimeoutError(f'{error}{connection.hint(FRAME_REQUEST)}') from None
                raise
            return self._answer(slot.take(), connection.open(slot.take(), stream, deadline))

    def _ask(self, prepared: _Prepared, slot: _Slot) -> _Outgoing:
        connection = self._connection
        with _signals, connection._cond:
            if len(connection._asked) >= MAX_PENDING_REQUESTS:
                raise IpcError(f'{MAX_PENDING_REQUESTS} requests wait for their answers', 'limit-exceeded')
            number = connection._last_question % 0xFFFFFFFF + 1
            message = connection.send(prepared, FRAME_REQUEST, number)
            connection._last_question = number
            connection._asked[number] = slot
        return message

    def _give_up(self, message: _Outgoing, slot: _Slot) -> None:
        connection = self._connection
        with _signals, connection._cond:
            if slot.is_done:
                if isinstance(slot.result, _Arrived):
                    connection.discard(slot.result)
            elif connection.take_back(message, slot):
                connection._asked.pop(message.request, None)
            elif connection.end is None:
                # Its answer still comes.
                slot.settle(None)
                connection._post(FRAME_CANCELLATION, _NULL, request=message.request)

    @staticmethod
    def _answer(arrived: _Arrived, value: Any) -> Any:
        if arrived.kind == FRAME_RESPONSE:
            return value
        raise value if isinstance(value, RemoteError) else RemoteError(repr(value))

    def serve(self, handler: Callable[[Any], Any], *, stream: Any = None) -> None:
        """Answers requests with `handler(value)`, in this thread, until the connection ends.

        What it raises is raised at the other end. `peer.given_up` tells it whether anybody still waits for the answer.
        Raises PeerGoneError, IpcError.
        """
        if inspect.iscoroutinefunction(handler):
            raise TypeError('serve takes a function, not a coroutine function: use aserve')
        connection, forever = self._connection, _Deadline(None)
        taken: List[_Arrived] = []
        while True:
            with _signals:
                connection.wait(lambda: self._take_request(taken), forever, 'a request', FRAME_REQUEST)
                if not taken:
                    break
                arrived = taken.pop()
                is_begun = self._begin_answer(arrived)
            if is_begun:
                with self._answering(arrived.request, stream) as answer:
                    answered = _answered.set(arrived.request)
                    try:
                        result = handler(connection.open(arrived, stream, forever))
                    finally:
                        _answered.reset(answered)
                    if inspect.iscoroutine(result):
                        result.close()
                        raise TypeError('the handler has returned a coroutine: use aserve')
                    answer.append(result)
                    del result
        if not isinstance(connection.end, ClosedError):
            raise _again(connection.end)

    @property
    def given_up(self) -> bool:
        """In a handler: whether nobody waits for its answer, as the request was given up or the connection has ended."""
        number = _answered.get()
        return number is not None and (number in self._connection._canceled or self.closed)

    def _take_request(self, taken: List[_Arrived]) -> bool:
        """Takes a request, if there is one. Returns True without one at the end."""
        connection = self._connection
        if connection._requests:
            taken.append(connection._requests.popleft())
        return bool(taken) or connection.end is not None

    def _begin_answer(self, arrived: _Arrived) -> bool:
        """Returns False for a request that was given up before it was begun."""
        connection = self._connection
        with connection._cond:
            connection._request_bytes -= arrived.size
            if arrived.request not in connection._canceled:
                return True
            connection.discard(arrived)
        self._reply(arrived.request, _given_up(), FRAME_FAILURE, None)
        return False

    @contextlib.contextmanager
    def _answering(self, number: int, stream: Any) -> Iterator[List[Any]]:
        """Replies with what is put into the list, or with what is raised."""
        answer: List[Any] = []
        try:
            yield answer
        except Exception as error:
            self._reply(number, error, FRAME_FAILURE, stream)
        except BaseException:
            self._reply(number, _given_up(), FRAME_FAILURE, None)
            raise
        else:
            self._reply(number, answer.pop(), FRAME_RESPONSE, stream)

    def _reply(self, number: int, result: Any, kind: int, stream: Any) -> None:
        with _signals:
            self._reply_once(number, result, kind, stream)

    def _reply_once(self, number: int, result: Any, kind: int, stream: Any) -> None:
        connection = self._connection
        try:
            prepared = connection.prepare(result, stream)
        except Exception as error:
            kind = FRAME_FAILURE
            try:
                prepared = connection.prepare(error, None)
            except Exception:
                prepared = connection.prepare(RemoteError(f'an answer or error of class {type(result).__name__} cannot be sent'), None)
        self._post_reply(number, prepared, kind)

    def _post_reply(self, number: int, prepared: _Prepared, kind: int) -> None:
        connection = self._connection
        with connection._cond:
            connection._unanswered.discard(number)
            connection._canceled.discard(number)
            if connection.end is None:
                connection.send(prepared, kind, number)

    # ---- The same for asyncio ----

    def asend(self, value: Any, *, stream: Any = None) -> Coroutine[Any, Any, None]:
        """As `send`. Encodes at the call, and sends in the order of the calls, when the work on the value is done.

        Canceling takes it back, unless the other end reads it already. Called outside of an event loop, it begins when
        it is awaited.
        """
        try:
            slot = _Slot(is_async=True)
        except RuntimeError:
            return self._asend_when_awaited(value, stream)
        post = lambda prepared: self._connection.send(prepared, slot=slot)  # noqa: E731
        return self._asent(self._connection.send_later(value, stream, post, slot.settle), slot)

    async def _asend_when_awaited(self, value: Any, stream: Any) -> None:
        await self.asend(value, stream=stream)

    async def _asent(self, later: _Later, slot: _Slot) -> None:
        connection = self._connection
        try:
            await self._until(slot)
        except BaseException:
            with connection._cond:
                later.prepared = None
                if later.posted:
                    connection.take_back(later.posted, slot)
            raise
        slot.take()
        await _turn_if_due()

    async def _until(self, slot: _Slot) -> None:
        if slot.is_done:
            return
        # The thread of the connection reads.
        with self._connection._cond:
            self._connection._cond.notify_all()
            self._connection._kick()
        await slot.future  # type: ignore[misc]

    async def _next(self, take: Callable[[List[_Arrived]], bool], slots: Deque[_Slot]) -> Any:
        """What `take` finds, or is given to a slot: a value, a request, or the end. What comes for a canceled call is put back."""
        await _turn_if_due()
        connection, slot = self._connection, _Slot(is_async=True)
        taken: List[_Arrived] = []
        connection.begin(FRAME_VALUE if slots is connection._value_slots else FRAME_REQUEST)
        with connection._cond:
            if take(taken):
                slot.settle(taken.pop() if taken else connection.end)
            else:
                slots.append(slot)
        try:
            await self._until(slot)
        except BaseException:
            with connection._cond:
                if isinstance(slot.result, _Arrived):
                    connection.offer(slot.result, is_first=True)
                elif slot in slots:
                    slots.remove(slot)
            raise
        return slot.result

    async def areceive(self, *, stream: Any = None) -> Any:
        """As `receive`. What arrived for a canceled call is returned by the next one."""
        found = await self._next(self._take_value, self._connection._value_slots)
        if not isinstance(found, _Arrived):
            raise _again(found)
        try:
            return await self._aopen(found, stream)
        except asyncio.CancelledError:
            self._put_back(found)
            raise

    async def _aopen(self, arrived: _Arrived, stream: Any) -> Any:
        connection = self._connection
        connection.begin_open(arrived, stream)
        while (arrived.points or arrived.events) and not connection.is_ready(arrived):
            await asyncio.sleep(0.0002)
        return arrived.take()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            try:
                value = await self.areceive()
            except ClosedError:
                if self.closed:
                    return
                raise
            yield value
            del value

    async def arequest(self, value: Any, *, stream: Any = None) -> Any:
        """As `request`, sent in the order of `asend`. Canceling the task gives the request up."""
        connection, slot = self._connection, _Slot(is_async=True)
        later = connection.send_later(value, stream, lambda prepared: self._ask(prepared, slot), slot.settle)
        try:
            await self._until(slot)
        except BaseException:
            with connection._cond:
                later.prepared = None
                if later.posted:
                    self._give_up(later.posted, slot)
            raise
        return self._answer(slot.take(), await self._aopen(slot.take(), stream))

    async def aserve(self, handler: Callable[[Any], Any], *, stream: Any = None, concurrency: int = 1,
                     stop: Optional[asyncio.Event] = None) -> None:  # fmt: skip
        """As `serve`, with a handler that may be a coroutine. It is canceled when its request is given up.

        :param concurrency: how many requests are answered at a time
        :param stop: when it is set, no more requests are taken: those that are begun are answered, and it returns
        """
        _check_count(concurrency, 1, 'concurrency')
        connection, running, failed = self._connection, set(), []  # type: ignore[var-annotated]

        def on_done(task: 'asyncio.Task[None]') -> None:
            running.discard(task)
            if not task.cancelled() and task.exception():
                failed.append(task.exception())

        try:
            while not (failed or (stop and stop.is_set())):
                arrived = await self._next_until(stop)
                if not isinstance(arrived, _Arrived):
                    break
                if not self._begin_answer(arrived):
                    continue
                if concurrency == 1:
                    await self._aanswer(arrived, handler, stream)
                    continue
                task = asyncio.ensure_future(self._aanswer(arrived, handler, stream))
                running.add(task)
                task.add_done_callback(on_done)
                if len(running) >= concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            while running:
                await asyncio.wait(running)
        except BaseException:
            for task in running:
                task.cancel()
            while running:
                await asyncio.wait(running)
            raise
        if failed:
            raise failed[0]
        if connection.end is not None and not isinstance(connection.end, ClosedError):
            raise _again(connection.end)

    async def _next_until(self, stop: Optional[asyncio.Event]) -> Any:
        """The next request, or the end; None if `stop` is set before."""
        slots = self._connection._request_slots
        if stop is None:
            return await self._next(self._take_request, slots)
        taking, stopping = asyncio.ensure_future(self._next(self._take_request, slots)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if taking.done() and not taking.cancelled() and isinstance(taking.result(), _Arrived):
                self._put_back(taking.result())
            raise
        finally:
            stopping.cancel()
            taking.cancel()
        try:
            return await taking
        except asyncio.CancelledError:
            if not taking.cancelled():
                raise
            return None

    async def _aanswer(self, arrived: _Arrived, handler: Callable[[Any], Any], stream: Any) -> None:
        number, kind = arrived.request, FRAME_RESPONSE
        try:
            result = await self._handled(arrived, handler, stream)
        except Exception as error:
            result, kind = error, FRAME_FAILURE
        except BaseException:
            self._reply(number, _given_up(), FRAME_FAILURE, None)
            raise

        def post(prepared: _Prepared) -> None:
            self._post_reply(number, prepared, kind)

        def on_error(error: Exception) -> None:
            # It cannot be sent, or the work on it has failed.
            self._reply(number, error, FRAME_FAILURE, None)

        self._connection.send_later(result, stream, post, on_error)
        del result

    async def _handled(self, arrived: _Arrived, handler: Callable[[Any], Any], stream: Any) -> Any:
        """What the handler returns, or what it awaits. Raises what it raises; an AbortError if it was canceled."""
        connection, number = self._connection, arrived.request
        answered = _answered.set(number)
        try:
            result = handler(await self._aopen(arrived, stream))
            if not inspect.isawaitable(result):
                return result
            task = asyncio.ensure_future(result)
        finally:
            _answered.reset(answered)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # The loop is closed.

        with connection._cond:
            connection._cancels[number] = cancel
            if number in connection._canceled or connection.end is not None:
                cancel()
        try:
            await asyncio.wait((task,))
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            with connection._cond:
                connection._cancels.pop(number, None)
        if task.cancelled():
            raise _given_up()
        return task.result()

    async def __aenter__(self) -> 'Peer':
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    # ---- The end ----

    def close(self) -> None:
        """Closes the connection. What was received stays usable until it is closed. The second call does nothing."""
        self._connection.close(self._why_closed)

    def __repr__(self) -> str:
        return f'<cuffi.Peer {self._connection.name}{" closed" if self.closed else ""}>'


# The request that this thread or task answers.
_answered: 'contextvars.ContextVar[Optional[int]]' = contextvars.ContextVar('cuffi_answered', default=None)


def _given_up() -> RemoteError:
    return RemoteError('the request was given up', 'AbortError')


# ---- Connecting -------------------------------------------------------------------------------------------

_parent: Optional[Peer] = None


def parent() -> Peer:
    """Returns the process that started this one with `spawnPython` or `spawnPeer`. Raises IpcError if none did."""
    global _parent
    with _lock:
        if _parent is not None:
            return _parent
        # Children of this process would inherit the variable, but not the descriptor.
        fd, _, inode = os.environ.pop(PARENT_VARIABLE, '').partition(':')
        try:
            number = int(fd)
            found = os.fstat(number)
            is_parent = stat.S_ISSOCK(found.st_mode) and found.st_ino == int(inode)
        except (ValueError, OverflowError, OSError):
            is_parent = False
        if not is_parent:
            raise IpcError('this process was not started by spawnPython(): it has no parent()', 'no-parent')
        sock = socket.socket(fileno=number)
        sock.set_inheritable(False)
        _parent = Peer(_Connection(sock, False))
        _parent._connection._is_of_parent = True
        _end_quietly_with(_parent)
    return _parent


def _end_quietly_with(parent: Peer) -> None:
    """Makes the end of the parent, if nothing here handles it, end this process without a traceback: one line if it failed."""
    before, connection = sys.excepthook, parent._connection

    def hook(kind: Any, error: Any, trace: Any) -> None:
        end = connection.end
        is_the_end = type(error) is type(end) and str(error) == str(end) and not connection._is_closed_here
        if before is not sys.__excepthook__ or not is_the_end or os.environ.get('CUFFI_TRACE') == '1':
            before(kind, error, trace)
        elif isinstance(error, PeerGoneError):
            print(f'cuffi: this process ends, as its parent has: {error}', file=sys.stderr)

    sys.excepthook = hook


def _address_of(name: str) -> Tuple[str, bool]:
    """The address of a name for the kernel, and whether it is in the directory of this user alone."""
    if not isinstance(name, str) or name in ('', '.', '..') or '\0' in name:
        raise ValueError(f'{name!r} is no name for a socket')
    if name.startswith('@'):
        return '\0' + name[1:], False
    if '/' in name:
        return os.path.abspath(name), False
    runtime = os.environ.get('XDG_RUNTIME_DIR', '')
    if runtime.startswith('/') and os.path.exists(runtime):
        directory = os.path.join(runtime, 'cuffi')
    else:
        directory = os.path.join(tempfile.gettempdir(), f'cuffi-{os.geteuid()}')
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise IpcError(f'{directory} is not a directory of user {os.geteuid()} alone (mode 0700)')
    return os.path.join(directory, name), True


def _trust(sock: socket.socket, allow_other_users: bool) -> None:
    pid, uid, _ = _credentials(sock)
    if uid != os.geteuid() and not allow_other_users:
        sock.close()
        raise IpcError(f"process {pid} is of user {uid}, not of this process's: allow it with allow_other_users=True",
                       'other-user')  # fmt: skip


def connect(name: str, *, timeout: Optional[float] = None, allow_other_users: bool = False) -> Peer:
    """Connects to a process that listens by this name, in Node or Python. Raises IpcError if none does.

    :param name: a plain name, a path, or `@name` in the abstract namespace
    :param timeout: for how many seconds to wait until somebody listens; then TimeoutError
    """
    address, _ = _address_of(name)
    until = time.monotonic() + (0 if timeout is None else _seconds(timeout))
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # One whose queue is full would block for ever.
            sock.setblocking(False)
            sock.connect(address)
            break
        except OSError as error:
            sock.close()
            if error.errno == errno.EAGAIN and timeout is None:
                raise IpcError(f'cannot connect to {name}: too many processes wait there until it accepts them: '
                               'timeout=SECONDS waits for that') from None  # fmt: skip
            is_nobody = error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)
            if not is_nobody or timeout is None:
                code = 'not-listening' if is_nobody else 'ipc-failed'
                reason = errno.errorcode.get(error.errno or 0, error.errno)
                why = f'nobody listens there ({reason}); timeout=SECONDS waits for one' if is_nobody else error.strerror or error
                raise IpcError(f'cannot connect to {name}: {why}', code) from None
            if time.monotonic() >= until:
                raise TimeoutError(f'connecting to {name} took more than {timeout} s: nobody listens there: start the '
                                   'process that calls listen()') from None  # fmt: skip
            time.sleep(0.01)
    _trust(sock, allow_other_users)
    return Peer(_Connection(sock, allow_other_users))


class Listener(_Context):
    """Accepts connections by a name. `with listener:` closes it; connections that it accepted stay open."""

    def __init__(self, name: str, allow_other_users: bool) -> None:
        address, _ = _address_of(name)
        self._path = None if address.startswith('\0') else address
        self._allow_other_users = allow_other_users
        self._socket = sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The file gets the mode of its descriptor.
            os.fchmod(sock.fileno(), 0o600)
            try:
                sock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or self._path is None or not _remove_dead(self._path):
                    raise
                sock.bind(address)
            if self._path:
                self._file = os.lstat(self._path)
                if allow_other_users:
                    os.chmod(self._path, 0o666)
            sock.listen(128)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            is_used = error.errno == errno.EADDRINUSE
            why = 'another process listens there already' if is_used else error.strerror or error
            raise IpcError(f'cannot listen at {name}: {why}', 'address-in-use' if is_used else 'ipc-failed') from None
        atexit.register(self.close)
        _listeners.add(self)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def accept(self, *, timeout: Optional[float] = None) -> Peer:
        """Waits for the next process. Those of other users are refused. Raises TimeoutError, ClosedError.

        If this process has no descriptor left for a connection, it raises IpcError, and goes on listening.
        """
        until = None if timeout is None else time.monotonic() + _seconds(timeout)
        while True:
            peer = self._accept_now()
            if peer is not None:
                return peer
            left = 1.0 if until is None else min(1.0, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f'waiting for a process that connects took more than {timeout} s: start the one that calls connect()')
            waiting = select.poll()
            try:
                waiting.register(self._socket, select.POLLIN)
            except (ValueError, OSError):
                continue  # Another thread has closed it.
            waiting.poll(math.ceil(left * 1000))

    def _accept_now(self) -> Optional[Peer]:
        try:
            sock, _ = self._socket.accept()
            _trust(sock, self._allow_other_users)
            return Peer(_Connection(sock, self._allow_other_users))
        except (BlockingIOError, ConnectionAbortedError):
            return None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EBADF):
                raise self._closed_error() from None
            raise IpcError(f'a connection cannot be accepted: {error.strerror}') from None
        except IpcError as error:
            if error.code == 'other-user':
                return None
            raise

    async def aaccept(self) -> Peer:
        """As `accept`."""
        await _turn_if_due()
        loop = asyncio.get_running_loop()
        while True:
            peer = self._accept_now()
            if peer is not None:
                return peer
            # A descriptor of its own: others may wait as well.
            ready = loop.create_future()
            try:
                fd = os.dup(self._socket.fileno())
            except OSError as error:
                if error.errno == errno.EBADF:
                    continue  # Another thread has closed it.
                raise IpcError(f'a connection cannot be waited for: {error.strerror}') from None
            loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(fd)
                os.close(fd)

    async def __aenter__(self) -> 'Listener':
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> Iterator[Peer]:
        while True:
            try:
                peer = self.accept()
            except ClosedError:
                return
            yield peer

    def close(self) -> None:
        """Stops accepting, and removes the name. The second call does nothing."""
        atexit.unregister(self.close)
        if self._socket.fileno() < 0:
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It wakes up a thread that accepts.
        self._socket.close()
        if self._path:
            try:
                found = os.lstat(self._path)
                if (found.st_dev, found.st_ino) == (self._file.st_dev, self._file.st_ino):
                    os.unlink(self._path)
            except OSError:
                pass  # Somebody else has removed it.


_listeners: 'weakref.WeakSet[Listener]' = weakref.WeakSet()


def _remove_dead(path: str) -> bool:
    """Removes the socket that a killed process has left. The lock is that of cuffi in Node."""
    lock = os.path.join(os.path.dirname(path), f'.{os.path.basename(path)}.cuffi-lock')
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            probe.setblocking(False)
            probe.connect(path)
            return False
        except BlockingIOError:
            return False
        except ConnectionRefusedError:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                return False
            os.unlink(path)
            return True
        except FileNotFoundError:
            return True
        finally:
            probe.close()
            os.unlink(lock)
    finally:
        os.close(fd)


def listen(name: str, *, allow_other_users: bool = False) -> Listener:
    """Listens by a name, to which Node and Python connect. Raises IpcError if the name is in use.

    >>> with cuffi.listen('render') as listener:
    ...     for peer in listener: ...
    """
    return Listener(name, allow_other_users)

# ---- Work in the background -------------------------------------------------------------------------------


class _Poll:
    __slots__ = ('is_over', 'keeps', 'since', 'due')

    def __init__(self, is_over: Callable[[], Union[bool, float]], keeps: bool, since: float) -> None:
        self.is_over, self.keeps, self.since, self.due = is_over, keeps, since, 0.0


class _Background:
    """One thread for what nobody waits for: it watches descriptors, and polls for the ends of work."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._watched: Dict[int, Callable[[], None]] = {}
        self._calls: Deque[Callable[[], None]] = collections.deque()
        self._polls: List[_Poll] = []
        # How many polls this process must not end before.
        self._keeping = 0
        threading.Thread(target=self._run, name='cuffi background', daemon=True).start()

    def call(self, what: Callable[[], None]) -> None:
        """Calls it soon in the background. Takes no lock: objects may be collected in the middle of any work."""
        self._calls.append(what)
        try:
            os.write(self._wake_write, b'\0')
        except OSError:
            pass  # Full: it wakes up anyway.

    def watch(self, fd: int, on_ready: Callable[[], None]) -> None:
        """Calls `on_ready` in the background when a descriptor can be read or has ended, and once at first."""
        self._watched[fd] = on_ready
        self._epoll.register(fd, select.EPOLLIN)
        self.call(on_ready)

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self._epoll.unregister(fd)

    def poll(self, is_over: Callable[[], Union[bool, float]], keeps: bool = False, is_urgent: bool = True) -> None:
        """Calls `is_over` in the background until it returns True. With `keeps`, this process waits for that.

        :param is_over: returns False, or for how many seconds it need not be called again
        :param is_urgent: whether the first calls are frequent
        """
        if keeps:
            self._keeping += 1
        poll = _Poll(is_over, keeps, time.monotonic() if is_urgent else 0.0)
        self.call(lambda: self._polls.append(poll))

    def drain(self) -> None:
        """Before this process ends: other processes may wait for what its streams still do."""
        while self._keeping > 0:
            time.sleep(0.0005)

    def _run(self) -> None:
        while True:
            timeout = min((poll.due for poll in self._polls), default=math.inf) - time.monotonic()
            if timeout < 0.001:
                # The system waits for whole milliseconds.
                time.sleep(max(timeout, 0))
                timeout = 0
            for fd, _ in self._epoll.poll(None if timeout == math.inf else timeout):
                if fd != self._wake_read:
                    self._guarded(self._watched.get(fd))
                    continue
                try:
                    os.read(fd, 4096)
                except BlockingIOError:
                    pass
            while self._calls:
                self._guarded(self._calls.popleft())
            # Calls add polls, polls do not.
            self._polls = [poll for poll in self._polls if not self._is_over(poll)]

    def _is_over(self, poll: _Poll) -> bool:
        if poll.due > time.monotonic():
            return False
        rest = self._guarded(poll.is_over)
        if rest is True or rest is None:
            self._keeping -= poll.keeps
            return True
        now = time.monotonic()
        poll.due = now + (rest or (0.0001 if now - poll.since < 0.002 else 0.001))
        return False

    @staticmethod
    def _guarded(what: Optional[Callable[[], Any]]) -> Any:
        try:
            return what and what()
        except Exception:  # It must not end the thread without a word.
            if not _is_exiting:
                traceback.print_exc()
        return None


_the_background: Optional[_Background] = None


def _background() -> _Background:
    global _the_background
    if _the_background is None or _the_background.pid != os.getpid():
        with _lock:
            if _the_background is None or _the_background.pid != os.getpid():
                _the_background = _Background()
    return _the_background


def _call_later(what: Callable[[], None]) -> None:
    """Calls it in the background, from anywhere: objects may be collected in the middle of any work, and of its end."""
    background = _the_background
    if background and background.pid == os.getpid() and not _is_exiting:
        background.call(what)


# What ends for other processes when the last process closes it: a child by fork must not keep it.
_lifelines: 'weakref.WeakSet[Any]' = weakref.WeakSet()


def _close_lifelines() -> None:
    global _waits_lock
    _waits_lock = threading.Lock()
    for each in list(_lifelines):
        each.abandon()


os.register_at_fork(after_in_child=_close_lifelines)


@atexit.register
def _drain_at_exit() -> None:
    if _the_background and _the_background.pid == os.getpid() and not _has_failed():
        _the_background.drain()


def _release_soon(is_unused: Callable[[], bool], release: Callable[[], None]) -> None:
    """Calls `release` once `is_unused` and no stream of this process waits: then the driver does not block it.

    It may still block until running work is done, so a thread of its own calls it.
    """

    def is_over() -> bool:
        if not is_unused() or _waiting_streams():
            return False
        threading.Thread(target=release, name='cuffi release', daemon=True).start()
        return True

    _background().poll(is_over)


class _Releases:
    """Frees and unmaps memory behind the work of a device, in a thread of its own, which the driver may block."""

    def __init__(self, device: _Device) -> None:
        self._device = device
        # Its methods take no lock of Python: objects may be collected in the middle of any work.
        self._queue: 'queue.SimpleQueue[Callable[[], Any]]' = queue.SimpleQueue()
        self._pid = 0

    def start(self) -> None:
        """Before there is anything to release: no thread can be started while objects are collected."""
        if self._pid != os.getpid():
            with _lock:
                if self._pid != os.getpid():
                    self._queue = queue.SimpleQueue()
                    threading.Thread(target=self._run, args=(self._queue,), name='cuffi releases', daemon=True).start()
                    self._pid = os.getpid()

    def add(self, release: Callable[[], Any]) -> None:
        """Calls it when the work that is queued on the device is done. May be called anywhere."""
        self._queue.put(release)

    def flush(self) -> None:
        """Waits until what was added is released, but not for other processes."""
        done = threading.Event()
        self._queue.put(done.set)
        while not done.wait(0.005) and not self._open_waits():
            pass

    def _open_waits(self) -> List[Tuple[_Page, int, int]]:
        """The last wait of each stream of the device that waits."""
        with _waits_lock:
            return [stream.waits[-1] for stream in _waiting if stream.device is self._device and stream.is_waiting()]

    def _run(self, added: 'queue.SimpleQueue[Callable[[], Any]]') -> None:
        while True:
            batch = [added.get()]
            while not added.empty():
                batch.append(added.get())
            # The driver might block other calls for as long as it waits for these.
            waits = self._open_waits()
            while not all(words.reached(index, count) for words, index, count in waits):
                time.sleep(0.001)
            waits.clear()
            try:
                self._device.synchronize()
            except CuffiError:
                pass  # The context is lost: nothing runs in it.
            while batch:
                try:
                    batch.pop(0)()
                except CuffiError:
                    pass  # As above: the memory ends with the process.
                except Exception:  # It must not end the thread without a word.
                    if not _is_exiting:
                        traceback.print_exc()


class _Closable(_Context):
    """What is closed by `close()`, a `with` block, or the last reference."""

    _instead = 'refer to it, or send it with peer.send()'
    _state: Any = None

    def __init__(self, state: Any) -> None:
        # Now: none can be started while objects are collected.
        _background()
        self._state = state

    @property
    def closed(self) -> bool:
        return self._state is None

    def _held(self) -> Any:
        state = self._state
        if state is None:
            raise self._closed_error()
        return state

    def close(self) -> None:
        """Closes it. Does not wait. The second call does nothing."""
        state, self._state = self._state, None
        if state is not None:
            state.close()

    def __enter__(self) -> Any:
        self._held()
        return self

    def __del__(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            _call_later(state.close)

    def __repr__(self) -> str:
        return f'<cuffi.{type(self).__name__}{" closed" if self.closed else ""}>'


# ---- Words that processes share ---------------------------------------------------------------------------

_INFINITE = float('inf')


class _Words(_Page):
    """64-bit words in memory that several processes and their GPUs share. Each word has one writer."""

    def __init__(self, fd: int, byte_length: int) -> None:
        super().__init__(fd, byte_length)
        # Whether waits for the words were ended: what is not reached never will be.
        self.is_over = False
        # Whether nobody can replace the memory. Otherwise only hosts may wait for its words.
        self.is_fixed = False

    @classmethod
    def accept(cls, fd: int, byte_length: int, what: str) -> '_Words':
        """Maps memory of another process. Raises IpcError unless nobody can take it away from under this one."""
        if not _is_sealed(fd, byte_length):
            raise IpcError(f'received a {what} whose memory is not sealed memory of its size')
        return cls(fd, byte_length)

    def read(self, index: int) -> Union[int, float]:
        """A value; infinity after the end of all waits, -1 for what is no value."""
        value: int = self.words[index]
        if value <= _SAFE:
            return value
        return _INFINITE if value == END_OF_WAITS else -1

    def write(self, index: int, value: int) -> None:
        self.words[index] = value

    def reached(self, index: int, count: int) -> bool:
        value = self.words[index]
        # As `read`: what is no value has not reached anything.
        return count <= value and (value <= _SAFE or value == END_OF_WAITS) or self.is_over

    def writer(self, pid_index: int) -> int:
        """The pid that is stored in a word, behind which its pid namespace is; 0 if it is of another one, or none."""
        pid = self.read(pid_index) if self.read(pid_index + 1) == _self().namespace else 0
        return int(pid) if 0 < pid < 1 << 32 else 0

    def sign(self, pid_index: int) -> None:
        self.write(pid_index + 1, _self().namespace)
        self.write(pid_index, _self().pid)

    def end_waits(self, begin: int, end: int) -> None:
        self.is_over = True
        for index in range(begin, end):
            self.write(index, END_OF_WAITS)


def _is_sealed(fd: int, byte_length: int) -> bool:
    """Whether a descriptor, from any process, is memory of exactly that size, which is fixed.

    Memory of huge pages is refused: touching it kills the process once the system has no huge page left.
    """
    sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & sealed != sealed or os.fstat(fd).st_size != byte_length:
            return False
    except OSError:
        return False
    status = (ctypes.c_long * 32)()
    return _libc.fstatfs(fd, status) == 0 and status[0] != _HUGETLBFS_MAGIC


def _seal_against_holes(fd: int) -> bool:
    """Keeps everybody from replacing mapped memory, where a GPU would go on with the old one, and from mapping it.

    Returns False if the kernel (before 5.1) or the memory does not allow that.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    except OSError:
        return False
    return True


def _is_pipe_end(fd: int, access: int) -> bool:
    """Whether a descriptor is that end of a pipe without a name. Named pipes have the rights of their file."""
    global _pipe_file_system
    kind, _, file_system = _file_facts(fd)
    if kind != stat.S_IFIFO:
        return False
    if _pipe_file_system is None:
        # `fstatfs` would ask the file system of a named pipe, which may be another process's (FUSE).
        ends = os.pipe()
        _pipe_file_system = _file_facts(ends[0])[2]
        _close_fds(ends)
    return file_system == _pipe_file_system and fcntl.fcntl(fd, fcntl.F_GETFL) & (_O_PATH | os.O_ACCMODE) == access


# All pipes without names are on one file system of the kernel.
_pipe_file_system: Optional[Tuple[int, int]] = None


def _whole_pages(byte_length: int) -> int:
    return -(-byte_length // PAGE_BYTE_LENGTH) * PAGE_BYTE_LENGTH


# ---- Streams that wait ------------------------------------------------------------------------------------

# Behind a wait a stream takes 1,020 operations; the next one blocks its caller. Most are left for other work.
_MAX_WAITS_OF_STREAM = 320
# The most waits for all streams of a device, as some of them may share a hardware queue.
_MAX_WAITS_OF_DEVICE = 512
# The most operations that are queued behind a wait, waits included. The rest is for what cuffi does not see.
_MAX_WORK_OF_STREAM = 960
# Above this, what can wait on the host does.
_MAX_WORK_AHEAD = _MAX_WORK_OF_STREAM // 2
# The most streams whose counts are kept.
_MAX_COUNTED = 256
# After so many waits or operations, an event tells how many have run.
_WAITS_PER_EVENT, _WORK_PER_EVENT = _MAX_WAITS_OF_STREAM // 2, 128
_MAX_AHEAD = 64
_NO_FLAGS = _u32(_WAIT_GEQ)


class _Stream:
    """A stream, and what it has queued behind waits. It counts too much rather than too little."""

    __slots__ = ('device', 'handle', 'argument', 'driver', 'waits', '_awaited', '_is_blocking', '_events', '_queued', '_since_mark',
                 '_mark', '_unchecked', '__weakref__')  # fmt: skip

    def __init__(self, device: _Device, handle: int) -> None:
        self.device, self.handle, self.argument, self.driver = device, handle, _u64(handle), _cuda()
        # Words and the counts that they must reach, in order. Reached ones are removed.
        self.waits: Deque[Tuple[_Page, int, int]] = collections.deque()
        # For each word of them the highest count.
        self._awaited: Dict[Tuple[_Page, int], int] = {}
        self._is_blocking: Optional[bool] = None
        # Events that stand behind a wait, for which it waits.
        self._events: List[_EventHandle] = []
        # How many waits and other operations may not have run yet, and how many of them came after the mark.
        self._queued, self._since_mark = [0, 0], [0, 0]
        self._mark: Optional[_EventHandle] = None
        self._unchecked = 0

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

    def awaits(self, words: _Page, index: int, count: int) -> bool:
        """Whether it waits already for what a word reaches later, or at the same time."""
        return self._awaited.get((words, index), 0) >= count

    @property
    def wait_count(self) -> int:
        """How many waits may not have run yet."""
        return self._queued[0]

    def fits_waits(self, count: int) -> bool:
        waits, work = self._queued
        return waits + count <= _MAX_WAITS_OF_STREAM and waits + work + count <= _MAX_WORK_OF_STREAM

    def add_wait(self, words: _Page, index: int, count: int) -> None:
        self.waits.append((words, index, count))
        self._awaited[words, index] = count
        self._queued[0] += 1
        self._since_mark[0] += 1
        self._keep()

    def _keep(self) -> None:
        """Keeps the counts, until those of many others are newer. Nobody tells when a stream is destroyed."""
        if self not in _counted:
            while len(_counted) >= _MAX_COUNTED:
                del _counted[next(iter(_counted))]
            _counted[self] = None

    def remove_wait(self, words: _Page, index: int, count: int) -> None:
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
        if not self.is_behind_wait():
            self._queued[1] = self._since_mark[1] = self._unchecked = 0
            return True
        if sum(self._queued) >= most or self._unchecked >= _WORK_PER_EVENT:
            self.check()
            if sum(self._queued) >= most:
                return False
        if adds:
            self._queued[1] += 1
            self._since_mark[1] += 1
            self._unchecked += 1
            self._keep()
        return True

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
        if self.handle == _LEGACY_STREAM:
            return True
        legacy = _streams.get((self.device.ordinal, _LEGACY_STREAM))
        return legacy is not None and (legacy.is_waiting() or sum(legacy._queued) > 0)

    @property
    def is_blocking(self) -> bool:
        """Whether it synchronizes with the legacy default stream, or is that one."""
        if self._is_blocking is None:
            flags = ctypes.c_uint32()
            status = self.driver.cuStreamGetFlags(self.handle, ctypes.byref(flags)) if self.handle > 2 else 0
            self._is_blocking = status == 0 and not flags.value & 1
        return self._is_blocking

    def add_event(self, event: '_EventHandle') -> None:
        """Notes that it waits for an event that stands behind a wait."""
        self._waits_for_event()
        self._events.append(event)
        self._keep()

    def _waits_for_event(self) -> bool:
        self._events = [event for event in self._events if not event.has_run()]
        return bool(self._events)

    def refresh(self) -> None:
        """Finds out whether all has run up to the mark: a value that is reached does not prove that a wait for it has."""
        if self._mark and self._mark.has_run():
            self._queued, self._mark = self._since_mark[:], None

    def check(self) -> None:
        """Finds out how much has run, now or at the next call. The stream must exist."""
        self.refresh()
        self._unchecked = 0
        if self._mark is None and any(self._queued):
            self._mark, self._since_mark = _event_behind(self), [0, 0]
            self.refresh()


def _event_behind(stream: _Stream) -> '_EventHandle':
    """An event that is done when all has run that is queued in a stream so far. Raises CudaError."""
    with stream.device:
        event = _EventHandle(stream.device, _read('cuEventCreate', 2))
        _call('cuEventRecord', event.value, stream.handle)
    return event


_streams: 'weakref.WeakValueDictionary[Tuple[int, int], _Stream]' = weakref.WeakValueDictionary()
# Those that have waits, and some that had.
_waiting: Set[_Stream] = set()
# Those that had something queued behind a wait, the oldest first.
_counted: Dict[_Stream, None] = {}
_waits_lock = threading.Lock()


def _stream_of(device: _Device, handle: int) -> _Stream:
    key = (device.ordinal, handle)
    with _lock:
        stream = _streams.get(key)
        if stream is None:
            stream = _streams[key] = _Stream(device, handle)
        return stream


def _current_stream(stream: Any) -> _Stream:
    """A stream of the current device, by default its legacy default stream."""
    return _stream_of(_current_device(), _stream_handle(stream))


def _max_waiting_streams() -> int:
    """Two fewer than a device has queues: if all queues held waits, nothing else of the process would run."""
    try:
        given = int(os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS', ''))
    except ValueError:
        given = 8
    return max(0, (given if 1 <= given <= 32 else 8) - 2)


def _waiting_streams() -> int:
    with _waits_lock:
        _waiting.intersection_update([stream for stream in _waiting if stream.is_waiting()])
        return len(_waiting)


def _is_awaited(words: _Words) -> bool:
    with _waits_lock:
        return any(wait[0] is words for stream in _waiting if stream.is_waiting() for wait in stream.waits)


def _is_behind_wait(device: _Device, handle: int) -> bool:
    """Whether what is queued now in a stream may stand behind a wait for another process."""
    if not _waiting:
        return False
    with _waits_lock:
        return _stream_of(device, handle).is_behind_wait()


def _has_room(stream: _Stream, most: int = _MAX_WORK_OF_STREAM, adds: bool = True) -> bool:
    """As its method, from any thread."""
    with _waits_lock:
        return stream.has_room(most, adds)


def _have_room_for_waits(stream: _Stream, count: int) -> bool:
    """Whether so many more waits fit into a stream, and into all that wait on its device."""
    with _waits_lock:
        return _fit_waits(stream, count)


def _fit_waits(stream: _Stream, count: int) -> bool:
    if not stream.fits_waits(count):
        stream.check()
        if not stream.fits_waits(count):
            return False
    if not stream.is_waiting() and sum(other.is_waiting() for other in _waiting) >= _max_waiting_streams():
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


def _enqueue_wait(words: _Page, index: int, count: int, stream: _Stream) -> bool:
    """Makes later work of a stream wait for a word. Returns False if no more waits may be queued now."""
    address = words.arguments[stream.device][index]
    with _waits_lock:
        if stream.is_waiting() and stream.awaits(words, index, count):
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


def _enqueue_store(words: _Page, index: int, count: int, stream: _Stream) -> None:
    """Stores a count when the work that is queued in a stream so far is done: by the host, if that stream has no room."""
    address = words.arguments[stream.device][index]
    # Behind an earlier store of the host only the host stores, so that no word goes back.
    if index in words.host_stores or ((_waiting or _counted) and not _has_room(stream)):
        _store_by_host(words, index, count, stream)
        return
    if stream.handle > 2:
        status = stream.driver.cuStreamWriteValue64_v2(stream.argument, address, count, _NO_FLAGS)
    else:
        with stream.device:
            status = stream.driver.cuStreamWriteValue64_v2(stream.argument, address, count, _NO_FLAGS)
    if status:
        raise CudaError('cuStreamWriteValue64_v2', status, 'signaling to another process how far a stream is')


def _store_by_host(words: _Page, index: int, count: int, stream: _Stream, after: int = 0) -> None:
    """Stores a count when the work of a stream is done and an earlier count is stored. This process stays until then."""
    event = _event_behind(stream)
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

    _background().poll(is_over, keeps=True)


def _too_much_work() -> CuffiError:
    return CuffiError(
        f'{_MAX_WORK_OF_STREAM} operations are queued in this stream behind a wait for another process: the driver would '
        'block this process at the next ones. Synchronize the stream or call timeline.reached() before queueing more')


def _check_count(value: Any, least: int, name: str) -> int:
    """Returns an integer of any library as one of Python."""
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise TypeError(f'{name} must be an int, not {type(value).__name__}')
    count = operator.index(value)
    if not least <= count <= _SAFE:
        raise ValueError(f'{name} must be from {least} to {_SAFE}, not {value}')
    return count


# ---- Timelines --------------------------------------------------------------------------------------------

# How often is looked whether a value that another process has promised is reached.
_PROMISE_S = 0.02


class _TimelineState:
    """A timeline, which outlives its object until its work is done."""

    def __init__(self, memory: int, lifeline: int, write_end: int, last: int, on_released: Callable[[], None],
                 sender: Optional[_Connection] = None) -> None:  # fmt: skip
        """Owns the descriptors, also if it raises. `write_end` is -1 for those who only wait.

        :param last: the last value, which another process may still signal
        :param sender: to that process, or to the one that handed over for it
        """
        self.fds, self.write_end, self.last, self.on_released = (memory, lifeline), write_end, last, on_released
        self.last_stream: Optional[_Stream] = None
        # The value that another process has promised and did not reach, and the pid of that process, or 0.
        self.lost: Optional[Tuple[int, int]] = None
        self.is_ended = self.is_closed = self.is_released = False
        # Its object, and every duty: to store a value, or to watch a process until its last value is reached.
        self.uses = 1
        self.lock = threading.RLock()
        try:
            self.words = _Words.accept(memory, PAGE_BYTE_LENGTH, 'timeline')
            if not _is_pipe_end(lifeline, os.O_RDONLY) or (write_end >= 0 and not _is_pipe_end(write_end, os.O_WRONLY)):
                raise IpcError('received a timeline without its pipe')
            if write_end >= 0 and not self.read() >= last:
                self._watch_predecessor(sender)
        except (OSError, IpcError) as error:
            _close_fds([fd for fd in (memory, lifeline, write_end) if fd >= 0])
            raise error if isinstance(error, IpcError) else IpcError(f'a timeline cannot be mapped: {error}') from None
        _lifelines.add(self)
        if write_end >= 0:
            self.words.sign(TIMELINE_PID)
        else:
            self.watch()

    def _watch_predecessor(self, sender: Optional[_Connection]) -> None:
        """Watches the process that handed over until its last value is reached, also after the close here.

        The next process that the signaler goes to watches only this one. Only the kernel says who the process
        is: every process can write the page.
        """
        last = self.last
        try:
            if sender is None:
                raise OSError(errno.ENOSYS, 'it is unknown')
            pid, pidfd = sender.pid, sender.end_of_process()
        except OSError as error:
            raise IpcError(
                f'received the signaler of a timeline before value {last} was reached, from a process whose end cannot be '
                f'observed here: call timeline.reached({last}) there before it is sent: {error.strerror}', 'not-supported') from None
        ended = select.poll()
        if pidfd >= 0:
            ended.register(pidfd, select.POLLIN)
        self.uses += 1

        def is_settled() -> Union[bool, float]:
            # First: what was stored before the process ended is then seen.
            is_gone = pidfd < 0 or bool(ended.poll(0))
            is_reached = self.read() >= last
            # That process may have found that another one before it has ended, and have stored that.
            if not is_reached and not is_gone and not self.is_ended:
                return _PROMISE_S
            if not is_reached:
                self.lose(pid if is_gone else 0, last)
            if pidfd >= 0:
                os.close(pidfd)
            self.release()
            return True

        _background().poll(is_settled)

    @property
    def is_lost(self) -> bool:
        """Whether a value that was promised never comes, as this process or another one has found."""
        return self.lost is not None or self.words.words[TIMELINE_OUTCOME] == OUTCOME_ABANDONED

    def lose(self, pid: int, value: int) -> None:
        """Ends the timeline, as a value that was promised never comes."""
        with self.lock:
            self.lost = (pid, value)
            self._free_streams(OUTCOME_ABANDONED)
            if self.is_closed:
                return
            write_end, self.write_end = self.write_end, -1
            if write_end >= 0:
                self.uses += 1
                self._end(write_end)

    def watch(self) -> None:
        lifeline = self.fds[1]

        def on_ready() -> None:
            # Also for data: no writer of cuffi writes any.
            if not self.is_released and _has_ended(lifeline):
                _background().unwatch(lifeline)
                self._free_streams(OUTCOME_CLOSED)

        _background().watch(lifeline, on_ready)

    def _free_streams(self, outcome: int) -> None:
        """Ends all waits, until the streams have gone on: a GPU of the ended process, or another process, may still write."""
        is_awaited, until = _is_awaited(self.words), time.monotonic() + _REPAIR_S

        def is_over() -> Union[bool, float]:
            if self.mark_ended(outcome):
                return True
            is_late = time.monotonic() > until
            return is_late and (0.05 if is_awaited else True)

        if not self.mark_ended(outcome):
            _background().poll(is_over)

    def mark_ended(self, outcome: int = OUTCOME_CLOSED) -> bool:
        """Ends all waits, and stores the last value beside. Returns whether the memory is gone."""
        self.is_ended = True
        words = self.words.words
        value, last = words[TIMELINE_VALUE], words[TIMELINE_LAST]
        # What a GPU still stores behind a value that never came counts for nobody.
        if value <= _SAFE and words[TIMELINE_OUTCOME] != OUTCOME_ABANDONED and not value <= last <= _SAFE:
            words[TIMELINE_LAST] = value
        # Before the waits end: who sees a later value must see this, too.
        if words[TIMELINE_OUTCOME] < outcome:
            words[TIMELINE_OUTCOME] = outcome
        if value != END_OF_WAITS:
            words[TIMELINE_VALUE] = END_OF_WAITS
        return words is _NO_WORDS

    def read(self) -> Union[int, float]:
        """The value; after the end, the last one. -1 for what is no value."""
        value = _INFINITE if self.is_ended else self.words.read(TIMELINE_VALUE)
        # Read second: a GPU may store over the end.
        if value != _INFINITE and not self.words.words[TIMELINE_OUTCOME]:
            return value
        self.is_ended = True
        last = self.words.read(TIMELINE_LAST)
        return last if 0 <= last <= _SAFE else 0

    def is_reached(self, value: int) -> bool:
        """Raises PeerGoneError if it cannot be reached any more."""
        if self.is_closed:
            raise ClosedError('this Timeline is closed')
        if self.read() >= value:
            return True
        if self.is_ended:
            raise self.gone(value)
        return False

    def gone(self, value: int = 0) -> PeerGoneError:
        unreached = f': value {value} will not be reached' if value else ''
        after = f'after value {self.read()}'
        if self.is_lost:
            pid = self.lost[0] if self.lost else 0
            return PeerGoneError(
                f'{f"process {pid}" if pid else "a process"} that had handed over the signaler of this timeline has ended '
                f'{after}, before the values that it had signaled were reached{unreached}', pid)
        pid = self.words.writer(TIMELINE_PID)
        who = f'process {pid}' if pid else 'the process that signals this timeline'
        return PeerGoneError(f'{who} has ended or closed the timeline {after}{unreached}', pid)

    def signal(self, value: int, stream: _Stream) -> None:
        with self.lock:
            if self.is_lost:
                raise self.gone(value)
            if self.write_end < 0:
                raise CuffiError('this process does not signal this timeline: only the process that created it does, or '
                                 'the one that timeline.signaler() was sent to')  # fmt: skip
            if value <= self.last:
                raise ValueError(f'value must be above {self.last}, the last value that was signaled, not {value}')
            # Values are reached in the order of the calls, whatever their streams.
            is_behind_other = self.last_stream is not stream and not self.words.reached(TIMELINE_VALUE, self.last)
            if is_behind_other and not _enqueue_wait(self.words, TIMELINE_VALUE, self.last, stream):
                _store_by_host(self.words, TIMELINE_VALUE, value, stream, self.last)
            else:
                _enqueue_store(self.words, TIMELINE_VALUE, value, stream)
            self.last, self.last_stream = value, stream

    def hand_over(self) -> '_Signaling':
        with self.lock:
            if self.is_lost:
                raise self.gone()
            if self.write_end < 0:
                raise CuffiError('this process does not signal this timeline: it has no signaler to send')
            fds = [os.dup(fd) for fd in self.fds] + [self.write_end]
            self.write_end = -1
            self.uses += 1
        self.watch()
        if self.last_stream and not self.read() >= self.last:
            self._keep_promise()
        return _Signaling(self, fds)

    def _keep_promise(self) -> None:
        """Stays until the values that are queued here are stored, or stores that they never come."""
        self.uses += 1

        def is_over() -> Union[bool, float]:
            if not self._is_over():
                return _PROMISE_S
            # As after an error of the context.
            if not self.read() >= self.last:
                self.mark_ended(OUTCOME_ABANDONED)
            self.release()
            return True

        _background().poll(is_over, keeps=True)

    def abandon(self) -> None:
        """In a child by fork: it does not signal."""
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end, self.is_closed = -1, True

    def is_last_signaled(self) -> bool:
        return self.words.reached(TIMELINE_VALUE, self.last)

    def _is_over(self) -> bool:
        """Whether the last value is stored, or never will be."""
        return self.is_last_signaled() or self.is_ended or (self.last_stream is not None and _is_lost(self.last_stream.device))

    def close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            write_end, self.write_end = self.write_end, -1
        if write_end < 0:
            self.release()
        else:
            self._end(write_end)

    def _end(self, write_end: int) -> None:
        """Ends the timeline for all, after the last value."""

        def end() -> bool:
            if not self._is_over():
                return False
            # A process that is blocked cannot end the waits of its streams itself.
            self.mark_ended()
            _close_fds([write_end])
            self.release()
            return True

        if not end():
            # Another process may state a last value that is never reached: for it this one does not stay.
            _background().poll(end, keeps=self.last_stream is not None)

    def end_unsent(self, fds: List[int]) -> None:
        """Ends the timeline for all, after the last value, as its signaler was closed instead of sent."""
        memory, lifeline, write_end = fds
        _close_fds((memory, lifeline))
        self._end(write_end)

    def release(self) -> None:
        """Ends one use. Until no stream waits for it, the end of the signaling process is watched."""
        with self.lock:
            self.uses -= 1
            if self.uses:
                return

        def release() -> None:
            self.is_released = True
            _background().unwatch(self.fds[1])
            _close_fds(self.fds)
            _close_page(self.words)
            self.on_released()

        if self.words._addresses:
            _release_soon(lambda: not _is_awaited(self.words), release)
        else:
            release()


class _Signaling:
    """The right to signal a timeline, until it is sent or closed."""

    def __init__(self, state: _TimelineState, fds: List[int]) -> None:
        self.state, self.fds = state, fds
        _lifelines.add(self)

    def take(self) -> List[int]:
        """The descriptors, to be sent."""
        fds, self.fds = self.fds, []
        self.state.release()
        return fds

    def put_back(self, fds: List[int]) -> bool:
        """Undoes `take`. Returns False if the timeline was released meanwhile, as everything of it was closed."""
        with self.state.lock:
            if not self.state.uses:
                return False
            self.state.uses += 1
            self.fds = fds
            return True

    def close(self) -> None:
        fds, self.fds = self.fds, []
        if fds:
            self.state.end_unsent(fds)

    def abandon(self) -> None:
        """In a child by fork, which has no thread that closes."""
        while self.fds:
            os.close(self.fds.pop())


def _has_ended(fd: int) -> bool:
    """Whether a pipe has data, or its last writer has closed it."""
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(0))


def _close_page(page: _Page) -> None:
    try:
        page.close()
    except CuffiError:
        pass  # The context is lost.


def _is_lost(device: _Device) -> bool:
    """Whether the context of a device is lost: then nothing that is queued in it will be done."""
    with device:
        return _cuda().cuStreamQuery(_LEGACY_STREAM) in _STICKY


def _too_many_waits(value: int) -> CuffiError:
    return CuffiError(
        'too many streams of this process wait already, or too much is queued behind waits: with one more, nothing '
        f'else of the process would run. Use fewer streams, call timeline.reached({value}) before queueing more, or '
        'raise CUDA_DEVICE_MAX_CONNECTIONS (at most 32)')


def _nothing() -> None:
    pass


class Timeline(_Closable):
    """A counter that streams and hosts of several processes wait for. `Timeline()` stands at 0.

    One process signals: the one that created it, or the one that `signaler()` was sent to. All others
    wait. It is sent with `peer.send`. If the signaling process ends, or closes its timeline, streams that
    wait go on, and the waits of hosts raise PeerGoneError. Send it only to processes that you trust: each
    of them can write the counter.

    >>> timeline.signal(1, stream)             # here, behind the work of a stream
    >>> timeline.wait(1, stream)               # there; or timeline.reached(1) on the host

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html
    """

    def __init__(self) -> None:
        memory = _sealed_memory(PAGE_BYTE_LENGTH, 'cuffi-timeline')
        super().__init__(_TimelineState(memory, *os.pipe2(os.O_CLOEXEC), 0, _nothing))

    @classmethod
    def _opened(cls, state: _TimelineState) -> 'Timeline':
        timeline = cls.__new__(cls)
        _Closable.__init__(timeline, state)
        return timeline

    @property
    def is_signaler(self) -> bool:
        """Whether this process signals."""
        return self._state is not None and self._state.write_end >= 0

    @property
    def value(self) -> int:
        """The last value that was reached; 0 at first. Raises PeerGoneError after the end, IpcError for nonsense."""
        state: _TimelineState = self._held()
        value = state.read()
        if value < 0:
            raise IpcError('a process has stored what is not a value in the page of this timeline')
        if state.is_ended:
            raise state.gone()
        return int(value)

    def signal(self, value: int, stream: Any = None) -> None:
        """Signals a value when the work that is queued in a stream so far is done. Returns at once.

        Raises ValueError unless it is above the last one, CuffiError if this process does not signal, PeerGoneError if
        the process that handed the signaler over ended before its last value was reached.

        :param stream: by default the legacy default stream
        """
        value = _check_count(value, 1, 'value')
        self._held().signal(value, _current_stream(stream))

    def wait(self, value: int, stream: Any = None) -> None:
        """Makes later work of a stream wait until a value is reached, which need not be signaled yet.

        Raises PeerGoneError if it can no longer come, CuffiError if too many streams wait already. While a
        stream waits, the driver blocks some calls of this process: see docs/waiting.md of cuffi.
        """
        value = _check_count(value, 0, 'value')
        state: _TimelineState = self._held()
        found = _current_stream(stream)
        if not state.is_reached(value) and not _enqueue_wait(state.words, TIMELINE_VALUE, value, found):
            raise _too_many_waits(value)

    def reached(self, value: int, *, timeout: Optional[float] = None) -> None:
        """Waits on the host until a value is reached. Raises TimeoutError, PeerGoneError, ClosedError."""
        value = _check_count(value, 0, 'value')
        state: _TimelineState = self._held()
        _wait_until(lambda: state.is_reached(value), timeout, lambda: f'value {value} of a timeline that stands at {state.read()}')

    async def areached(self, value: int, *, timeout: Optional[float] = None) -> None:
        """As `reached`."""
        value = _check_count(value, 0, 'value')
        state: _TimelineState = self._held()
        await _await_until(lambda: state.is_reached(value), timeout,
                           lambda: f'value {value} of a timeline that stands at {state.read()}')  # fmt: skip

    def signaler(self) -> 'TimelineSignaler':
        """Returns the right to signal, to send to another process once: what arrives there signals.

        Values that are queued here still come first. If this process ends before that, the timeline has ended for all.
        Raises CuffiError if this process does not signal, PeerGoneError if the values before never come.
        """
        state: _TimelineState = self._held()
        return TimelineSignaler(state.hand_over(), state.last)

    def _export(self) -> '_Exported':
        return _Exported(_descriptors.encode(_Fields(KIND_TIMELINE)), (), None, None, owned=[os.dup(fd) for fd in self._held().fds], root=self._held())


class TimelineSignaler(_Closable):
    """The right to signal a timeline, on its way to another process. If it is closed instead, the timeline ends."""

    def __init__(self, signaling: _Signaling, last: int) -> None:
        super().__init__(signaling)
        self._last = last

    def _export(self) -> '_Exported':
        signaling: _Signaling = self._held()
        exported = _Exported(_descriptors.encode(_Fields(KIND_SIGNALER, last=self._last)), (), None, None, owned=signaling.take())
        self._state = None

        def restore(fds: List[int]) -> bool:
            if not signaling.put_back(fds):
                return False
            self._state = signaling
            return True

        exported.restore = restore
        return exported


class _TimelineFields:
    """A timeline of another process, to wait for it or to signal it."""

    def __init__(self, fields: _Fields) -> None:
        self.count, self.last = (3, fields.last) if fields.kind == KIND_SIGNALER else (2, 0)

    def open(self, connection: _Connection, fds: List[int], lease: int) -> Timeline:
        memory, lifeline, *write_ends = _taken(fds, self.count, 'a timeline')
        release = lambda: connection._release(lease)  # noqa: E731
        state = _TimelineState(memory, lifeline, (write_ends or [-1])[0], self.last, release, connection)
        return Timeline._opened(state)


def _taken(fds: List[int], count: int, what: str) -> List[int]:
    """Takes the descriptors that came with an object."""
    if len(fds) != count:
        raise IpcError(f'{what} needs {count} descriptors, but {len(fds)} came with it', 'no-file-descriptor')
    taken = fds[:]
    fds.clear()
    return taken

# ---- Channels: what both ends share -----------------------------------------------------------------------

_EAGER_S, _SWEEP_S, _BUSY_S = 0.0002, 0.1, 0.005
_END = object()

_Layout = Tuple[_Dtype, Tuple[int, ...]]


class _Ring(_Words):
    """What the producer of a channel writes, and all consumers read. Message n is in slot n modulo `slots`."""

    def __init__(self, fd: int, slots: int, has_records: bool) -> None:
        super().__init__(fd, self.length(slots, has_records))
        self.slots, self.has_records = slots, has_records

    @staticmethod
    def length(slots: int, has_records: bool) -> int:
        return _whole_pages((RING_FILLED + 2 * slots) * 8 + (slots * RECORD_BYTE_LENGTH if has_records else 0))

    @property
    def closed_at(self) -> Optional[int]:
        """How many messages there are in all; None while the channel is open."""
        value = self.read(RING_CLOSED_AT)
        return int(value) - 1 if 0 < value < _INFINITE else None

    def is_filled(self, message: int) -> bool:
        """Whether the work before a message is done."""
        if self.words[RING_FILLED + message % self.slots] <= message:
            return False
        value = self.read(RING_FILLED + message % self.slots)
        if value == _INFINITE:
            # After the end of the producer the last value stands beside it.
            value = self.read(RING_FILLED + self.slots + message % self.slots)
        return message < value < _INFINITE

    def end_unfilled(self) -> None:
        """Ends the waits of streams for messages that will not come. May be called by several processes."""
        for index in range(RING_FILLED, RING_FILLED + self.slots):
            value = self.read(index)
            if value != _INFINITE:
                self.write(index + self.slots, max(int(value), 0))
                self.write(index, END_OF_WAITS)

    def record_at(self, message: int) -> int:
        return (RING_FILLED + 2 * self.slots) * 8 + message % self.slots * RECORD_BYTE_LENGTH

    def write_record(self, message: int, layout: Optional[_Layout], meta: bytes, is_skipped: bool = False) -> None:
        bits, at = (RECORD_FLAG_SKIPPED if is_skipped else 0) | (RECORD_FLAG_LAYOUT if layout else 0), self.record_at(message)
        struct.pack_into('<II', self._map, at, bits, len(meta))
        self._map[at + RECORD_AT_META : at + RECORD_AT_META + len(meta)] = meta
        if layout:
            dtype, shape = layout
            struct.pack_into('<I', self._map, at + RECORD_AT_NDIM, len(shape))
            struct.pack_into(f'<16s{len(shape)}q', self._map, at + RECORD_AT_DTYPE, dtype.name.encode(), *shape)

    def read_record(self, message: int, byte_length: int) -> Tuple[bool, Optional[_Layout], Any]:
        """Whether there is no message, its own layout if any, and its `meta`. Raises IpcError for nonsense."""
        at = self.record_at(message)
        # Once, as another process may change it meanwhile.
        data = self._map[at : at + RECORD_BYTE_LENGTH]
        bits, length, ndim = struct.unpack_from('<III', data)
        if bits & RECORD_FLAG_SKIPPED:
            return True, None, None
        layout = None
        try:
            if bits & RECORD_FLAG_LAYOUT:
                if ndim > MAX_AXES:
                    raise ValueError(f'{ndim} axes are more than {MAX_AXES}')
                name = data[RECORD_AT_DTYPE:RECORD_AT_SHAPE].rstrip(b'\0').decode('latin-1')
                layout = _check_layout(struct.unpack_from(f'<{ndim}q', data, RECORD_AT_SHAPE), _received_dtype(name), byte_length)
            if length > MAX_META_BYTE_LENGTH:
                raise ValueError(f'meta of {length} bytes is longer than {MAX_META_BYTE_LENGTH}')
            return False, layout, _decode_meta(data[RECORD_AT_META : RECORD_AT_META + length]) if length else None
        except (TypeError, ValueError, RecursionError) as error:
            raise IpcError(f'received a message whose record is invalid: {error}') from None


def _check_layout(shape: Any, dtype: Any, byte_length: Optional[int]) -> _Layout:
    lengths, kind = _check_shape(shape), _dtype(dtype)
    needed = math.prod(lengths) * kind.itemsize
    if byte_length is not None and needed > byte_length:
        raise ValueError(f'an array of {needed} bytes does not fit into a slot of {byte_length}')
    return kind, lengths


def _encode_meta(meta: Any) -> bytes:
    if meta is None:
        return b''
    try:
        text = json.dumps(meta, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
        # A lone surrogate becomes an escape of JSON, as in Node.
        data = text.encode('utf-8', 'backslashreplace')
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f'meta cannot be written as JSON: {error}') from None
    if len(data) > MAX_META_BYTE_LENGTH:
        raise ValueError(f'meta has {len(data)} bytes as JSON, of at most {MAX_META_BYTE_LENGTH}')
    return data


def _decode_meta(data: bytes) -> Any:
    """Raises ValueError for what is no JSON, which Python's own reader takes: NaN, infinities and other encodings."""
    return json.loads(data.decode('utf-8'), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f'{name} is no value of JSON')


def _seat_length(slots: int) -> int:
    return _whole_pages((SEAT_RELEASED + 3 * slots) * 8)


class _WakeSockets:
    """One end of two one-way sockets between two processes. Each end wakes up the other, and sees its end.

    The other process may keep a copy of every end. Whatever it does with that, no call here blocks.
    """

    def __init__(self, receive_end: int, send_end: int, on_wake: Callable[[], None]) -> None:
        """Owns the descriptors."""
        self.has_ended = False
        self._receive_end, self._send_end = socket.socket(fileno=receive_end), socket.socket(fileno=send_end)
        for end in (self._receive_end, self._send_end):
            # Else Python would wait for as long as `socket.setdefaulttimeout` says.
            end.setblocking(False)
        self._fd, self._on_wake = receive_end, on_wake
        self._lock, self._is_closed = threading.Lock(), False
        _lifelines.add(self)

    def abandon(self) -> None:
        """In a child by fork: the sockets are its parent's."""
        if not self._is_closed:
            self._is_closed = True
            self._receive_end.close()
            self._send_end.close()

    @classmethod
    def accept(cls, receive_end: int, send_end: int, on_wake: Callable[[], None]) -> '_WakeSockets':
        """Takes copies of the ends that another process has sent; the caller keeps them."""
        if not _is_receive_end(receive_end) or not _is_send_end(send_end):
            raise IpcError('received a channel without its sockets')
        fds: List[int] = []
        try:
            for fd in (receive_end, send_end):
                fds.append(os.dup(fd))
            return cls(fds[0], fds[1], on_wake)
        except OSError:
            _close_fds(fds)
            raise

    def watch(self) -> None:
        _background().watch(self._fd, self._on_ready)

    def _on_ready(self) -> None:
        with self._lock:
            if self._is_closed or self.has_ended:
                return
            try:
                data, controls, flags, _ = self._receive_end.recvmsg(
                    4096, _FD_SPACE, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)  # fmt: skip
                # No wake-up of cuffi has descriptors.
                _close_fds(_received_fds(controls))
                self.has_ended = not data
            except BlockingIOError:
                return
            except OSError:
                self.has_ended = True
            if self.has_ended:
                _background().unwatch(self._fd)
        self._on_wake()

    def wake(self) -> None:
        """Wakes up the other end. Does nothing if it has not read many earlier wake-ups, or has ended."""
        with self._lock:
            if not self._is_closed and not self.has_ended:
                try:
                    self._send_end.send(b'\0', socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except OSError:
                    pass

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                _background().unwatch(self._fd)
                # Nothing can arrive there, so its close never blocks.
                self._send_end.close()
                _close_fds([self._receive_end.detach()])


def _one_way_sockets() -> Tuple[int, int]:
    """A socket that only receives and a socket that only sends to it.

    They serve as a pipe between processes that do not trust each other. The flags of a pipe's open file belong to
    all processes that have it, so any of them could make this one block. A call on a socket says itself that it must
    not block.
    """
    receive_end, send_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    send_end.shutdown(socket.SHUT_RD)
    return receive_end.detach(), send_end.detach()


def _is_receive_end(fd: int) -> bool:
    """Whether a descriptor, from any process, is an end of a socket pair.

    Only those have no name. A named socket may belong to another program, which would take what is sent there as this
    process's words.
    """
    if _file_type(fd)[0] != stat.S_IFSOCK:
        return False
    with socket.socket(fileno=os.dup(fd)) as probe:
        try:
            return (probe.family, probe.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and not any(
                (probe.getsockname(), probe.getpeername()))  # fmt: skip
        except OSError:
            return False


def _is_send_end(fd: int) -> bool:
    """As `_is_receive_end`. From now on nothing can arrive there: its queue could hold descriptors whose close blocks."""
    if not _is_receive_end(fd):
        return False
    with socket.socket(fileno=os.dup(fd)) as probe:
        try:
            probe.shutdown(socket.SHUT_RD)
            unread = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
        except OSError:
            return False
    return unread == bytes(4)


class _Sleepers:
    """The waits at one end of a channel: they poll for a while, and then sleep until the other end wakes them up."""

    def __init__(self, set_asleep: Callable[[bool], None]) -> None:
        self.busy_poll_us = 0
        self._set_asleep = set_asleep
        self._lock = threading.Lock()
        self._asleep: Set[Callable[[], Any]] = set()

    def _polls(self, poll: Callable[[], Any], timeout: Optional[float], what: Any, wake: Callable[[], Any]) -> Generator[float, None, Any]:
        """Polls until there is something, and returns that. Yields for how long to sleep, unless `wake` is called."""
        deadline, eager_until = _Deadline(timeout), time.monotonic() + max(self.busy_poll_us / 1e6, _EAGER_S)
        try:
            while True:
                # What comes before the other end can see that this one sleeps wakes up nobody: so it polls once more.
                is_eager = time.monotonic() < eager_until
                if not is_eager:
                    self._fall_asleep(wake)
                found = poll()
                if found is not None:
                    return found
                left = deadline.left(what)
                yield 0 if is_eager else min(left, _SWEEP_S)
        finally:
            with self._lock:
                if wake in self._asleep:
                    self._asleep.remove(wake)
                    if not self._asleep:
                        self._set_asleep(False)

    def _fall_asleep(self, wake: Callable[[], Any]) -> None:
        with self._lock:
            if wake not in self._asleep:
                self._asleep.add(wake)
                self._set_asleep(True)

    def wait(self, poll: Callable[[], Any], timeout: Optional[float], what: Any) -> Any:
        """Returns what `poll` does, when that is not None. Raises TimeoutError, and what `poll` raises."""
        found = poll()
        if found is not None:
            return found
        event = threading.Event()
        polls = self._polls(poll, timeout, what, event.set)
        try:
            while True:
                pause = next(polls)
                if pause:
                    event.wait(pause)
                    event.clear()
                else:
                    time.sleep(0)
        except StopIteration as end:
            return end.value
        finally:
            polls.close()

    async def await_(self, poll: Callable[[], Any], timeout: Optional[float], what: Any) -> Any:
        """As `wait`, for asyncio."""
        await _turn_if_due()
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        polls = self._polls(poll, timeout, what, lambda: loop.is_closed() or loop.call_soon_threadsafe(event.set))
        try:
            while True:
                pause = next(polls)
                if pause:
                    # `wait_for` might lose a cancellation.
                    woken = asyncio.ensure_future(event.wait())
                    try:
                        await asyncio.wait((woken,), timeout=pause)
                    finally:
                        woken.cancel()
                        event.clear()
                else:
                    await asyncio.sleep(0)
        except StopIteration as end:
            return end.value
        finally:
            polls.close()

    def wake(self) -> None:
        """Polls all waits again."""
        with self._lock:
            asleep = list(self._asleep)
        for wake in asleep:
            wake()


class _Stores:
    """Stores counts in shared words when the work of streams is done, and tells when they are stored."""

    def __init__(self, words: _Words, on_stored: Callable[[Optional[CudaError]], None], keeps: bool, is_ahead: bool,
                 slots: int) -> None:  # fmt: skip
        """:param keeps: whether this process does not end before"""
        self._words, self._on_stored, self._keeps, self._is_ahead = words, on_stored, keeps, is_ahead
        # The slot of an older one has been used again.
        self._pending: Deque[Tuple[int, int, _Stream]] = collections.deque(maxlen=2 * slots)
        self._newest: Any = None
        self._lock, self._since, self._is_polled = threading.Lock(), 0.0, False

    def store(self, index: int, count: int, stream: _Stream) -> None:
        """Stores a count when the work that is queued in a stream so far is done. Raises CudaError; then nothing is."""
        words = self._words
        if stream.handle > 2:
            status = _cuda().cuStreamQuery(stream.argument)
            if status == 0:
                # Cheaper and sooner than by the device, which would also take turns with other processes.
                words.write(index, count)
                self._on_stored(None)
                return
            if status != _NOT_READY:
                raise CudaError('cuStreamQuery', status)
        _enqueue_store(words, index, count, stream)
        if words.reached(index, count):
            self._on_stored(None)
        else:
            self._watch(index, count, stream)

    def store_ahead(self, index: int, count: int, stream: _Stream) -> None:
        """As `store`, in a channel with ahead, where nobody waits on the host for what is stored."""
        _enqueue_store(self._words, index, count, stream)
        self._watch(index, count, stream)

    def _watch(self, index: int, count: int, stream: _Stream) -> None:
        self._pending.append((index, count, stream))
        # Without the lock: who ends the poll looks again.
        if not self._is_polled:
            with self._lock:
                if self._is_polled:
                    return
                self._is_polled, self._since = True, time.monotonic()
            _background().poll(self._is_over, self._keeps, not self._is_ahead)

    def _is_over(self) -> Union[bool, float]:
        pending, reached, is_stored = self._pending, self._words.reached, False
        newest, self._newest = self._newest, pending[-1] if pending else None
        for _ in range(len(pending)):
            index, count, stream = pending[0]
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
            if _is_lost(pending[0][2].device):
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
        return _BUSY_S if self._is_ahead and newest is not self._newest else False


class _Slots:
    """The slots of messages as arrays and buffers, which are made at their first use."""

    def __init__(self, memory: Any, slots: int, stride: int, byte_length: int, layout: _Layout, read_only: bool) -> None:
        self._memory, self._slots, self._stride = memory, slots, stride
        self.byte_length, self.layout, self._read_only = byte_length, layout, read_only
        self._arrays: List[Optional[GpuArray]] = [None] * slots

    def array(self, message: int, layout: Optional[_Layout], stream: Optional[_Stream]) -> GpuArray:
        slot = message % self._slots
        array = self._arrays[slot] if layout is None else None
        if array is None or array.closed:
            dtype, shape = layout or self.layout
            address = self._memory.address + slot * self._stride
            array = GpuArray(self._memory, address, shape, dtype, _contiguous(shape, dtype.itemsize), self._read_only)
            if layout is None:
                self._arrays[slot] = array
        array._stream = None if stream is None else stream.handle
        return array

    def buffer(self, message: int, stream: Optional[_Stream]) -> GpuBuffer:
        address, handle = self._memory.address + message % self._slots * self._stride, None if stream is None else stream.handle
        return GpuBuffer(self._memory, address, (self.byte_length,), _DTYPES['uint8'], (1,), self._read_only, handle)


class _ChannelState:
    """What both ends of a channel have. It outlives its object until its work is done."""

    def __init__(self, ring: _Ring, device: _Device, slots: _Slots, deliver: str, is_ahead: bool, name: str) -> None:
        self.ring, self.device, self.deliver, self.is_ahead, self.name = ring, device, deliver, is_ahead, name
        self._slots: Optional[_Slots] = slots
        self.lock = threading.RLock()
        self.is_closed = False
        self.streams, self.ahead_streams = _Streams(self), _AheadStreams(self)

    @property
    def slots(self) -> _Slots:
        """Raises ClosedError: another thread may close the channel at any time."""
        slots = self._slots
        if slots is None:
            raise self.closed_error()
        return slots

    def closed_error(self) -> ClosedError:
        return ClosedError(f'this {self.name} is closed')


class _Streams(Dict[int, _Stream]):
    """The streams of a channel, by their handles."""

    def __init__(self, state: _ChannelState) -> None:
        self._state = weakref.proxy(state)

    def __missing__(self, handle: int) -> _Stream:
        stream = self[handle] = _stream_of(self._state.device, _stream_handle(handle))
        return stream


class _AheadStreams(_Streams):
    """Those that may wait for slots. Raises TypeError for any other."""

    def __missing__(self, handle: int) -> _Stream:
        if not self._state.is_ahead:
            raise TypeError('streams can only wait for slots of a channel that was created with ahead=True')
        flags = ctypes.c_uint32()
        if handle > 2:
            _call('cuStreamGetFlags', handle, ctypes.byref(flags))
        if not flags.value & 1:
            raise TypeError('the stream must be non-blocking: while another one waits, the legacy default stream stands still')
        return super().__missing__(handle)


class _ChannelEnd(_Closable):
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
    def shape(self) -> Tuple[int, ...]:
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
        self._held().sleepers.busy_poll_us = _check_busy_poll(duration)


def _check_busy_poll(duration: Any) -> int:
    if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 0 <= duration <= 1_000_000:
        raise ValueError(f'busy_poll_us must be from 0 to 1000000, not {duration!r}')
    return int(duration)


# ---- Channels: the consumer -------------------------------------------------------------------------------


def _invalid_ring(why: str) -> IpcError:
    return IpcError(f'a process has stored what is no channel in the memory of this one: it {why}')


class _SlotMemory:
    """The slots of a channel of another process, mapped until nothing refers to them."""

    def __init__(self, mapping: _Mapping, on_released: Callable[[], None]) -> None:
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

        mapping.device.releases.add(release)


class _Consumer(_ChannelState):
    def __init__(self, ring: _Ring, seat: _Words, ends: Sequence[int], slots: _Slots, device: _Device,
                 deliver: str, is_ahead: bool) -> None:  # fmt: skip
        super().__init__(ring, device, slots, deliver, is_ahead, 'ChannelConsumer')
        self.seat = seat
        start = seat.read(SEAT_START)
        if not 0 <= start <= _SAFE:
            raise IpcError('received a channel whose first message has no number')
        # The next message; with deliver='one', how many grants were taken.
        self._next = 0 if deliver == 'one' else int(start)
        self._filled_up_to = self._next
        self._held: set = set()
        self._has_ended_waits = False
        self.sleepers = _Sleepers(lambda is_asleep: seat.write(SEAT_ASLEEP, is_asleep))
        self._stores = _Stores(seat, lambda _: self._wake_producer(), False, is_ahead, ring.slots)
        self._sockets = _WakeSockets.accept(ends[0], ends[1], self._on_wake)
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
                return _END if closed_at is not None and message >= closed_at else None
            # Who takes slots ahead is published to before the slots are released.
            if published > message + ring.slots and not self.is_ahead:
                raise _invalid_ring('has published into slots that were not released')
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
                raise _invalid_ring('grants a message that was not published')
            if not ring.is_filled(int(message)):
                return None
            self._next += 1
            _, layout, meta = self._record(int(message))
            return self._hold(int(message), layout, meta, redelivered)
        if seat.read(SEAT_IS_FINISHED) == 1:
            return _END
        if not at < seat.read(SEAT_WANTED) <= _SAFE:
            seat.write(SEAT_WANTED, at + 1)
            self._wake_producer()
        return None

    def _published(self) -> int:
        published = self.ring.read(RING_PUBLISHED)
        if not 0 <= published <= _SAFE:
            raise _invalid_ring('has no number of published messages')
        return int(published)

    def _record(self, message: int) -> Tuple[bool, Optional[_Layout], Any]:
        if not self.ring.has_records:
            return False, None, None
        try:
            return self.ring.read_record(message, self.slots.byte_length)
        except IpcError:
            self.seat.write(SEAT_RELEASED + message % self.ring.slots, message + 1)
            raise

    def _hold(self, message: int, layout: Optional[_Layout], meta: Any, redelivered: bool) -> 'ConsumerSlot':
        self._held.add(message)
        return ConsumerSlot(self, message, layout, meta, redelivered, None)

    def _gone(self) -> PeerGoneError:
        pid = self.ring.writer(RING_PRODUCER_PID)
        who = f'process {pid}, the producer of this channel,' if pid else 'the producer of this channel'
        return PeerGoneError(f'{who} has ended without closing it: messages that were not complete are lost', pid)

    # ---- Ahead ----

    def take_ahead(self, of: Any) -> Any:
        """Makes a stream wait for the next message. Returns its slot, the end, or None if there is no room now."""
        ring, stream = self.ring, self.ahead_streams[of if type(of) is int else _stream_handle(of)]
        with self.lock:
            self.assert_open()
            is_gone, message = self._sockets.has_ended, self._next
            if ring.words[RING_CLOSED_AT]:
                closed_at = ring.closed_at
                if closed_at is not None and message >= closed_at:
                    return _END
            is_filled = ring.is_filled(message)
            if is_gone and not is_filled:
                raise self._gone()
            if message - ring.slots in self._held:
                raise CuffiError(f'message {message} needs the slot of message {message - ring.slots}: release that first')
            if not _has_room(stream, _MAX_WORK_AHEAD, False):
                return None
            if not is_filled:
                while self._filled_up_to < message and ring.is_filled(self._filled_up_to):
                    self._filled_up_to += 1
                if message - self._filled_up_to >= _MAX_AHEAD:
                    return None
                # Else the host waits.
                if not ring.is_fixed or not _enqueue_wait(ring, RING_FILLED + message % ring.slots, message + 1, stream):
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
        found = self.streams[stream if type(stream) is int else _stream_handle(stream)]
        store(SEAT_RELEASED + message % self.ring.slots, message + 1, found)
        self._held.discard(message)

    def _wake_producer(self) -> None:
        if self.ring.read(RING_PRODUCER_SLEEPS) == 1:
            self._sockets.wake()

    def _on_wake(self) -> None:
        if self._sockets.has_ended and self.is_ahead and not self._has_ended_waits:
            # Frees the streams that wait for what the ended producer will not fill.
            self._has_ended_waits = True
            until = time.monotonic() + _REPAIR_S

            def repair() -> bool:
                # A GPU of the ended process may still write.
                self.ring.end_unfilled()
                return self.is_closed or time.monotonic() > until

            repair()
            _background().poll(repair)
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
            _release_page(self.ring)
            _release_page(self.seat)
            kept.clear()

        threading.Thread(target=release, name='cuffi release', daemon=True).start()


def _release_page(words: _Words) -> None:
    """Unmaps words, once no stream waits for them."""
    if words._addresses:
        _release_soon(lambda: not _is_awaited(words), lambda: _close_page(words))
    else:
        words.close()


class ConsumerSlot(_Owner):
    """A message of a channel. Release it when the work that uses it is queued."""

    __slots__ = ('message', 'meta', 'redelivered', '_consumer', '_layout', '_stream', '_is_released')

    def __init__(self, consumer: _Consumer, message: int, layout: Optional[_Layout], meta: Any, redelivered: bool,
                 stream: Optional[_Stream]) -> None:  # fmt: skip
        self._consumer, self._layout, self._stream, self._is_released = consumer, layout, stream, False
        # The number of the message, from 0; what was published with it; whether another consumer had it before,
        # and ended without releasing it.
        self.message, self.meta, self.redelivered = message, meta, redelivered

    def _views(self) -> _Slots:
        if self._is_released:
            raise CuffiError('this slot was released already')
        self._consumer.assert_open()
        return self._consumer.slots

    @property
    def array(self) -> GpuArray:
        """The memory as an array, in the layout of the message. Raises CuffiError after `release`."""
        return self._views().array(self.message, self._layout, self._stream)

    @property
    def buffer(self) -> GpuBuffer:
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

    def release(self, stream: Any = None) -> None:
        """Gives the slot back when the work that is queued in a stream so far is done. The second call does nothing.

        :param stream: by default the legacy default stream
        """
        if not self._is_released:
            self._consumer.release(self.message, stream)
            self._is_released = True

    def __repr__(self) -> str:
        return f'<cuffi.ConsumerSlot message {self.message}{" released" if self._is_released else ""}>'


class ChannelConsumer(_ChannelEnd):
    """The end of a channel in a process that it was sent to.

    A message is received when the work that fills its slot is done, so that it can be used in any stream.
    Release each slot: the producer fills it again when all its consumers have.

    >>> for slot in channel:
    ...     show(cupy.asarray(slot.array), slot.meta)
    ...     slot.release(stream)
    """

    def receive(self, *, timeout: Optional[float] = None) -> Optional[ConsumerSlot]:
        """Returns the next message; None when the producer has closed the channel and all were received.

        Raises PeerGoneError if it ended without closing it, IpcError for an invalid message, TimeoutError.
        """
        state: _Consumer = self._held()
        found = state.sleepers.wait(state.look, timeout, 'a message of a channel')
        return None if found is _END else found

    async def areceive(self, *, timeout: Optional[float] = None) -> Optional[ConsumerSlot]:
        """As `receive`."""
        state: _Consumer = self._held()
        found = await state.sleepers.await_(state.look, timeout, 'a message of a channel')
        return None if found is _END else found

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

    def ahead(self, stream: Any, *, timeout: Optional[float] = None) -> Iterator[ConsumerSlot]:
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
            if slot is _END:
                return
            yield slot

    async def aahead(self, stream: Any, *, timeout: Optional[float] = None) -> AsyncIterator[ConsumerSlot]:
        """As `ahead`."""
        state: _Consumer = self._held()
        while True:
            slot = await state.sleepers.await_(lambda: state.take_ahead(stream), timeout, 'room ahead in a channel')
            if slot is _END:
                return
            yield slot

    def _export(self) -> '_Exported':
        raise NotSupportedError('a consumer cannot pass a channel on: its producer sends it to everyone')


class _ChannelFields:
    """A channel of another process."""

    def __init__(self, fields: _Fields) -> None:
        self.slots, self.stride, self.byte_length, self.bits = fields.slots, fields.stride, fields.byte_length, fields.flags
        self.memory: _Fields = fields.memory
        self.layout = _check_layout(fields.layout.shape, fields.layout.dtype, self.byte_length)

    def open(self, connection: _Connection, fds: List[int], lease: int) -> ChannelConsumer:
        if len(fds) <= 4:
            raise IpcError(f'a channel needs more than 4 descriptors, but {len(fds)} came with it', 'no-file-descriptor')
        memory, device, is_ahead = self.memory, _device_of(self.memory.exporter.device), bool(self.bits & CHANNEL_FLAG_AHEAD)
        for fd, length in ((fds[0], _Ring.length(self.slots, not is_ahead)), (fds[1], _seat_length(self.slots))):
            if not _is_sealed(fd, length):
                raise IpcError('received a channel whose memory is not sealed memory of its size')
        mapping = connection._map(memory, device, fds[4:])
        assert mapping is not None
        # The lease is given back with the memory.
        slot_memory = _SlotMemory(mapping, lambda: connection._release(lease))
        try:
            read_only = memory.read_only or mapping.is_read_only
            slots = _Slots(slot_memory, self.slots, self.stride, self.byte_length, self.layout, read_only)
            ring, seat = _Ring(fds[0], self.slots, not is_ahead), _Words(fds[1], _seat_length(self.slots))
            if is_ahead:
                ring.is_fixed = _seal_against_holes(fds[0])
                _seal_against_holes(fds[1])
            deliver = 'one' if self.bits & CHANNEL_FLAG_TO_ONE else 'all'
            return ChannelConsumer(_Consumer(ring, seat, fds[2:4], slots, device, deliver, is_ahead))
        except BaseException as error:
            # Who opens gives the lease back itself then.
            slot_memory.on_released = _nothing
            if isinstance(error, OSError):
                raise IpcError(f'received a channel that cannot be opened: {error}') from None
            raise


# ---- Channels: the producer -------------------------------------------------------------------------------


class _Seat:
    """One consumer, as the producer sees it."""

    def __init__(self, slots: int, start: int, on_wake: Callable[[], None]) -> None:
        self.start, self.granted, self._slots = start, 0, slots
        self.fds: List[int] = []
        ends: List[int] = []
        try:
            self.fds.append(_sealed_memory(_seat_length(slots), 'cuffi-seat'))
            self.words = _Words(self.fds[0], _seat_length(slots))
            for _ in range(2):
                ends += _one_way_sockets()
        except BaseException:
            _close_fds(self.fds + ends)
            raise
        self.words.write(SEAT_START, start)
        their_receive_end, own_send_end, own_receive_end, their_send_end = ends
        self.fds += [their_receive_end, their_send_end]
        self.sockets = _WakeSockets(own_receive_end, own_send_end, on_wake)
        self.sockets.watch()
        # With ahead: the seat's memory, until it is known to be fixed, and the consumer's own copy of the ring.
        self.fd = -1
        self.copy: Optional[_Ring] = None
        self.copy_stores: Optional[_Stores] = None

    @property
    def is_fixed(self) -> bool:
        """Whether the consumer has mapped the seat, and nobody can replace its memory any more."""
        if self.fd >= 0 and fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & _F_SEAL_FUTURE_WRITE:
            self.words.is_fixed = True
            self._close_fd()
        return self.words.is_fixed

    def _close_fd(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def set_copy(self, copy: _Ring) -> None:
        self.copy = copy
        # The producer notices by its own memory if the work fails.
        self.copy_stores = _Stores(copy, lambda _: self.wake_if_asleep(), False, True, self._slots)

    def is_released(self, message: int) -> bool:
        return self.words.reached(SEAT_RELEASED + message % self._slots, message + 1)

    @property
    def wants(self) -> bool:
        return self.granted < self.words.read(SEAT_WANTED) <= _SAFE

    def grant(self, message: int, redelivered: bool) -> None:
        index = SEAT_RELEASED + self._slots + 2 * (self.granted % self._slots)
        self.words.write(index, message)
        self.words.write(index + 1, redelivered)
        self.granted += 1
        self.words.write(SEAT_GRANTED, self.granted)
        self.wake_if_asleep()

    def wake_if_asleep(self) -> None:
        if self.words.words[SEAT_ASLEEP] == 1:
            self.sockets.wake()

    def close(self) -> None:
        self.sockets.close()
        self.words.end_waits(SEAT_RELEASED, SEAT_RELEASED + self._slots)
        _release_page(self.words)
        self._close_fd()
        if self.copy:
            _release_page(self.copy)


class _Producer(_ChannelState):
    def __init__(self, ring: _Ring, ring_fd: int, memory: _OwnMemory, slots: _Slots, total: int, deliver: str,
                 is_ahead: bool) -> None:  # fmt: skip
        super().__init__(ring, memory.device, slots, deliver, is_ahead, 'Channel')
        self._memory: Optional[_OwnMemory] = memory
        self.ring_fd, self.total = ring_fd, total
        self.seats: List[_Seat] = []
        # With ahead, one consumer has the memory of the ring. Each other one has a copy: nobody can map it once it is
        # fixed.
        self._is_ring_taken = self._is_asleep = False
        self._copied: Tuple[_Seat, ...] = ()
        self._acquired = self.published = 0
        # Messages that were acquired after one that is not published yet, and are over.
        self._waiting_for_earlier: set = set()
        self._skipped: set = set()
        # With deliver='one': messages that no consumer has, in order, and the holders of the others.
        self._ungranted: Deque[int] = collections.deque()
        self._redelivered: set = set()
        self._holders: Dict[int, _Seat] = {}
        self._failure: Optional[CudaError] = None
        self._stores = _Stores(ring, self._on_stored, True, is_ahead, ring.slots)
        # Grants are asked for at any time.
        is_always_asleep = deliver == 'one'
        self.sleepers = _Sleepers(lambda is_asleep: self._set_asleep(is_asleep or is_always_asleep))
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

    def _end_unfilled(self, seats: List[_Seat]) -> None:
        """Ends the waits for what is not filled, in the ring and in its copies."""
        for words in (self.ring, *(seat.copy for seat in seats)):
            if words:
                words.end_unfilled()

    def assert_open(self) -> None:
        if self._failure:
            raise CuffiError(f'the context of this channel was lost with work of a message: {self._failure}')
        if self.is_closed:
            raise self.closed_error()

    # ---- Acquiring ----

    @property
    def memory(self) -> _OwnMemory:
        memory = self._memory
        if memory is None:
            raise self.closed_error()
        return memory

    def try_acquire(self, of: Any) -> Optional['ProducerSlot']:
        """:param of: the stream that waits for the slot, if given"""
        stream = None if of is None else self.ahead_streams[of if type(of) is int else _stream_handle(of)]
        with self.lock:
            if self.is_closed or self._failure:
                self.assert_open()
            if stream and not _has_room(stream, _MAX_WORK_AHEAD, False):
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

    def _enqueue_waits(self, message: int, stream: _Stream) -> bool:
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
                if not words.reached(SEAT_RELEASED + slot, count):
                    if not _enqueue_wait(words, SEAT_RELEASED + slot, count, stream):
                        return False
        # A consumer that has released it has waited until it was filled.
        if is_released_by_others or self.ring.is_filled(message):
            return True
        return _enqueue_wait(self.ring, RING_FILLED + slot, count, stream)

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
        return self.ring.is_filled(message) and all(
            seat.start > message or seat.is_released(message) for seat in self.seats)

    # ---- Publishing ----

    def publish(self, message: int, stream: Any, meta: Any, shape: Any, dtype: Any) -> None:
        own, layout = self.slots.layout, None
        encoded = _encode_meta(meta)
        if shape is not None or dtype is not None:
            layout = _check_layout(own[1] if shape is None else shape, own[0] if dtype is None else dtype,
                                   self.slots.byte_length)  # fmt: skip
        with self.lock:
            # Its memory goes soon after it was closed.
            self.assert_open()
            self.ring.write_record(message, layout, encoded)
        found = self.streams[stream if type(stream) is int else _stream_handle(stream)]
        self._stores.store(RING_FILLED + message % self.ring.slots, message + 1, found)
        with self.lock:
            self._end(message)

    def publish_ahead(self, message: int, stream: Any) -> None:
        """As `publish`, in a channel with ahead: frames come so fast that each call of a function counts."""
        ring = self.ring
        found = self.streams[stream if type(stream) is int else _stream_handle(stream)]
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

    def _redeliver(self, gone: _Seat) -> None:
        lost = [message for message, holder in self._holders.items() if holder is gone and not gone.is_released(message)]
        for message in sorted(lost, reverse=True):
            del self._holders[message]
            self._redelivered.add(message)
            self._ungranted.appendleft(message)

    # ---- Consumers ----

    def add_seat(self) -> List[int]:
        """Adds a consumer, which gets what is published from now on. Returns its descriptors: it ends with them."""
        with self.lock:
            self.assert_open()
            seat = _Seat(self.ring.slots, self.published, self._on_wake)
            self.seats.append(seat)
            fds, seat.fds = seat.fds, []
            try:
                if self.is_ahead:
                    seat.fd = os.dup(fds[0])
                return [self._ring_for(seat), *fds]
            except OSError:
                # The consumer ends with its descriptors.
                _close_fds(fds)
                raise

    def _ring_for(self, seat: _Seat) -> int:
        """A descriptor of the ring for a consumer."""
        if not self.is_ahead or not self._is_ring_taken:
            self._is_ring_taken = True
            return os.dup(self.ring_fd)
        fd = _sealed_memory(_Ring.length(self.ring.slots, False), 'cuffi-channel')
        try:
            copy = _Ring(fd, self.ring.slots, False)
        except OSError:
            os.close(fd)
            raise
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
            # What was acquired and not published is no message.
            for message in range(self.published, self._acquired):
                if not self.is_ahead and message >= self.published and message not in self._waiting_for_earlier:
                    self._skip(message)
            self.is_closed = True
            self._write(RING_CLOSED_AT, self.published + 1)
            self._wake_consumers()
        self.sleepers.wake()
        if not self._is_delivered():
            _background().poll(self._is_delivered)

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
        _release_page(ring)
        self._slots = self._memory = None
        return True

    def _finish(self, seat: _Seat) -> None:
        """Tells a consumer if no message will come to it: the others have released all that they were granted."""
        if self._ungranted or seat.words.read(SEAT_IS_FINISHED) == 1:
            return
        if all(holder is seat or holder.is_released(message) for message, holder in self._holders.items()):
            seat.words.write(SEAT_IS_FINISHED, 1)
            seat.wake_if_asleep()


class ProducerSlot(_Owner):
    """A slot that this process fills: publish it, or cancel it. `with slot:` cancels what was not published."""

    __slots__ = ('message', '_producer', '_stream', '_is_over')

    def __init__(self, producer: _Producer, message: int, stream: Optional[_Stream]) -> None:
        # The number of the message, from 0.
        self.message = message
        self._producer, self._stream, self._is_over = producer, stream, False

    def _assert_usable(self) -> None:
        if self._is_over:
            raise CuffiError('this slot was published or canceled already')
        producer = self._producer
        if producer.is_closed or producer._failure:
            producer.assert_open()

    def _views(self) -> _Slots:
        self._assert_usable()
        return self._producer.slots

    @property
    def array(self) -> GpuArray:
        """The memory as an array of the channel's shape and dtype. Raises CuffiError after it was published."""
        return self._views().array(self.message, None, self._stream)

    @property
    def buffer(self) -> GpuBuffer:
        """All bytes of the slot. Raises CuffiError after it was published."""
        return self._views().buffer(self.message, self._stream)

    def publish(self, stream: Any = None, *, meta: Any = None, shape: Any = None, dtype: Any = None) -> None:
        """Publishes the message: consumers get it when the work that is queued in a stream so far is done.

        Returns at once. Raises TypeError, ValueError for an invalid `meta` or a layout that does not fit, CuffiError
        if it was published or canceled, CudaError; the slot can then be published again.

        :param stream: by default the legacy default stream
        :param meta: any value that JSON can hold, of at most 1 KiB; None for nothing
        :param shape: and `dtype`, if they differ from those of the channel
        """
        producer = self._producer
        if self._is_over or producer.is_closed or producer._failure:
            self._assert_usable()
        if not producer.is_ahead:
            producer.publish(self.message, stream, meta, shape, dtype)
        elif meta is None and shape is None and dtype is None:
            producer.publish_ahead(self.message, stream)
        else:
            raise TypeError('messages of a channel with ahead have no meta, shape or dtype of their own')
        self._is_over = True

    def cancel(self) -> None:
        """Gives the slot back without a message. Does nothing after `publish`, or the second time."""
        if not self._is_over:
            self._producer.cancel(self.message)
            self._is_over = True

    def __enter__(self) -> 'ProducerSlot':
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f'<cuffi.ProducerSlot message {self.message}{" published or canceled" if self._is_over else ""}>'


class Channel(_ChannelEnd):
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

    def __init__(self, slots: int, shape: Any = None, dtype: Any = None, *, byte_length: Optional[int] = None,
                 deliver: str, ahead: bool = False, read_only: bool = False, busy_poll_us: int = 0,
                 device: Optional[int] = None) -> None:  # fmt: skip
        """
        :param slots: how many messages can be on their way, from 1 to 1024
        :param shape: of the array of a slot, with `dtype` (by default float32); or `byte_length` is given
        :param ahead: whether streams may wait for slots; needs `deliver='all'`
        :param read_only: whether consumers can only read the slots
        :param busy_poll_us: for how many microseconds a wait at this end polls before it sleeps
        """
        slots = _check_count(slots, 1, 'slots')
        if slots > MAX_SLOTS:
            raise ValueError(f'slots must be from 1 to {MAX_SLOTS}, not {slots}')
        if deliver not in ('all', 'one'):
            raise TypeError(f"deliver must be 'all' or 'one', not {deliver!r}")
        if ahead and deliver == 'one':
            raise TypeError("ahead needs deliver='all': whom a message goes to is known only later")
        if (shape is None) == (byte_length is None) or (byte_length is not None and dtype is not None):
            raise TypeError('give either a shape, with its dtype, or a byte_length')
        if byte_length is not None:
            byte_length = _check_count(byte_length, 1, 'byte_length')
        layout = _check_layout(byte_length if shape is None else shape,
                               dtype or ('float32' if byte_length is None else 'uint8'), None)  # fmt: skip
        size = math.prod(layout[1]) * layout[0].itemsize
        _check_count(size, 1, 'the size of a slot')
        stride = -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        duration = _check_busy_poll(busy_poll_us)
        where = _chosen_device(device)
        memory = _OwnMemory(where, stride * slots, bool(read_only))
        ring_fd = _sealed_memory(_Ring.length(slots, not ahead), 'cuffi-channel')
        try:
            ring = _Ring(ring_fd, slots, not ahead)
        except BaseException:
            os.close(ring_fd)
            raise
        views = _Slots(memory, slots, stride, size, layout, False)
        state = _Producer(ring, ring_fd, memory, views, stride * slots, deliver, bool(ahead))
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

    def acquire(self, *, stream: Any = None, timeout: Optional[float] = None) -> ProducerSlot:
        """Waits for a free slot: one that all consumers have released. Slots are published in the order of acquiring.

        With `stream`, in a channel with `ahead`, that stream waits instead of the caller. It must be non-blocking.
        Raises TimeoutError, ClosedError, CuffiError if a stream is given and the slot was not published yet.
        """
        state: _Producer = self._state or self._held()
        return state.try_acquire(stream) or state.sleepers.wait(lambda: state.try_acquire(stream), timeout, state.slot_in_words)

    async def aacquire(self, *, stream: Any = None, timeout: Optional[float] = None) -> ProducerSlot:
        """As `acquire`."""
        state: _Producer = self._held()
        return await state.sleepers.await_(lambda: state.try_acquire(stream), timeout, state.slot_in_words)

    def try_acquire(self, *, stream: Any = None) -> Optional[ProducerSlot]:
        """As `acquire`, without waiting: None if there is no free slot, or no more waits may be queued now.

        With a stream, also if a consumer has not received the channel yet.
        """
        return self._held().try_acquire(stream)

    def drained(self, *, timeout: Optional[float] = None) -> None:
        """Waits until all published messages were released by their consumers, or those have ended.

        With `deliver='one'`, messages that nobody has taken are waited for. Raises TimeoutError, ClosedError.
        """
        state: _Producer = self._held()
        state.sleepers.wait(state.is_drained, timeout, 'the consumers of a channel')

    async def adrained(self, *, timeout: Optional[float] = None) -> None:
        """As `drained`."""
        state: _Producer = self._held()
        await state.sleepers.await_(state.is_drained, timeout, 'the consumers of a channel')

    def _export(self) -> '_Exported':
        state: _Producer = self._held()
        memory, (dtype, shape), read_only = state.memory, state.slots.layout, state.memory.read_only_fd >= 0
        bits = (CHANNEL_FLAG_TO_ONE if state.deliver == 'one' else 0) | (CHANNEL_FLAG_AHEAD if state.is_ahead else 0)
        fields = _Fields(
            KIND_CHANNEL, slots=state.ring.slots, stride=state.slots._stride, byte_length=state.slots.byte_length,
            layout=_descriptors.Layout(dtype.name, shape, _contiguous(shape, dtype.itemsize)), flags=bits,
            memory=_Fields(**memory.fields(0, state.total, read_only, None)))  # fmt: skip
        fds = (memory.read_only_fd if read_only else memory.fd,)
        return _Exported(_descriptors.encode(fields), fds, memory, None, owned=state.add_seat(), root=state)


# ---- Page-locked memory -----------------------------------------------------------------------------------


class _PinnedState:
    """Page-locked memory over a memfd, which outlives its object until no work uses it."""

    def __init__(self, fd: int, byte_length: int, device: _Device, on_released: Callable[[], None]) -> None:
        """Owns the descriptor, also if it raises."""
        self.fd, self.byte_length, self.device, self.on_released = fd, byte_length, device, on_released
        try:
            self._page = _Page(fd, _whole_pages(byte_length))
            self.view, self.address = self._page.words.cast('B')[:byte_length], self._page.host
            with device:
                self.device_address = self._page.address(device, 0)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        def release() -> None:
            _close_page(self._page)
            os.close(self.fd)
            self.on_released()

        _release_soon(lambda: True, release)


class PinnedBuffer(_Closable):
    """Page-locked host memory that processes share: made by `pinned`, or received.

    GPUs copy from and to it directly. It lives until the last process has closed it. A CPU that uses it is
    ordered by what it waits for: a message, a timeline, or its stream. Send it only to processes that you
    trust: each of them can write it.

    >>> frame = numpy.asarray(pinned).view('float32')
    """

    @property
    def _device(self) -> _Device:
        return self._held().device

    @property
    def nbytes(self) -> int:
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
    def __array_interface__(self) -> Dict[str, Any]:
        """https://numpy.org/doc/stable/reference/arrays.interface.html"""
        state = self._held()
        return {'shape': (state.byte_length,), 'typestr': '|u1', 'data': state.view, 'version': 3}

    def copy_to(self, array: Any, stream: Any = None) -> None:
        """Copies the first bytes to all items of a contiguous array. With `stream` it returns at once.

        Without `stream` it waits until the copy is done. Raises ValueError for an array that does not fit.
        """
        address, byte_length = self._target(array, True)
        self._copy(address, self.ptr, byte_length, stream)

    def copy_from(self, array: Any, stream: Any = None) -> None:
        """Copies all items of a contiguous array to the first bytes. As `copy_to`."""
        address, byte_length = self._target(array, False)
        self._copy(self.ptr, address, byte_length, stream)

    def _target(self, array: Any, is_written: bool) -> Tuple[int, int]:
        if not isinstance(array, GpuArray) and not _is_on_gpu(array):
            raise TypeError(f'array must be in the memory of a GPU, not {type(array).__name__}')
        described = _Described(array)
        itemsize = described.dtype.itemsize
        byte_length = math.prod(described.shape) * itemsize
        if byte_length and tuple(described.strides) != _contiguous(described.shape, itemsize):
            raise CuffiError('this array is not contiguous: copy it with torch or cupy')
        if is_written and described.read_only:
            raise CuffiError('this array is read-only')
        if byte_length > self.nbytes:
            raise ValueError(f'an array of {byte_length} bytes, and page-locked memory of {self.nbytes}')
        return described.address, byte_length

    def _copy(self, target: int, source: int, byte_length: int, stream: Any) -> None:
        if not byte_length:
            return
        handle = _stream_handle(stream)
        if _waiting and not _has_room(_stream_of(self._device, handle)):
            raise _too_much_work()
        with self._device as device:
            _call('cuMemcpyAsync', target, source, byte_length, handle)
            if stream is None:
                _call('cuCtxSynchronize')
            del device

    def _export(self) -> '_Exported':
        state: _PinnedState = self._held()
        fields = _Fields(KIND_PINNED, byte_length=state.byte_length)
        return _Exported(_descriptors.encode(fields), (), None, state.device, owned=[os.dup(state.fd)], root=state)


def pinned(byte_length: int, *, device: Optional[int] = None) -> PinnedBuffer:
    """Returns page-locked host memory, zeroed, that can be sent to other processes.

    Whole pages are locked, so small buffers are expensive. Raises MemoryError if the system has no room.
    """
    byte_length = _check_count(byte_length, 1, 'byte_length')
    where = _chosen_device(device)
    size = _whole_pages(byte_length)
    # The kernel would allocate pages until it ends processes.
    if size > _available_memory():
        raise MemoryError(f'the system has no {byte_length} bytes of host memory left')
    fd = _sealed_memory(size, 'cuffi-pinned')
    try:
        # Now: locking the pages would allocate them at whichever process locks first.
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        raise MemoryError(f'the system has no {byte_length} bytes of host memory left') from None
    return PinnedBuffer(_PinnedState(fd, byte_length, where, _nothing))


def _available_memory() -> float:
    try:
        with open('/proc/meminfo') as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith('MemAvailable'))
    except (OSError, StopIteration, ValueError):
        return math.inf


class _PinnedFields:
    """Page-locked memory of another process."""

    def __init__(self, fields: _Fields) -> None:
        self.byte_length = fields.byte_length

    def open(self, connection: _Connection, fds: List[int], lease: int) -> PinnedBuffer:
        device = _current_device()
        (fd,) = _taken(fds, 1, 'page-locked memory')
        size = _whole_pages(self.byte_length)
        # Locking pages that do not exist yet would allocate them here.
        if not _is_sealed(fd, size) or os.fstat(fd).st_blocks * 512 < size:
            _close_fds([fd])
            raise IpcError(f'page-locked memory of another process is not {size} bytes that are allocated and sealed')
        try:
            return PinnedBuffer(_PinnedState(fd, self.byte_length, device, lambda: connection._release(lease)))
        except (OSError, ValueError) as error:
            raise IpcError(f'page-locked memory of another process cannot be mapped: {error}') from None


# ---- Leases -----------------------------------------------------------------------------------------------


class leases:
    """What this process has sent, which is kept alive for its receivers."""

    @staticmethod
    def returned(thing: Any, *, timeout: Optional[float] = None) -> None:
        """Waits until every process that got an object has closed it, or has ended, and its work on it is done.

        The object itself may stay open: its memory can then be written again. A part of an allocation stands for
        the whole of it. Returns at once if nobody has it. Raises TimeoutError; TypeError for what cannot be sent.
        """
        root = _root_of(thing)
        _wait_until(lambda: not _is_lent(root), timeout, 'what other processes have')

    @staticmethod
    async def areturned(thing: Any, *, timeout: Optional[float] = None) -> None:
        """As `returned`."""
        root = _root_of(thing)
        await _await_until(lambda: not _is_lent(root), timeout, 'what other processes have')


def _root_of(thing: Any) -> Any:
    """What an object is a part of, as its exports name it."""
    if isinstance(thing, (Event, _Closable)):
        return thing._held()
    if not isinstance(thing, GpuArray) and not _is_on_gpu(thing):
        raise TypeError(f'returned takes what a connection can send, not {type(thing).__name__}')
    described = _Described(thing)
    if isinstance(described.memory, (_OwnMemory, _ReceivedMemory)):
        return described.memory
    low, high = _extents(described.shape, described.strides, described.dtype.itemsize)
    begin = described.address + low
    base, _ = _address_range(begin)
    return _own_memory.get(base) or _received_at(base, begin, high - low) or (KIND_LEGACY, base)


def _is_lent(root: Any) -> bool:
    for connection in list(_connections):
        kept = list(connection._exports.values()) + [exported for _, exported in list(connection._forwarded.values())]
        if any(exported.root is root or exported.root == root for exported in kept):
            return True
    return False


# How what no device owns is opened.
_HOST_KINDS: Dict[int, Callable[[_Fields], Any]] = {
    KIND_TIMELINE: _TimelineFields, KIND_SIGNALER: _TimelineFields, KIND_PINNED: _PinnedFields, KIND_CHANNEL: _ChannelFields,
}  # fmt: skip
