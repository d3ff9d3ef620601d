"""libcuda, and its errors."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional

from ._error_texts import HINTS, HINTS_OF_CALLS, LIBCUDA_PATHS, NO_DRIVER, NOT_A_DRIVER
from ._errors import CuffiError, DriverNotFoundError, NotSupportedError
from ._process import locks


class CudaError(CuffiError):
    """A call of the driver failed. `status` is its number, `code` its name, `hint` what can be done, if that is known."""

    def __init__(self, call: str, status: int, doing: str = '', *, driver: Optional[_Driver] = None) -> None:
        """:param driver: which was asked, if it could not be initialized"""
        code, description = describe_status(status, driver or _driver)
        self.status = status
        self.call = call
        self.code = code
        self.hint: Optional[str] = HINTS_OF_CALLS.get(f'{call}:{status}', HINTS.get(status))
        while_doing = f' while {doing}' if doing else ''
        after = f'\n{self.hint}' if self.hint else ''
        super().__init__(f'{call} failed{while_doing}: {description} ({self.code}, {status}){after}')

    @property
    def sticky(self) -> bool:
        """Whether the context is lost: every later call fails until the process ends."""
        return self.status in STICKY


STICKY = frozenset((214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719))
c_u32, c_u64, c_int, c_size, _out = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p


class Handle64(ctypes.Structure):
    """The driver's 64 bytes for memory or an event, passed by value."""

    _fields_ = [('reserved', ctypes.c_ubyte * 64)]


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [('type', c_int), ('handle_types', c_int), ('location_type', c_int), ('location_id', c_int),
                ('win32', ctypes.c_void_p), ('flags', ctypes.c_ubyte * 8)]  # fmt: skip


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [('location_type', c_int), ('location_id', c_int), ('flags', c_int)]


# https://docs.nvidia.com/cuda/cuda-driver-api/
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    'cuInit': (c_u32,),
    'cuGetErrorName': (c_int, _out),
    'cuGetErrorString': (c_int, _out),
    'cuDeviceGetCount': (_out,),
    'cuDeviceGet': (_out, c_int),
    'cuDeviceGetName': (_out, c_int, c_int),
    'cuDeviceGetUuid_v2': (_out, c_int),
    'cuDevicePrimaryCtxRetain': (_out, c_int),
    'cuCtxGetCurrent': (_out,),
    'cuCtxPushCurrent_v2': (c_u64,),
    'cuCtxPopCurrent_v2': (_out,),
    'cuCtxGetDevice': (_out,),
    'cuCtxSynchronize': (),
    'cuStreamQuery': (c_u64,),
    'cuStreamGetFlags': (c_u64, _out),
    'cuStreamWaitEvent': (c_u64, c_u64, c_u32),
    'cuStreamWaitValue64_v2': (c_u64, c_u64, c_u64, c_u32),
    'cuStreamWriteValue64_v2': (c_u64, c_u64, c_u64, c_u32),
    'cuEventCreate': (_out, c_u32),
    'cuEventDestroy_v2': (c_u64,),
    'cuEventQuery': (c_u64,),
    'cuEventRecord': (c_u64, c_u64),
    'cuIpcGetEventHandle': (_out, c_u64),
    'cuIpcOpenEventHandle': (_out, Handle64),
    'cuIpcGetMemHandle': (_out, c_u64),
    'cuIpcOpenMemHandle_v2': (_out, Handle64, c_u32),
    'cuIpcCloseMemHandle': (c_u64,),
    'cuMemGetAddressRange_v2': (_out, _out, c_u64),
    'cuPointerGetAttribute': (_out, c_int, c_u64),
    'cuMemHostRegister_v2': (c_u64, c_size, c_u32),
    'cuMemHostGetDevicePointer_v2': (_out, c_u64, c_u32),
    'cuMemHostUnregister': (c_u64,),
    'cuMemcpyAsync': (c_u64, c_u64, c_size, c_u64),
    'cuMemcpyDtoH_v2': (_out, c_u64, c_size),
    'cuMemcpyHtoD_v2': (c_u64, _out, c_size),
    'cuMemGetAllocationGranularity': (_out, _out, c_int),
    'cuMemAddressReserve': (_out, c_size, c_size, c_u64, c_u64),
    'cuMemAddressFree': (c_u64, c_size),
    'cuMemCreate': (_out, c_size, _out, c_u64),
    'cuMemRelease': (c_u64,),
    'cuMemMap': (c_u64, c_size, c_size, c_u64, c_u64),
    'cuMemUnmap': (c_u64, c_size),
    'cuMemSetAccess': (c_u64, c_size, _out, c_size),
    'cuMemExportToShareableHandle': (_out, c_u64, c_int, c_u64),
    'cuMemImportFromShareableHandle': (_out, c_u64, c_int),
    'cuMemPoolImportFromShareableHandle': (_out, c_u64, c_int, c_u64),
    'cuMemPoolImportPointer': (_out, c_u64, _out),
    'cuMemPoolSetAccess': (c_u64, _out, c_size),
    'cuMemPoolDestroy': (c_u64,),
    'cuMemFree_v2': (c_u64,),
}
POSIX_FD = 1
ACCESS_READ, ACCESS_READ_WRITE = 1, 3
OUT_OF_MEMORY, NOT_READY = 2, 600
LEGACY_STREAM = 1
WAIT_GEQ = 0
ATTRIBUTE_BUFFER_ID, ATTRIBUTE_IPC_CAPABLE, ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_POOL = 7, 10, 12, 17


