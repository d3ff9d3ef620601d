"""Reads values."""

from __future__ import annotations

import array as _array
import datetime
import math
import struct
from typing import TYPE_CHECKING, Any, Optional

from ._bytes import SAFE, limit_exceeded, unpack_int
from ._errors import IpcError, RemoteError
from ._hashes import HashTable
from ._protocol import (
    ERROR_CAUSE,
    ERROR_TYPES,
    MAX_BIGINT_DIGITS,
    MAX_NAME_LENGTH,
    MAX_UNCOUNTED_KEYS,
    MAX_VALUE_BINARIES,
    MAX_VALUE_COLLECTIONS,
    MAX_VALUE_DEPTH,
    MAX_VALUE_OBJECTS,
    MAX_VALUE_PARTS,
    TAG_ARRAY,
    TAG_BIGINT,
    TAG_BIGINT64,
    TAG_BINARY,
    TAG_DATE,
    TAG_ERROR,
    TAG_FLOAT64,
    TAG_GPU_OBJECT,
    TAG_HOLE,
    TAG_INT32,
    TAG_LATIN1,
    TAG_MAP,
    TAG_OBJECT,
    TAG_SET,
    TAG_UTF16,
)
from ._values import AGGREGATE_ERROR, BINARIES, CONSTANTS, EPOCH, ERROR_TEXTS, BigInt, Map, utf16_length

if TYPE_CHECKING:
    from ._bytes import Reader
    from ._values import Put

_COLLIDING = ('a Map or Set has too many keys or members with the same hash in Python', 'limit-exceeded')
# What is the same as a key of a Map in Node if it is equal and of one type here.
_COMPARED = (str, int, float, bool, BigInt)


def _unusable(why: str) -> tuple[str, str]:
    """Why Python cannot hold a value that may be sent."""
    return why, 'not-supported'


