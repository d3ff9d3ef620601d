"""Arrays in the memory of a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from . import _descriptors
from ._devices import chosen_device, device_by_uuid, stream_handle
from ._dlpack import CPU_DEVICE, CUDA_DEVICE, make_capsule
from ._driver import LEGACY_STREAM, call, is_emulated
from ._dtypes import DTYPES, check_shape, contiguous, dtype_of, extents, is_contiguous
from ._errors import ClosedError, CuffiError
from ._host import HostItems, import_numpy, numpy_dtype, read_items
from ._indexing import select
from ._memory import OwnMemory, ReceivedMemory
from ._owner import Context
from ._signals import signals
from ._types import DtypeLike, ShapeLike, StreamLike
from ._waits import add_event, event_behind, is_behind_wait, stream_of

if TYPE_CHECKING:
    from ._devices import Device
    from ._dlpack import Offers
    from ._dtypes import Dtype
    from ._memory import Memory


class DeviceArray(Context):
    """An array in the memory of a GPU: made by `empty`, or received.

    torch, cupy, numba, cuda.core and jax take it as it is: `torch.from_dlpack(array)`,
    `cupy.asarray(array)`, `numba.cuda.as_cuda_array(array)`, `jax.dlpack.from_dlpack(array)`. Their
    tensors share its memory, and keep it. torch refuses the `__cuda_array_interface__` of read-only
    arrays: use `torch.from_dlpack`. torch does not refuse to write into such a tensor, but the GPU
    does: the kernel fails with 700, and the context is lost.

    `array[1:3, ::2]` is a view: an array of the same memory, which keeps it. Closing a view gives
    nothing back; closing the array that it was made of closes the view.
    """

    _instead = ('refer to it, send it with peer.send(), or copy its items: copy_to_host(), or clone() and copy() of torch and cupy. '
                'dataclasses.asdict() makes deep copies: use dataclasses.replace() or vars()')  # fmt: skip

    # Only cuffi makes one: its constructor is not part of the types that users see.
    def __init__(self, memory: Any, address: int, shape: tuple[int, ...], dtype: Any,
                 strides: tuple[int, ...], read_only: bool, stream: Optional[int] = None,
                 base: Optional[DeviceArray] = None) -> None:  # fmt: skip
        """:param base: of a view, the array that has the memory; the view has none itself"""
        self._memory: Optional[Memory] = memory if base is None else None
        self._base = base
        self._device: Device = memory.device
        self._dtype: Dtype = dtype
        self._address, self._shape, self._strides = address, shape, strides
        self._read_only, self._stream = read_only, stream
        # What a consumer of the __cuda_array_interface__ keeps by keeping this object.
        self._exposed: Optional[Memory] = None
        self._offers: Optional[Offers] = None
        if base is None and isinstance(memory, OwnMemory):
            memory.add_array(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis, in items. Stays known after `close()`, as all that describes the array."""
        return self._shape

    @property
    def dtype(self) -> str:
        """NumPy's name, such as float32; `bfloat16`, `float8_e4m3fn` and `float8_e5m2`; raw bytes are `V12`."""
        return self._dtype.name

    @property
    def itemsize(self) -> int:
        """The bytes of an item."""
        return self._dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return self._strides

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

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
        """Whether kernels may only read the items: the GPU refuses writes, and the context is then lost."""
        return self._read_only

    @property
    def device(self) -> int:
        """The ordinal of the device."""
        return self._device.ordinal

    @property
    def closed(self) -> bool:
        """Whether `close()` was called. Tensors that were made of the array before keep its memory."""
        base = self._base
        return self._memory is None if base is None else base.closed

    @property
    def ptr(self) -> int:
        """The address of item [0, 0, ...]. Raises ClosedError."""
        self._held()
        return self._address

    def _held(self) -> Memory:
        base = self._base
        if base is not None:
            return base._held()
        memory = self._memory
        if memory is None:
            raise self._closed_error()
        if isinstance(memory, ReceivedMemory) and memory.revoked_by:
            raise ClosedError(f'this {type(self).__name__} is closed: {memory.revoked_by} has revoked it')
        return memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html

        Its consumer keeps this object, and nothing tells when it ends. So from the first look on, the memory stays for as
        long as this object does, also after `close()`. A view of its own, `cupy.asarray(array[...])`, ends with the
        consumer.
        """
        if not self._dtype.typestr:
            raise AttributeError(f'{self.dtype} has no typestr: use DLPack, such as torch.from_dlpack(array)')
        self._exposed = self._held()
        is_plain = is_contiguous(self._shape, self._strides, self.itemsize)
        return {
            'shape': self._shape,
            'typestr': self._dtype.typestr,
            'data': (self._address if self.size else 0, self._read_only),
            'strides': None if is_plain else self._strides,
            'version': 3,
            'stream': self._stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind and the ordinal of the device. Memory of the emulated driver is of the CPU."""
        return (CPU_DEVICE, 0) if is_emulated() else (CUDA_DEVICE, self._device.ordinal)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[tuple[int, int]] = None,
                   dl_device: Optional[tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:  # fmt: skip
        """https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html

        For the CPU, under the emulated driver, it waits for the work of the device.
        """
        own, on_gpu = self.__dlpack_device__(), (CUDA_DEVICE, self._device.ordinal)
        device = own if dl_device is None else (dl_device[0], dl_device[1])
        if device not in (own, on_gpu):
            raise BufferError(f'the array is on device {own}, not {dl_device}')
        if copy:
            raise BufferError('cuffi does not copy: copy the tensor')
        if stream == 0:
            raise ValueError('stream 0 is ambiguous: 1 is the legacy default stream, 2 the one of the thread')
        memory = self._held()
        if device != on_gpu:
            memory.device.synchronize()
        elif stream != -1 and self._stream is not None:
            self._let_wait(LEGACY_STREAM if stream is None else int(stream))
        return make_capsule(self, max_version is not None and tuple(max_version) >= (1, 0), device)

    def _let_wait(self, stream: int) -> None:
        """Makes a stream wait for the one that this array is ordered by."""
        own = self._stream
        if own is None or own == stream:
            return
        event = event_behind(stream_of(self._device, own))
        with self._device:
            call('cuStreamWaitEvent', stream, event.value, 0)
        if is_behind_wait(self._device, own):
            add_event(self._device, stream, event)

    def copy_to_host(self) -> bytes:
        """Returns the bytes of all items, the last index fastest, whatever the strides. Waits for the work of the device.

        Raises ClosedError, CudaError.
        """
        return self._read_items().raw[: self.nbytes]

    def numpy(self) -> Any:
        """Returns a copy in host memory: an array of NumPy of this shape and dtype, contiguous and writable.

        Waits for the work of the device. `bfloat16`, `float8_e4m3fn` and `float8_e5m2` need the package ml_dtypes: NumPy
        does not know them, and their bits would be taken for numbers. `V12` is NumPy's `V12`.

        >>> peer.receive()['image'].numpy().mean()

        Raises ImportError without NumPy or ml_dtypes; ClosedError, CudaError.
        """
        numpy = import_numpy()
        return numpy.ndarray(self._shape, numpy_dtype(numpy, self._dtype), self._read_items())

    def _read_items(self) -> Any:
        # Another thread may close this array meanwhile.
        memory = self._held()
        with memory.device:
            if self.size:
                call('cuCtxSynchronize')
            return read_items(self._address, self._shape, self._strides, self.itemsize)

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
            raise ValueError(f'data has {view.nbytes} bytes, but the array has {self.nbytes}')
        _check_format(view, self._dtype)
        if not view.nbytes:
            return
        memory = self._held()
        with memory.device:
            call('cuMemcpyHtoD_v2', self._address, view.tobytes(), view.nbytes)
            # A copy from pageable memory may return before it is done.
            call('cuCtxSynchronize')

    def __array__(self, dtype: Any = None, *, copy: Optional[bool] = None) -> Any:
        """Under the emulated driver: an array of NumPy in the same memory, for `numpy.asarray`, which keeps the memory.

        Waits for the work of the device. Raises TypeError for memory of a GPU.
        """
        if not is_emulated():
            raise TypeError(
                'this array is in the memory of a GPU, where NumPy cannot read it: copy it with array.numpy(), or use a library '
                'of the GPU, such as cupy.asarray(array) or torch.from_dlpack(array)'
            )
        numpy, memory = import_numpy(), self._held()
        own = numpy_dtype(numpy, self._dtype)
        memory.device.synchronize()
        found = numpy.asarray(HostItems(memory, self._address, self._shape, self._strides, self._dtype, self._read_only)).view(own)
        is_other = dtype is not None and numpy.dtype(dtype) != own
        if is_other and copy is False:
            raise ValueError(f'an array of {self.dtype} must be copied to be one of {numpy.dtype(dtype)}')
        return numpy.array(found, dtype, copy=True) if is_other or copy else found

    def _assert_contiguous(self) -> None:
        self._held()
        if not is_contiguous(self._shape, self._strides, self.itemsize):
            raise CuffiError('this array is not contiguous: copy it with torch or cupy')

    # ---- Views ----

    def __getitem__(self, index: Any) -> DeviceArray:
        """Returns the view that an index chooses, as in NumPy: integers, slices with any step, `...`, and None for a new axis.

        It shares the memory and keeps it, also if this array is dropped. Closing this array closes it. With an integer for
        each axis it has no axis: `array[0, 1].numpy()` is the item. A part of a DeviceBuffer is a DeviceBuffer.

        Raises IndexError, TypeError for masks and lists, which would copy; ClosedError.
        """
        memory, base = self._held(), self._base or self
        offset, shape, strides = select(self._shape, self._strides, index)
        is_buffer = isinstance(self, DeviceBuffer) and len(shape) == 1 and is_contiguous(shape, strides, 1)
        return (DeviceBuffer if is_buffer else DeviceArray)(
            memory, self._address + offset, shape, self._dtype, strides, self._read_only, self._stream, base)  # fmt: skip

    def __iter__(self) -> Iterator[DeviceArray]:
        """The views along the first axis."""
        return (self[at] for at in range(len(self)))

    def close(self, *, stream: Optional[StreamLike] = None) -> None:
        """Gives the memory back, once no tensor made of this array uses it, and closes its views. The second call does nothing.

        A view has no memory of its own: closing it gives back nothing. After a library has read the
        `__cuda_array_interface__`, the memory stays as long as this object; see there.

        Without `stream` it waits until all work of the device is done; not if a stream waits for another process: the
        memory is then given back in the background. With `stream`, nothing waits: the memory is given back behind the
        work that is queued in that stream.
        """
        handle = None if stream is None else stream_handle(stream)
        memory, self._base = self._memory, None
        if memory is None:
            self._offers = None
            return
        if handle is not None and isinstance(memory, ReceivedMemory):
            memory.stream = handle
        self._memory = None
        self._offers = None
        if isinstance(memory, OwnMemory):
            memory.remove_array(self)
        connection = memory.connection if isinstance(memory, ReceivedMemory) else None
        del memory
        if connection is not None:
            with signals:
                connection.imports.give_back(may_wait=True)

    def __enter__(self) -> DeviceArray:
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


def _check_format(view: memoryview, dtype: Dtype) -> None:
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


class DeviceBuffer(DeviceArray):
    """Plain bytes in the memory of a GPU: what Node sends as a DeviceBuffer. An array of uint8."""


class ImportedPool:
    """A memory pool of another process. Its memory arrives as arrays and buffers; this only names it."""

    def __init__(self, uuid: bytes) -> None:
        self._uuid = uuid

    @property
    def device(self) -> int:
        """The ordinal of the device. Raises IpcError if this process does not see it."""
        return device_by_uuid(self._uuid).ordinal

    def close(self) -> None:
        """Does nothing: the pool is closed with its last array, and with the connection."""


def empty(shape: ShapeLike, dtype: DtypeLike = 'float32', *, device: Optional[int] = None) -> DeviceArray:
    """Returns uninitialized memory that every process and library can share, whatever allocates theirs.

    >>> frame = torch.from_dlpack(cuffi.empty((1080, 1920, 3), 'uint8'))
    >>> peer.send(frame)

    Raises CudaError if the device has no memory left.
    """
    lengths, kind = check_shape(shape), dtype_of(dtype)
    where = chosen_device(device)
    memory = OwnMemory(where, max(math.prod(lengths) * kind.itemsize, 1))
    return DeviceArray(memory, memory.address, lengths, kind, contiguous(lengths, kind.itemsize), False)


def array_of(memory: Memory, begin: int, layout: Optional[_descriptors.Layout],
              byte_length: int, read_only: bool, stream: Optional[int]) -> DeviceArray:  # fmt: skip
    if layout is None:
        return DeviceBuffer(memory, begin, (byte_length,), DTYPES['uint8'], (1,), read_only, stream)
    dtype = dtype_of(layout.dtype)
    low, _ = extents(layout.shape, layout.strides, dtype.itemsize)
    return DeviceArray(memory, begin - low, tuple(layout.shape), dtype, tuple(layout.strides), read_only, stream)
