"""Items of arrays in host memory: as bytes, and in arrays of NumPy."""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._driver import call
from ._dtypes import Dtype, extents, is_contiguous

if TYPE_CHECKING:
    from ._memory import Memory

# So many bytes cost about as much as another call of the driver.
_MAX_GAP = 1 << 16


def read_items(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Any:
    """Returns a ctypes array with all items, in the order of their indices. It has at least one byte.

    The context must be current, and the work that writes them done. Bytes between the items are copied with them, unless
    there are many.
    """
    out = ctypes.create_string_buffer(max(math.prod(shape) * itemsize, 1))
    if 0 not in shape:
        _read(ctypes.addressof(out), address, shape, strides, itemsize)
    return out


def _read(target: int, address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> None:
    byte_length = math.prod(shape) * itemsize
    if is_contiguous(shape, strides, itemsize):
        call('cuMemcpyDtoH_v2', target, address, byte_length)
        return
    low, high = extents(shape[1:], strides[1:], itemsize)
    if shape[0] == 1 or abs(strides[0]) - (high - low) > _MAX_GAP:
        step = byte_length // shape[0]
        for at in range(shape[0]):
            _read(target + at * step, address + at * strides[0], shape[1:], strides[1:], itemsize)
        return
    low, high = extents(shape, strides, itemsize)
    block = ctypes.create_string_buffer(high - low)
    call('cuMemcpyDtoH_v2', ctypes.addressof(block), address + low, high - low)
    items = _gather(ctypes.addressof(block) - low, shape, strides, itemsize)
    ctypes.memmove(target, items, byte_length)


class _PyBuffer(ctypes.Structure):
    """Py_buffer: https://docs.python.org/3/c-api/buffer.html#c.Py_buffer"""

    _fields_ = [('buf', ctypes.c_void_p), ('obj', ctypes.c_void_p), ('len', ctypes.c_ssize_t), ('itemsize', ctypes.c_ssize_t),
                ('readonly', ctypes.c_int), ('ndim', ctypes.c_int), ('format', ctypes.c_char_p),
                ('shape', ctypes.POINTER(ctypes.c_ssize_t)), ('strides', ctypes.POINTER(ctypes.c_ssize_t)),
                ('suboffsets', ctypes.c_void_p), ('internal', ctypes.c_void_p)]  # fmt: skip


_view_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_PyBuffer))(('PyMemoryView_FromBuffer', ctypes.pythonapi))


def _gather(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bytes:
    """Items of host memory in the order of their indices. A memoryview gathers them in C, which Python has no other way to."""
    lengths, steps = ((ctypes.c_ssize_t * len(shape))(*values) for values in (shape, strides))
    buffer = _PyBuffer(address, None, math.prod(shape) * itemsize, itemsize, 1, len(shape), None, lengths, steps)
    return _view_of(ctypes.byref(buffer)).tobytes()


# ---- NumPy ----


def import_numpy() -> Any:
    """Raises ImportError."""
    try:
        # By name: checkers of types need not have it.
        return importlib.import_module('numpy')
    except ImportError:
        raise ImportError('NumPy is not installed: install it, or use the bytes of array.copy_to_host()') from None


def numpy_dtype(numpy: Any, dtype: Dtype) -> Any:
    """NumPy's dtype. Raises ImportError for those that only ml_dtypes has."""
    if dtype.typestr:
        return numpy.dtype(dtype.typestr)
    try:
        ml_dtypes: Any = importlib.import_module('ml_dtypes')
    except ImportError:
        raise ImportError(
            f'NumPy has no {dtype.name}: install ml_dtypes, or look at the bits: '
            f"numpy.frombuffer(array.copy_to_host(), 'uint{8 * dtype.itemsize}').reshape(array.shape)"
        ) from None
    return numpy.dtype(getattr(ml_dtypes, dtype.name))


class HostItems:
    """Items that NumPy can reach, for `numpy.asarray`. The array that NumPy makes keeps it, and so the memory."""

    def __init__(self, memory: Memory, address: int, shape: Sequence[int], strides: Sequence[int], dtype: Dtype, read_only: bool) -> None:
        self._memory = memory
        # Dtypes without a typestr begin as their bits.
        typestr = dtype.typestr or f'<u{dtype.itemsize}'
        self.__array_interface__: dict[str, Any] = {
            'shape': tuple(shape), 'typestr': typestr, 'data': (address, read_only), 'strides': tuple(strides), 'version': 3}  # fmt: skip