class Decoder:
    """Reads a value. The places of GPU objects are collected in `places`: functions that put them there."""

    def __init__(self, reader: Reader) -> None:
        self._from = reader
        self.places: list[Optional[Put]] = []
        self._parts = self._binaries = self._collections = 0
        # Why the value cannot be taken, although its end is found: a reason, and the code of its error.
        self.refusal: Optional[tuple[str, str]] = None

    def read(self, put: Optional[Put], depth: int = 0) -> Any:
        """Returns a value; for a GPU object None, and `put` will be called with it."""
        reader = self._from
        self._parts += 1
        if self._parts > MAX_VALUE_PARTS:
            raise _too_many_parts()
        tag = reader.byte()
        if tag in CONSTANTS:
            return CONSTANTS[tag]
        if tag == TAG_INT32:
            return unpack_int(reader.data, reader.skip(4))[0]
        if tag == TAG_FLOAT64:
            value = reader.double()
            # JavaScript has no integers besides numbers.
            is_int = value.is_integer() and abs(value) <= SAFE and (value != 0 or math.copysign(1, value) > 0)
            return int(value) if is_int else value
        if tag in (TAG_LATIN1, TAG_UTF16):
            reader.at -= 1
            return reader.string()
        if tag == TAG_BIGINT64:
            return BigInt(struct.unpack_from('<q', reader.data, reader.skip(8))[0])
        if tag == TAG_GPU_OBJECT:
            self.places.append(put)
            if len(self.places) > MAX_VALUE_OBJECTS:
                raise limit_exceeded(f'a value has more than {MAX_VALUE_OBJECTS} GPU objects')
            return None
        if tag == TAG_BIGINT:
            return self._read_bigint()
        if tag == TAG_BINARY:
            return self._read_binary()
        if tag == TAG_DATE:
            return self._read_date()
        return self._read_container(tag, self._deeper(depth))

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_VALUE_DEPTH:
            raise limit_exceeded(f'a value is nested deeper than {MAX_VALUE_DEPTH}')
        return depth + 1

    def _read_bigint(self) -> BigInt:
        reader = self._from
        is_negative, count = reader.flag(), reader.length()
        if count > MAX_BIGINT_DIGITS:
            raise limit_exceeded(f'a bigint has {count} hexadecimal digits')
        digits = reader.take(count)
        if not digits or digits.strip(b'0123456789abcdef'):
            raise IpcError('a bigint has characters other than hexadecimal digits')
        return BigInt(-int(digits, 16) if is_negative else int(digits, 16))

    def _read_container(self, tag: int, depth: int) -> Any:
        reader = self._from
        if tag == TAG_ARRAY:
            items: list[Any] = []
            for at in range(reader.length()):
                items.append(None)
                # An item that is missing.
                if reader.at < reader.end and reader.data[reader.at] == TAG_HOLE:
                    reader.at += 1
                    self._parts += 1
                    if self._parts > MAX_VALUE_PARTS:
                        raise _too_many_parts()
                else:
                    items[at] = self.read(_Item(items, at), depth)
            return items
        if tag == TAG_OBJECT:
            return self._read_object(depth)
        if tag not in (TAG_MAP, TAG_SET, TAG_ERROR):
            raise IpcError('a hole is outside an array' if tag == TAG_HOLE else f'unknown value tag {tag}')
        self._collections += 1
        if self._collections > MAX_VALUE_COLLECTIONS:
            raise limit_exceeded(f'a value has more than {MAX_VALUE_COLLECTIONS} Maps, Sets and errors')
        if tag == TAG_MAP:
            return self._read_map(depth)
        return self._read_set(depth) if tag == TAG_SET else self._read_error(depth)

    def _read_object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self._from.length(3)):
            name = self._from.string()
            if len(name) > MAX_NAME_LENGTH // 2 and utf16_length(name) > MAX_NAME_LENGTH:
                raise limit_exceeded(f'a name of an object has more than {MAX_NAME_LENGTH} characters')
            if name == '__proto__':
                raise IpcError('the name __proto__ of an object is not allowed')
            if name in found:
                # As a key that comes twice: it concerns the caller that takes the value, not the connection.
                self.refusal = self.refusal or (f'an object has the name {name[:80]!r} twice', 'ipc-failed')
            found[name] = None
            found[name] = self.read(_Item(found, name), depth)
        return found

    def _read_map(self, depth: int) -> Map:
        found = Map()
        count = self._from.length(2)
        nulls: set[bytes] = set()
        table = HashTable(False) if count > MAX_UNCOUNTED_KEYS else None
        for _ in range(count):
            places, tag = len(self.places), self._from.data[self._from.at : self._from.at + 1]
            key = self._hashable(self.read(lambda _: None, depth))
            if key is None:
                nulls.add(tag)
            if table and not table.add(key):
                # What follows is still read, and checked.
                table, found, self.refusal = None, Map(), _COLLIDING
            if self.refusal is _COLLIDING:
                self.read(None, depth)
                continue
            if len(self.places) > places:
                self.refusal = _unusable('a GPU object is in the key of a Map')
            elif key in found:
                self.refusal = self._repeated(key, found, nulls, f'a Map has the key {str(key)[:80]!r} twice')
            found[key] = None
            found[key] = self.read(_Item(found, key), depth)
        return found

    def _read_set(self, depth: int) -> set[Any]:
        found: set[Any] = set()
        count = self._from.length()
        nulls: set[bytes] = set()
        table = HashTable(True) if count > MAX_UNCOUNTED_KEYS else None
        for _ in range(count):
            places, tag = len(self.places), self._from.data[self._from.at : self._from.at + 1]
            member = self._hashable(self.read(found.add, depth))
            if member is None:
                nulls.add(tag)
            if table and not table.add(member):
                table, self.refusal = None, _COLLIDING
            if self.refusal is _COLLIDING:
                continue
            if len(self.places) == places:
                if member in found:
                    self.refusal = self._repeated(member, found, nulls, f'a Set has the member {str(member)[:80]!r} twice')
                found.add(member)
            elif member is not None:
                self.refusal = _unusable('a GPU object is within a member of a Set')
        return found

    def _repeated(self, key: Any, found: Any, tags: set[bytes], why: str) -> tuple[str, str]:
        """Says why a key is refused: it came before, or Python takes it for another one that did."""
        known = next(each for each in found if each == key)
        # What Node compares by its identity is never the same. None stands for undefined and for null.
        is_same = len(tags) == 1 if key is None else type(known) is type(key) and type(key) in _COMPARED
        return (why, 'ipc-failed') if is_same else _unusable(f'{why}, as Python compares them')

    def _hashable(self, key: Any) -> Any:
        items: Any = key
        if isinstance(key, list):
            return tuple(self._hashable(item) for item in items)
        if isinstance(key, (dict, set, _array.array)):
            self.refusal = _unusable('a Map has a key, or a Set a member, that Python cannot hash')
            return None
        return key

    def _read_binary(self) -> Any:
        reader = self._from
        kind, length = reader.byte(), reader.length()
        self._binaries += 1
        if self._binaries > MAX_VALUE_BINARIES:
            raise limit_exceeded(f'a value has more than {MAX_VALUE_BINARIES} parts of binary data')
        if kind >= len(BINARIES) or length % BINARIES[kind][1]:
            raise IpcError(f'binary data of type {kind} cannot have {length} bytes')
        data, form = reader.take(length), BINARIES[kind][0]
        return data if form is None else _array.array(form, data)

    def _read_date(self) -> datetime.datetime:
        milliseconds = self._from.double()
        try:
            return EPOCH + datetime.timedelta(milliseconds=milliseconds)
        except (OverflowError, ValueError):
            self.refusal = _unusable('a date is invalid, or before the year 1 or after 9999')
            return EPOCH

    def _read_error(self, depth: int) -> RemoteError:
        reader = self._from
        kind, bits = reader.byte(), reader.byte()
        if kind >= len(ERROR_TYPES) or bits >= 2 * ERROR_CAUSE:
            raise IpcError('an error has an unknown type or unknown fields')
        texts = [reader.string() if bits & bit else None for bit in ERROR_TEXTS]
        name, message, stack, code = texts
        error = RemoteError(message or '', name or ERROR_TYPES[kind], code or 'remote-error', stack)
        if kind == AGGREGATE_ERROR:
            # They are an array in the error.
            error.errors = self._read_container(TAG_ARRAY, self._deeper(depth))
        if bits & ERROR_CAUSE:
            cause = self.read(lambda _: None, depth)
            # Anything may be thrown in JavaScript.
            error.__cause__ = cause if isinstance(cause, BaseException) else RemoteError(repr(cause))
        return error


def _too_many_parts() -> IpcError:
    return limit_exceeded(f'a value has more than {MAX_VALUE_PARTS} parts')


class _Item:
    """Puts an object into its container, when it is opened."""

    __slots__ = ('_container', '_key')

    def __init__(self, container: Any, key: Any) -> None:
        self._container, self._key = container, key

    def __call__(self, item: Any) -> None:
        self._container[self._key] = item
