"""Basic indexing as in NumPy: integers, slices, `...` and None. The result is always a view."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ._protocol import MAX_AXES


def select(shape: Sequence[int], strides: Sequence[int], index: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Returns what an index chooses: the bytes to its first item, its shape, and its strides in bytes.

    Raises IndexError for an index beyond its axis and for too many of them, TypeError for what is not an index of a view,
    ValueError for a step of 0.
    """
    offset, is_empty = 0, 0 in shape
    lengths: list[int] = []
    steps: list[int] = []
    axis = 0
    for selector in _one_for_each_axis(shape, index):
        if selector is None:
            lengths.append(1)
            steps.append(0)
            continue
        length, stride = shape[axis], strides[axis]
        if isinstance(selector, slice):
            chosen = range(length)[selector]
            # An empty slice begins at 0, so that its address stays within the memory.
            begin, step = (chosen.start, chosen.step) if len(chosen) else (0, 1)
            lengths.append(len(chosen))
            # The step of a single item says nothing, and may be huge.
            steps.append(stride * step if len(chosen) > 1 else stride)
        else:
            begin = selector + length if selector < 0 else selector
            if not 0 <= begin < length:
                raise IndexError(f'index {selector} is out of bounds for axis {axis} with size {length}')
        if not is_empty:
            offset += begin * stride
        axis += 1
    if len(lengths) > MAX_AXES:
        raise IndexError(f'an array has at most {MAX_AXES} axes, not {len(lengths)}')
    return offset, tuple(lengths), tuple(steps)


def _one_for_each_axis(shape: Sequence[int], index: Any) -> list[Any]:
    """The integers and slices of an index, one for each axis of the array, with None for new axes."""
    every: Any = index
    given = [_selector(each) for each in (every if isinstance(index, tuple) else (every,))]
    ellipses = given.count(Ellipsis)
    if ellipses > 1:
        raise IndexError('an index may have only one ...')
    count = len(given) - ellipses - given.count(None)
    if count > len(shape):
        raise IndexError(f'too many indices for shape {list(shape)}: {count}')
    whole = [slice(None)] * (len(shape) - count)
    if not ellipses:
        return given + whole
    at = given.index(Ellipsis)
    return given[:at] + whole + given[at + 1 :]


def _selector(given: Any) -> Any:
    if given is None or given is Ellipsis or type(given) is slice:
        return given
    try:
        # To NumPy, a bool is a mask.
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise TypeError(
        f'an index of a view has integers, slices, ... and None, not {type(given).__name__}: '
        'masks and lists of indices copy, as cupy.asarray(array)[...] does'
    )
