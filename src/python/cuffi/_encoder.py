"""Writes values."""

# pyright: standard
# Values may be anything, and what is in them, too.

from __future__ import annotations

import datetime
import math
import struct
import traceback
from typing import Any

from ._array import DeviceArray
from ._bytes import SAFE, pack_double, pack_int, write_length
from ._described import is_on_gpu
from ._errors import RemoteError
from ._event import CudaEvent
from ._hashes import check_collisions_in_node
from ._owner import Closable
from ._protocol import (
    ERROR_CAUSE,
    ERROR_TYPES,
    MAX_BIGINT_DIGITS,
    MAX_NAME_LENGTH,
    MAX_UNCOUNTED_KEYS,
    MAX_VALUE_BINARIES,
    MAX_VALUE_BYTE_LENGTH,
    MAX_VALUE_COLLECTIONS,
    MAX_VALUE_DEPTH,
    MAX_VALUE_PARTS,
    TAG_ARRAY,
    TAG_BIGINT,
    TAG_BIGINT64,
    TAG_BINARY,
    TAG_DATE,
    TAG_ERROR,
    TAG_FALSE,
    TAG_FLOAT64,
    TAG_GPU_OBJECT,
    TAG_INT32,
    TAG_LATIN1,
    TAG_MAP,
    TAG_NULL,
    TAG_OBJECT,
    TAG_SET,
    TAG_TRUE,
    TAG_UTF16,
)
from ._values import AGGREGATE_ERROR, BINARY_OF, EPOCH, ERROR_TEXTS, UINT8_ARRAY, BigInt, Map, utf16_length


