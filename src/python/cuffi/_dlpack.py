"""DLPack: tensors as capsules, which libraries exchange.

https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._driver import c_int
from ._dtypes import BY_DLPACK, raw_dtype
from ._errors import NotSupportedError
from ._files import libc
from ._process import process_exit

if TYPE_CHECKING:
    from ._array import DeviceArray
    from ._dtypes import Dtype


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


CPU_DEVICE, CUDA_DEVICE = 1, 2
_READ_ONLY_FLAG = 1
_CapsuleDestructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _python_function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_new = _python_function('PyCapsule_New', ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor)
_capsule_is_valid = _python_function('PyCapsule_IsValid', c_int, ctypes.c_void_p, ctypes.c_char_p)
_capsule_pointer = _python_function('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_pointer_of_dying_capsule = _python_function('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
# Does nothing, but raises an error that is pending, as all functions of `pythonapi` do.
_raise_pending = _python_function('Py_IsInitialized', c_int)
# What tensors of other libraries keep: by the address of the structure that they were given.
given_to_libraries: dict[int, tuple[Any, ...]] = {}


# Tensors may end after the names of this module: both functions refer to none. They may also end while an error is pending,
# as temporary ones of an expression that fails. No function of Python can give that back to C: ctypes prints what is raised here.
@_Deleter
def _delete_given(address: int, given: dict[int, tuple[Any, ...]] = given_to_libraries, raise_pending: Any = _raise_pending) -> None:
    try:
        raise_pending()
    finally:
        given.pop(address, None)


@_CapsuleDestructor
def _destroy_capsule(capsule: int, given: dict[int, tuple[Any, ...]] = given_to_libraries, is_valid: Any = _capsule_is_valid,
                     get: Any = _pointer_of_dying_capsule, raise_pending: Any = _raise_pending) -> None:  # fmt: skip
    """Frees what nobody has taken. A consumer renames the capsule."""
    try:
        # Mostly `Offers` prevents that there is one.
        raise_pending()
    finally:
        for name in (b'dltensor', b'dltensor_versioned'):
            if is_valid(capsule, name):
                given.pop(get(capsule, name) or 0, None)


for _callback in (_delete_given, _destroy_capsule):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def _reference_counts(capsules: Sequence[Any]) -> list[int]:
    return [sys.getrefcount(capsule) for capsule in capsules]


_HELD_BY_LIST_ONLY = _reference_counts([object()])[0]


class Offers:
    """The capsules that an array has handed out, until nobody else has them.

    A consumer that refuses a tensor drops its capsule with its error pending, which no code of Python may run with. So it must
    not drop the last reference.
    """

    __slots__ = ('_capsules',)

    def __init__(self) -> None:
        self._capsules: list[Any] = []

    def add(self, capsule: Any) -> None:
        kept = self._capsules
        self._capsules = [one for one, count in zip(kept, _reference_counts(kept)) if count > _HELD_BY_LIST_ONLY]
        self._capsules.append(capsule)

    def __del__(self) -> None:
        # Here: Python puts a pending error aside while it calls this, but not while it deletes the list of an object.
        self._capsules = []


def _strides_in_items(array: DeviceArray) -> list[int]:
    itemsize, is_empty = array.itemsize, array.size == 0
    strides: list[int] = []
    for length, stride in zip(array.shape, array.strides):
        is_used = length > 1 and not is_empty
        if is_used and stride % itemsize:
            raise BufferError(f'DLPack strides must be multiples of the item size, {itemsize} bytes: copy the array')
        if is_used and stride < 0:
            raise BufferError(
                f'the array has negative strides, {list(array.strides)}, which crash libraries that get them by DLPack: '
                'use __cuda_array_interface__, as cupy.asarray(array) does, or copy the array'
            )
        # Any stride will do for one index: libraries check it all the same.
        strides.append(1 if not is_used and (stride % itemsize or stride < 0) else stride // itemsize)
    return strides


def no_deleter() -> Any:
    """A function of C without effect: nothing of Python may be called once the interpreter has ended."""
    return ctypes.cast(libc.getpid, _Deleter)


def make_capsule(array: DeviceArray, is_versioned: bool, device: tuple[int, int]) -> Any:
    """:param device: where the consumer is told that it is: DLPack's kind and the ordinal"""
    ndim, dtype = len(array.shape), array._dtype
    lanes = 1 if dtype.typestr[1:2] != 'V' else dtype.itemsize
    if lanes > 0xFFFF:
        raise BufferError(f'DLPack has no type for {dtype.name}')
    if array.read_only and not is_versioned:
        raise BufferError(
            'the array is read-only, and DLPack before 1.0 cannot say so: update the library, so that it asks with '
            'max_version=(1, 0), or copy the array'
        )
    memory = array._held()
    shape = (ctypes.c_int64 * max(ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(ndim, 1))(*_strides_in_items(array))
    managed = (_DLManagedVersioned if is_versioned else _DLManaged)()
    tensor = managed.tensor
    tensor.data = array.ptr if array.size else None
    tensor.device_type, tensor.device_id = device
    tensor.ndim, tensor.code, tensor.lanes = ndim, dtype.code, lanes
    tensor.bits = dtype.itemsize * 8 if lanes == 1 else 8
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = no_deleter() if process_exit.has_begun else _delete_given
    if is_versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY_FLAG if array.read_only else 0
    address = ctypes.addressof(managed)
    given_to_libraries[address] = (managed, shape, strides, memory)
    name = b'dltensor_versioned' if is_versioned else b'dltensor'
    capsule = _capsule_new(address, name, _destroy_capsule)
    offers = array._offers
    if offers is None:
        offers = array._offers = Offers()
    offers.add(capsule)
    return capsule


def read_capsule(capsule: Any) -> tuple[_DLTensor, bool]:
    """The tensor of a capsule, which stays the capsule's, and whether it is read-only."""
    if _capsule_is_valid(id(capsule), b'dltensor_versioned'):
        versioned = _DLManagedVersioned.from_address(_capsule_pointer(capsule, b'dltensor_versioned'))
        if versioned.major != 1:
            raise NotSupportedError(f'DLPack {versioned.major}.{versioned.minor} is not known here')
        return versioned.tensor, bool(versioned.flags & _READ_ONLY_FLAG)
    return _DLManaged.from_address(_capsule_pointer(capsule, b'dltensor')).tensor, False


def dtype_of_dlpack(tensor: _DLTensor) -> Dtype:
    found = BY_DLPACK.get((tensor.code, tensor.bits))
    if found is None:
        raise NotSupportedError(f'DLPack type {tensor.code} of {tensor.bits} bits has no dtype here')
    # Vectors are raw bytes, as in Node.
    return found if tensor.lanes <= 1 else raw_dtype(found.itemsize * tensor.lanes)
