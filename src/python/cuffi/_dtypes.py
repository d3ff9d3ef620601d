"""Dtypes, and how the items of an array lie in its memory."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Sequence
from typing import Any, Optional

from ._bytes import SAFE
from ._protocol import MAX_AXES


class Dtype:
    """A dtype by NumPy's name, with its typestr and DLPack's code."""

    def __init__(self, name: str, typestr: str, code: int, itemsize: int) -> None:
        self.name, self.typestr, self.code, self.itemsize = name, typestr, code, itemsize


DTYPES: dict[str, Dtype] = {
    name: Dtype(name, typestr, code, itemsize)
    for name, typestr, code, itemsize in (
        ('bool', '|b1', 6, 1),
        ('int8', '|i1', 0, 1),
        ('int16', '<i2', 0, 2),
        ('int32', '<i4', 0, 4),
        ('int64', '<i8', 0, 8),
        ('uint8', '|u1', 1, 1),
        ('uint16', '<u2', 1, 2),
        ('uint32', '<u4', 1, 4),
        ('uint64', '<u8', 1, 8),
        ('float16', '<f2', 2, 2),
        ('bfloat16', '', 4, 2),
        ('float32', '<f4', 2, 4),
        ('float64', '<f8', 2, 8),
        ('float8_e4m3fn', '', 10, 1),
        ('float8_e5m2', '', 12, 1),
        ('complex64', '<c8', 5, 8),
        ('complex128', '<c16', 5, 16),
    )
}
# By typestr without its byte order, such as f4.
_BY_CODE = {dtype.typestr[1:]: dtype for dtype in DTYPES.values() if dtype.typestr}
_TYPESTR = re.compile('([<>=|]?)(([a-zA-Z])([0-9]{1,10}))', re.ASCII)
# What NumPy, ml_dtypes and PyTorch write for bfloat16: only its `<` tells it from raw bytes.
_BFLOAT16_TYPESTR = '<V2'
BY_DLPACK = {(dtype.code, dtype.itemsize * 8): dtype for dtype in DTYPES.values()}


def dtype_of(of: Any) -> Dtype:
    """Finds a dtype by its name, its typestr, or what NumPy, ml_dtypes, cupy or torch call it. Raises TypeError."""
    if isinstance(of, Dtype):
        return of
    found = _dtype_of_object(of) if not isinstance(of, str) else DTYPES.get(of.rpartition('.')[2]) or _dtype_of_typestr(of)
    if found is None:
        raise TypeError(f'unknown dtype {of!r}: it must be one of {", ".join(DTYPES)}, V<itemsize>')
    return found


def _dtype_of_object(of: Any) -> Optional[Dtype]:
    if isinstance(of, type):
        if of.__module__ == 'numpy':
            # Some of its types have several names, such as longlong.
            return _dtype_of_object(sys.modules['numpy'].dtype(of))
        return DTYPES.get({bool: 'bool', int: 'int64', float: 'float64', complex: 'complex128'}.get(of, of.__name__))
    name = str(getattr(of, 'name', of)).rpartition('.')[2]
    found = DTYPES.get(name)
    if found is not None and getattr(of, 'byteorder', '=') == '>':
        raise _big_endian(str(getattr(of, 'str', name)), found)
    if found is None and name.startswith('void') and getattr(of, 'kind', '') == 'V':
        # Records, whose fields are not known here. The types of ml_dtypes are of this kind, too, with other names.
        return raw_dtype(of.itemsize) if of.itemsize else None
    return found


def _dtype_of_typestr(typestr: str) -> Optional[Dtype]:
    """As in Node: the byte order may be absent."""
    parts = _TYPESTR.fullmatch(typestr)
    if parts is None:
        return None
    order, code, kind, size = parts.groups()
    if typestr == _BFLOAT16_TYPESTR:
        return DTYPES['bfloat16']
    if kind == 'V':
        # A dtype has exactly one name: without leading zeros.
        return raw_dtype(int(size)) if size[0] != '0' else None
    found = _BY_CODE.get(code)
    if found is not None and order == '>' and found.itemsize > 1:
        raise _big_endian(typestr, found)
    return found


def _big_endian(typestr: str, dtype: Dtype) -> TypeError:
    return TypeError(f"'{typestr}' is big-endian, and GPUs are little-endian: swap the bytes, and use '{dtype.typestr}'")


def received_dtype(name: str) -> Dtype:
    """The dtype that another process names, by its only name. Raises TypeError."""
    found = dtype_of(name)
    if found.name != name:
        raise TypeError(f'the dtype is called {found.name}, not {name}')
    return found


def raw_dtype(itemsize: int) -> Dtype:
    if itemsize > 2**31 - 1:
        raise TypeError(f'an item has at most {2**31 - 1} bytes, not {itemsize}')
    return Dtype(f'V{itemsize}', f'|V{itemsize}', 1, itemsize)


def contiguous(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether items lie one behind the other in the order of their indices. The stride of one index says nothing."""
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length > 1 and stride != step:
            return 0 in shape
        step *= length
    return True


def extents(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
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


def integers_of(values: Any) -> tuple[int, ...]:
    """Integers of any library as those of Python. Raises TypeError."""
    if any(isinstance(value, bool) for value in values):
        raise TypeError('bool is not an integer')
    return tuple(map(operator.index, values))


def check_shape(shape: Any) -> tuple[int, ...]:
    try:
        lengths = integers_of((shape,) if hasattr(shape, '__index__') and not getattr(shape, 'shape', ()) else shape)
    except TypeError:
        raise _bad_shape(shape) from None
    if not all(length >= 0 for length in lengths) or len(lengths) > MAX_AXES or isinstance(shape, (dict, set)):
        raise _bad_shape(shape)
    # Without empty axes, so that the strides of an empty array are safe, too.
    _check_safe(math.prod(length for length in lengths if length), "shape's size")
    return lengths


def _bad_shape(shape: Any) -> ValueError:
    return ValueError(f'shape must have at most {MAX_AXES} lengths of at least 0, not {shape!r}')


def checked_extents(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Returns the extents of a layout of another process. Raises ValueError for bytes beyond the safe integers."""
    items = math.prod(length for length in check_shape(shape) if length)
    _check_safe(items * itemsize, f'an array of shape {list(shape)}')
    low, high = extents(shape, strides, itemsize)
    _check_safe(low, 'the beginning of the array')
    _check_safe(high, 'the end of the array')
    _check_safe(high - low, 'the end of the array')
    return low, high


def _check_safe(value: int, name: str) -> None:
    if abs(value) > SAFE:
        raise ValueError(f'{name} is too large: {value} is not a safe integer')
