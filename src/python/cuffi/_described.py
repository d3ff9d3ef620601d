"""Arrays of any library: where their items are."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Optional

from . import _descriptors
from ._array import DeviceArray, DeviceBuffer
from ._dlpack import CUDA_DEVICE, dtype_of_dlpack, read_capsule
from ._dtypes import check_shape, checked_extents, contiguous, dtype_of, integers_of
from ._errors import NotSupportedError

if TYPE_CHECKING:
    from ._memory import Memory


def _is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch, or of a class made of it."""
    return hasattr(value, 'data_ptr') and any(kind.__module__.partition('.')[0] == 'torch' for kind in type(value).__mro__)


def is_on_gpu(value: Any) -> bool:
    if _is_torch(value):
        if not value.is_cuda:
            raise TypeError('a tensor in host memory cannot be sent: move it to the GPU, or send tensor.numpy().ravel() and its shape')
        return True
    if hasattr(value.__class__, '__cuda_array_interface__') or hasattr(value, '__cuda_array_interface__'):
        return True
    find = getattr(value, '__dlpack_device__', None)
    return find is not None and int(find()[0]) == CUDA_DEVICE


class Described:
    """An array of any library: where its items are, and what keeps them alive."""

    __slots__ = ('address', 'shape', 'dtype', 'strides', 'read_only', 'is_buffer', 'owner', 'memory')

    def __init__(self, value: Any) -> None:
        self.owner: Any = value
        self.memory: Optional[Memory] = None
        self.is_buffer = False
        if isinstance(value, DeviceArray):
            self.memory = value._held()
            self.address, self.shape, self.dtype = value.ptr, value.shape, value._dtype
            self.strides, self.read_only = value.strides, value.read_only
            self.is_buffer = type(value) is DeviceBuffer
            # The array may be closed before the other end has released it.
            self.owner = self.memory
        else:
            _refuse_lazy_bits(value)
            if _is_torch(value):
                self._describe_torch(value)
            else:
                self._describe(value)
            checked_extents(self.shape, self.strides, self.dtype.itemsize)

    def _describe_torch(self, value: Any) -> None:
        layout = str(value.layout)
        if layout != 'torch.strided':
            raise TypeError(f'a tensor of layout {layout} cannot be sent: send value.to_dense(), or its indices and values')
        self.address, self.shape, self.dtype = value.data_ptr(), tuple(value.shape), dtype_of(value.dtype)
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
            strides = None if strides is None else integers_of(strides)
        except (KeyError, TypeError, ValueError) as error:
            raise TypeError(
                f'the __cuda_array_interface__ of a {type(value).__name__} must have a typestr, a shape, data of an address and a '
                f'flag, and strides that are None or integers: {type(error).__name__} {error}'
            ) from None
        if not isinstance(typestr, str):
            raise TypeError(f'typestr must be a str, not {type(typestr).__name__}')
        if not 0 <= address < 2**64:
            raise ValueError(f'data must have the address of the items, not {address}')
        self.dtype, self.shape = dtype_of(typestr), check_shape(shape)
        self.address, self.read_only = address, bool(read_only)
        self.strides = contiguous(self.shape, self.dtype.itemsize) if strides is None else strides
        if len(self.strides) != len(self.shape):
            raise ValueError(f'strides {self.strides} are not those of a shape with {len(self.shape)} axes')

    def _describe_by_dlpack(self, value: Any) -> None:
        try:
            # Only this version tells what is read-only.
            capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = value.__dlpack__()
        tensor, self.read_only = read_capsule(capsule)
        self.owner = (value, capsule)
        self.dtype = dtype_of_dlpack(tensor)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = check_shape(tensor.shape[: tensor.ndim])
        itemsize = self.dtype.itemsize
        steps = tensor.strides[: tensor.ndim] if tensor.strides else None
        self.strides = contiguous(self.shape, itemsize) if steps is None else tuple(step * itemsize for step in steps)


def _refuse_lazy_bits(value: Any) -> None:
    """Refuses tensors of torch whose memory holds the items before an operation that is still to be done."""
    for bit, what in (('conj', 'conjugated'), ('neg', 'negated')):
        is_set = getattr(value, f'is_{bit}', None)
        if callable(is_set) and is_set():
            raise ValueError(f'the memory of this tensor holds its items before they are {what}: send tensor.resolve_{bit}()')


def layout_of(array: Optional[Described]) -> Optional[_descriptors.Layout]:
    """The layout that others get; none for plain bytes."""
    if array is None or array.is_buffer:
        return None
    return _descriptors.Layout(array.dtype.name, array.shape, array.strides)