class _Driver:
    """libcuda. Opened when it is needed first."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, argtypes in _FUNCTIONS.items():
            function = getattr(library, name, None)
            if function is not None and isinstance(library, ctypes.CDLL):
                function.argtypes, function.restype = argtypes, c_int
            setattr(self, name, function or self._missing(name))

    @staticmethod
    def _missing(name: str) -> Callable[..., int]:
        def missing(*_: Any) -> int:
            raise NotSupportedError(f'this CUDA driver has no {name}: update it')

        return missing

    def __getattr__(self, name: str) -> Callable[..., int]:  # Only for type checkers: all are set above.
        raise AttributeError(name)


_driver: Optional[_Driver] = None


def cuda_driver() -> _Driver:
    global _driver
    if _driver is None:
        with locks.state:
            if _driver is None:
                driver = _Driver(_open_library())
                status = driver.cuInit(0)
                if status:
                    raise CudaError('cuInit', status, 'initialising the CUDA driver', driver=driver)
                _driver = driver
    return _driver


def is_driver_open() -> bool:
    return _driver is not None


def _open_library() -> Any:
    chosen = os.environ.get('CUFFI_DRIVER') or 'cuda'
    if chosen == 'emulated':
        from . import _emulated  # Loaded only where it is chosen.

        return _emulated.Library()
    if chosen != 'cuda' and '/' not in chosen:
        raise DriverNotFoundError(f'CUFFI_DRIVER must be cuda, emulated, or the path of a libcuda, not {chosen!r}')
    paths, (title, remedy) = (LIBCUDA_PATHS, NO_DRIVER) if chosen == 'cuda' else ((chosen,), NOT_A_DRIVER)
    tried: list[str] = []
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            # The loader's words begin with the path, most times.
            tried.append(f'  {path}: {str(error).replace(f"{path}: ", "", 1)}')
    raise DriverNotFoundError('\n'.join((title, *tried, remedy)))


def describe_status(status: int, driver: Optional[_Driver]) -> tuple[str, str]:
    texts: list[str] = []
    for name in ('cuGetErrorName', 'cuGetErrorString'):
        text = ctypes.c_char_p()
        try:
            known = driver is not None and getattr(driver, name)(status, ctypes.byref(text)) == 0
        except NotSupportedError:
            known = False  # What failed is told, not what is missing.
        texts.append((text.value or b'').decode() if known else '')
    return texts[0] or f'CUDA_ERROR_{status}', texts[1] or 'unknown error'


def check_status(status: int, call: str, doing: str = '') -> None:
    if status:
        raise CudaError(call, status, doing)


def call(name: str, *arguments: Any, doing: str = '') -> None:
    """Calls a function of the driver. Raises CudaError."""
    check_status(getattr(cuda_driver(), name)(*arguments), name, doing)


def read_number(name: str, *arguments: Any, doing: str = '', kind: Any = c_u64) -> int:
    """Calls a function that stores a number where its first argument points to."""
    found = kind()
    call(name, ctypes.byref(found), *arguments, doing=doing)
    return found.value


def is_emulated() -> bool:
    """Whether there is no GPU: the memory of devices is host memory, and handles may be any number."""
    return not isinstance(cuda_driver()._library, ctypes.CDLL)