class Encoder:
    """Writes a value. GPU objects in it are collected in `objects`, in order."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.objects: list[Any] = []
        self._parts = self._binaries = self._collections = 0

    def write(self, value: Any, depth: int = 0) -> None:
        out = self.out
        self._parts += 1
        if self._parts > MAX_VALUE_PARTS or len(out) > MAX_VALUE_BYTE_LENGTH:
            raise ValueError(f'the value is too large: it may have at most {MAX_VALUE_PARTS} parts and 16 MiB')
        kind = type(value)
        if value is None:
            out.append(TAG_NULL)
        elif kind is bool:
            out.append(TAG_TRUE if value else TAG_FALSE)
        elif kind is int:
            self._int(value)
        elif kind is float:
            out.append(TAG_FLOAT64)
            out += pack_double(value)
        elif kind is str:
            self.string(value)
        elif isinstance(value, (DeviceArray, CudaEvent, Closable)):
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
            out += pack_double(float.__float__(value))
        elif isinstance(value, datetime.datetime):
            out.append(TAG_DATE)
            out += pack_double(_milliseconds(value))
        elif is_on_gpu(value):
            self._object(value)
        else:
            self._binary(value, depth)

    def _object(self, value: Any) -> None:
        self.out.append(TAG_GPU_OBJECT)
        self.objects.append(value)

    def _int(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self.out.append(TAG_INT32)
            self.out += pack_int(value)
        elif -SAFE <= value <= SAFE:
            self.out.append(TAG_FLOAT64)
            self.out += pack_double(value)
        else:
            self._bigint(value)

    def _bigint(self, value: int) -> None:
        if -(2**63) <= value < 2**63:
            self.out += struct.pack('<Bq', TAG_BIGINT64, value)
            return
        digits = b'%x' % abs(value)
        if len(digits) > MAX_BIGINT_DIGITS:
            raise ValueError(f'an int has more than {MAX_BIGINT_DIGITS} hexadecimal digits')
        self.out += bytes((TAG_BIGINT, value < 0))
        write_length(self.out, len(digits))
        self.out += digits

    def string(self, value: str) -> None:
        try:
            tag, data = TAG_LATIN1, value.encode('latin-1')
        except UnicodeEncodeError:
            tag, data = TAG_UTF16, value.encode('utf-16-le', 'surrogatepass')
        if len(data) > MAX_VALUE_BYTE_LENGTH:
            raise ValueError('the value is too large: it may have at most 16 MiB')
        self.out.append(tag)
        write_length(self.out, len(data))
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
                check_collisions_in_node(members)
            self._items(members, depth)
            return
        pairs = tuple(value.items())
        is_object = not isinstance(value, Map) and all(isinstance(key, str) for key, _ in pairs)
        if not is_object:
            self._count_collection()
        out.append(TAG_OBJECT if is_object else TAG_MAP)
        write_length(out, len(pairs))
        if not is_object and len(pairs) > MAX_UNCOUNTED_KEYS:
            check_collisions_in_node([key for key, _ in pairs])
        if is_object and any(type(key) is not str for key, _ in pairs):
            pairs = tuple((str.__str__(key), item) for key, item in pairs)
            if len(dict(pairs)) < len(pairs):
                raise ValueError('a dict has two names that are the same as text: send a cuffi.Map')
        for key, item in pairs:
            if is_object:
                if key == '__proto__':
                    raise ValueError('a name of an object must not be __proto__')
                if utf16_length(key) > MAX_NAME_LENGTH:
                    raise ValueError(f'a name of an object has more than {MAX_NAME_LENGTH} characters: send a Map')
                self.string(key)
            else:
                self.write(key, depth)
            self.write(item, depth)

    def _items(self, items: tuple[Any, ...], depth: int) -> None:
        write_length(self.out, len(items))
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
        kind = (
            ERROR_TYPES.index(name)
            if name in ERROR_TYPES
            else ERROR_TYPES.index('RangeError' if isinstance(error, ValueError) else 'Error')
        )
        code = getattr(error, 'code', None)
        texts = [name, message, stack, code]
        cause = error.__cause__
        bits = sum(bit for bit, text in zip(ERROR_TEXTS, texts) if isinstance(text, str)) | (ERROR_CAUSE if cause else 0)
        self.out += bytes((TAG_ERROR, kind, bits))
        for text in texts:
            if isinstance(text, str):
                self.string(text)
        if kind == AGGREGATE_ERROR:
            # They are an array in the error.
            if depth >= MAX_VALUE_DEPTH:
                raise ValueError(f'the value is nested deeper than {MAX_VALUE_DEPTH}, or contains itself')
            write_length(self.out, len(errors))
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
        kind = UINT8_ARRAY if form in ('B', 'c', '?') else BINARY_OF.get((form, view.itemsize))
        if kind is None:
            raise _not_sent(
                value, f'its items have the format {view.format!r}, which JavaScript does not have: convert them, or send its bytes'
            )
        if view.ndim > 1:
            raise ValueError(
                f'an array of shape {list(view.shape or ())} would arrive without its shape: send array.ravel() and array.shape, '
                'or copy it to the GPU: cuffi.empty(array.shape, array.dtype).copy_from_host(array)'
            )
        self._binaries += 1
        if view.nbytes > MAX_VALUE_BYTE_LENGTH or self._binaries > MAX_VALUE_BINARIES:
            raise ValueError('the value is too large: it may have at most 16 MiB')
        self.out += bytes((TAG_BINARY, kind))
        write_length(self.out, view.nbytes)
        self.out += view.tobytes()


def _not_sent(value: Any, instead: str) -> TypeError:
    return TypeError(f'{type(value).__module__}.{type(value).__name__} cannot be sent: {instead}')


def _milliseconds(moment: datetime.datetime) -> float:
    """Since 1970, as Node counts. Raises ValueError."""
    try:
        aware = moment if moment.tzinfo else moment.astimezone()
        microseconds = (aware - EPOCH) // datetime.timedelta(microseconds=1)
    except (OverflowError, ValueError, OSError):
        raise ValueError(
            f'{moment!r} has no time zone, and cannot be converted from the local one: give it one, as with '
            'moment.replace(tzinfo=datetime.timezone.utc)'
        ) from None
    milliseconds = microseconds / 1000
    # Far from 1970 it may be rounded up, and the last one is in no year of Python.
    return milliseconds if math.floor(milliseconds) == microseconds // 1000 else microseconds // 1000


def encoded(value: Any) -> bytes:
    encoder = Encoder()
    encoder.write(value)
    return bytes(encoder.out)
