"""The types of what users pass: streams, arrays and shapes of any library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Protocol, SupportsIndex, Union


class TorchStream(Protocol):
    """A stream as torch has it."""

    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    """A stream as cupy has it."""

    @property
    def ptr(self) -> int: ...


class NumbaStream(Protocol):
    """A stream as numba and cuda.core have it."""

    @property
    def handle(self) -> Any: ...


# The driver's handle of a stream, or the object of a library.
StreamLike = Union[int, TorchStream, CupyStream, NumbaStream]


class CudaArray(Protocol):
    """https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html"""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class DLPackArray(Protocol):
    """https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html"""

    # Not methods: libraries disagree on the parameters.
    @property
    def __dlpack__(self) -> Callable[..., Any]: ...

    @property
    def __dlpack_device__(self) -> Callable[..., Any]: ...


# An array in the memory of a GPU, of any library.
DeviceArrayLike = Union[CudaArray, DLPackArray]
# A length, or one for each axis.
ShapeLike = Union[SupportsIndex, Iterable[SupportsIndex]]
# NumPy's name, a typestr, or what NumPy, ml_dtypes, cupy or torch call it, which have no type in common.
DtypeLike = Any
