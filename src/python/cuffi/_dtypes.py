"""Dtypes, and how the items of an array lie in its memory."""

from __future__ import annotations

import math
from typing import Any, Dict, Sequence, Tuple

from ._bytes import _SAFE
from ._protocol import MAX_AXES


class _Dtype:
    """A dtype by NumPy's name, with its typestr and DLPack's code."""

    def __init__(self, name: str, typestr: str, code: int, itemsize: int) -> None:
        self.name, self.typestr, self.code, self.itemsize = name, typestr, code, itemsize


_DTYPES: Dict[str, _Dtype] = {
    name: _Dtype(name, typestr, code, itemsize)
    for name, typestr, code, itemsize in (
        ('bool', '|b1', 6, 1),
        ('int8', '|i1', 0, 1), ('int16', '<i2', 0, 2), ('int32', '<i4', 0, 4), ('int64', '<i8', 0, 8),
        ('uint8', '|u1', 1, 1), ('uint16', '<u2', 1, 2), ('uint32', '<u4', 1, 4), ('uint64', '<u8', 1, 8),
        ('float16', '<f2', 2, 2), ('bfloat16', '', 4, 2), ('float32', '<f4', 2, 4), ('float64', '<f8', 2, 8),
        ('float8_e4m3fn', '', 10, 1), ('float8_e5m2', '', 12, 1),
        ('complex64', '<c8', 5, 8), ('complex128', '<c16', 5, 16),
    )
}
_BY_TYPESTR = {dtype.typestr: dtype for dtype in _DTYPES.values() if dtype.typestr}
_BY_DLPACK = {(dtype.code, dtype.itemsize * 8): dtype for dtype in _DTYPES.values()}


def _dtype(of: Any) -> _Dtype:
    """Finds a dtype by its name, its typestr, or what NumPy, cupy or torch call it."""
    if isinstance(of, _Dtype):
        return of
    if isinstance(of, type):
        name = {bool: 'bool', int: 'int64', float: 'float64', complex: 'complex128'}.get(of, of.__name__)
    else:
        name = of if isinstance(of, str) else str(getattr(of, 'name', of))
    name = name.rpartition('.')[2]
    found = _DTYPES.get(name) or _BY_TYPESTR.get(name)
    if found is None and name[:1] == 'V' and name[1:].isascii() and name[1:].isdigit() and name[1] != '0':
        found = _raw_dtype(int(name[1:]))
    if found is None:
        raise TypeError(f'unknown dtype {of!r}: it must be one of {", ".join(_DTYPES)}, V<itemsize>')
    return found


def _received_dtype(name: str) -> _Dtype:
    """The dtype that another process names, by its only name. Raises TypeError."""
    found = _dtype(name)
    if found.name != name:
        raise TypeError(f'the dtype is called {found.name}, not {name}')
    return found


def _raw_dtype(itemsize: int) -> _Dtype:
    if itemsize > 2**31 - 1:
        raise TypeError(f'an item has at most {2**31 - 1} bytes, not {itemsize}')
    return _Dtype(f'V{itemsize}', f'|V{itemsize}', 1, itemsize)


def _contiguous(shape: Sequence[int], itemsize: int) -> Tuple[int, ...]:
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _extents(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Tuple[int, int]:
    """The first byte of the items, and the one behind the last, from item [0, 0, ...]."""
    low, high = 0, itemsize
    for length, stride in zip(shape, strides):
        if length == 0:
            return 0, 0
        reach = (length - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


def _check_shape(shape: Any) -> Tuple[int, ...]:
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(length, int) and length >= 0 for length in lengths) or len(lengths) > MAX_AXES:
        raise ValueError(f'shape must have at most {MAX_AXES} lengths of at least 0, not {shape!r}')
    # Without empty axes, so that the strides of an empty array are safe, too.
    _check_safe(math.prod(length for length in lengths if length), "shape's size")
    return lengths


def _checked_extents(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Tuple[int, int]:
    """Returns the extents of a layout of another process. Raises ValueError for bytes beyond the safe integers."""
    items = math.prod(length for length in _check_shape(shape) if length)
    _check_safe(items * itemsize, f'an array of shape {list(shape)}')
    low, high = _extents(shape, strides, itemsize)
    _check_safe(low, 'the beginning of the array')
    _check_safe(high, 'the end of the array')
    _check_safe(high - low, 'the end of the array')
    return low, high


def _check_safe(value: int, name: str) -> None:
    if abs(value) > _SAFE:
        raise ValueError(f'{name} is too large: {value} is not a safe integer')
