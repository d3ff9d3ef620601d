"""Descriptors: the fields of GPU objects as bytes, read and written by loops over the lists of fields in `_protocol`.

What is refused here, src/ipc/descriptor-codec.ts and src/ipc/descriptor.ts of cuffi refuse in the same words.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Callable, NamedTuple, Optional, Union

from ._bytes import Reader
from ._dtypes import check_shape, checked_extents, received_dtype
from ._errors import IpcError
from ._protocol import (
    ACCESS,
    DEVICE_PREFIXES,
    EXPORTER_FIELDS,
    HANDLE_BYTE_LENGTH,
    ID_BYTE_LENGTH,
    KIND_CHANNEL,
    KIND_EVENT,
    KIND_LEGACY,
    KIND_POOL,
    KIND_VIRTUAL,
    KINDS,
    MAX_AXES,
    MAX_OBJECT_BYTE_LENGTH,
    MAX_SLOTS,
    NUMBERS,
    PACKET_FDS,
)

MEMORY_KINDS = (KIND_LEGACY, KIND_POOL, KIND_VIRTUAL)


class Exporter(NamedTuple):
    """The process that made a descriptor, and its GPU."""

    # The number of the prefix of its UUID, then the UUID.
    device: bytes
    machine: bytes
    pid: int
    start_time: int
    pid_namespace: int


class Layout(NamedTuple):
    """The layout of an array whose items begin with the first byte of its range. Strides are in bytes."""

    dtype: str
    shape: Sequence[int]
    strides: Sequence[int]


class Fields:
    """The fields of one object, by the names of `_protocol.KINDS` in Python's spelling. Absent ones are None."""

    kind: int
    exporter: Exporter
    handle: Optional[bytes] = None
    pool: Optional[bytes] = None
    # The name of virtual memory; of a channel the fields of its slots.
    memory: Any = None
    first_piece: int
    pieces: tuple[int, ...]
    base_byte_length: int
    byte_offset: int
    byte_length: int
    access: str
    buffer_id: int
    generation: int
    layout: Optional[Layout] = None
    ready_event: Optional[Fields] = None
    last: int
    slots: int
    stride: int
    flags: int

    def __init__(self, kind: int, **fields: Any) -> None:
        self.__dict__ = fields
        fields['kind'] = kind

    @property
    def read_only(self) -> bool:
        return self.access == READ_ONLY

    @property
    def allocation(self) -> tuple[Any, ...]:
        """What names the allocation: the same for all ranges of it."""
        return self.kind, self.exporter, self.handle, self.pool, self.memory, self.buffer_id, self.generation

    def encode_part(self, **changes: Any) -> bytes:
        """The bytes of another range of the same allocation, which is ready."""
        return encode_known(**{**self.__dict__, 'ready_event': None, **changes})


READ_WRITE, READ_ONLY = ACCESS


class _InvalidField(Exception):
    """A field that is not valid, in words that begin with its name."""


# ---- The types of fields ----

# Returns the value of what `struct` has unpacked, or raises _InvalidField with the name of the field.
_Check = Callable[[Any, str], Any]


class _Fixed:
    """A type of field that always takes the same number of bytes, as `struct` packs it."""

    def __init__(self, form: str, decode: Optional[_Check] = None, encode: Optional[Callable[[Any], Any]] = None) -> None:
        self.form, self.decode, self.encode, self._struct = form, decode, encode, struct.Struct('<' + form)

    def read(self, reader: Reader, name: str) -> Any:
        value = self._struct.unpack_from(reader.data, reader.skip(self._struct.size))[0]
        return self.decode(value, name) if self.decode else value


class _Varying:
    """A type of field that tells its own length."""

    def __init__(self, read: Callable[[Reader, str], Any], write: Callable[[bytearray, Any], None]) -> None:
        self.read, self.write = read, write


def _number(type_name: str) -> _Fixed:
    byte_length, least, most = NUMBERS[type_name]

    def check(value: int, name: str) -> int:
        if least <= value <= most:
            return value
        raise _InvalidField(f'{name} must be an integer from {least} to {most}, not {value}')

    return _Fixed('I' if byte_length == 4 else 'q', check)


def _check_below(value: int, limit: int, name: str) -> int:
    if value >= limit:
        raise _InvalidField(f'{name}: {value} is not below {limit}')
    return value


def _check_device(value: bytes, name: str) -> bytes:
    _check_below(value[0], len(DEVICE_PREFIXES), name)
    return value


def _read_count(most: int, reader: Reader, name: str) -> int:
    count = reader.byte()
    if count > most:
        raise _InvalidField(f'{name}: {count} is above {most}')
    return count


def _read_numbers(count: int, type_name: str, reader: Reader, name: str) -> tuple[int, ...]:
    read = _TYPES[type_name].read
    return tuple([read(reader, name) for _ in range(count)])


def _read_handle(reader: Reader, name: str) -> Optional[bytes]:
    return reader.take(HANDLE_BYTE_LENGTH) if _read_count(1, reader, name) else None


def _write_handle(out: bytearray, value: Optional[bytes]) -> None:
    out.append(value is not None)
    out += value or b''


_DTYPE_NAME = re.compile('V[0-9]{1,10}|[a-z0-9_]{1,16}', re.ASCII)


def _read_layout(reader: Reader, name: str) -> Optional[Layout]:
    length = reader.byte()
    if length == 0:
        return None
    dtype = reader.take(length).decode('latin-1')
    if not _DTYPE_NAME.fullmatch(dtype):
        raise _InvalidField(f'{name}: that is not the name of a dtype')
    ndim = _read_count(MAX_AXES, reader, name)
    return Layout(dtype, _read_numbers(ndim, 'size', reader, name), _read_numbers(ndim, 'stride', reader, name))


def _write_layout(out: bytearray, value: Optional[Layout]) -> None:
    if value is None:
        out.append(0)
        return
    dtype, shape, strides = value
    name, ndim = dtype.encode('latin-1'), len(shape)
    out += struct.pack(f'<B{len(name)}sB{2 * ndim}q', len(name), name, ndim, *shape, *strides)


def _read_pieces(reader: Reader, name: str) -> tuple[int, ...]:
    count = _read_count(PACKET_FDS, reader, name)
    if count == 0:
        raise _InvalidField(f'{name}: the list is empty')
    return _read_numbers(count, 'positive', reader, name)


def _write_pieces(out: bytearray, value: Sequence[int]) -> None:
    out += struct.pack(f'<B{len(value)}q', len(value), *value)


def _read_event(reader: Reader, name: str) -> Optional[Fields]:
    return _read_kind(KIND_EVENT, reader) if _read_count(1, reader, name) else None


def _write_event(out: bytearray, value: Optional[Fields]) -> None:
    out.append(value is not None)
    if value:
        _write_kind(out, value)


_TYPES: dict[str, Union[_Fixed, _Varying]] = {
    **{name: _number(name) for name in NUMBERS},
    'access': _Fixed('B', lambda value, name: ACCESS[_check_below(value, len(ACCESS), name)], ACCESS.index),
    'device': _Fixed(f'{1 + ID_BYTE_LENGTH}s', _check_device),
    'event?': _Varying(_read_event, _write_event),
    'handle': _Fixed(f'{HANDLE_BYTE_LENGTH}s'),
    'handle?': _Varying(_read_handle, _write_handle),
    'id': _Fixed(f'{ID_BYTE_LENGTH}s'),
    'layout?': _Varying(_read_layout, _write_layout),
    'pieces': _Varying(_read_pieces, _write_pieces),
    'uuid': _Fixed(f'{ID_BYTE_LENGTH}s'),
    'virtual': _Varying(lambda reader, _: _read_kind(KIND_VIRTUAL, reader), lambda out, value: _write_kind(out, value)),
}


# ---- Lists of fields ----


class _Run:
    """Consecutive fields of fixed sizes, which `struct` reads and writes at once."""

    def __init__(self, fields: Sequence[tuple[str, str, _Fixed]]) -> None:
        self._fields = fields
        self._struct = struct.Struct('<' + ''.join(each.form for _, _, each in fields))
        self.byte_length = self._struct.size
        self._attributes = [attribute for attribute, _, _ in fields]
        self._decodes = [(at, each.decode, name) for at, (_, name, each) in enumerate(fields) if each.decode]
        self._encodes = [(at, each.encode) for at, (_, _, each) in enumerate(fields) if each.encode]
        get = attrgetter(*self._attributes)
        self._get: Callable[[Any], Sequence[Any]] = get if len(fields) > 1 else lambda of: (get(of),)

    def read(self, reader: Reader, into: dict[str, Any]) -> None:
        if self.byte_length > reader.end - reader.at:
            # It ends in the middle, unless a field before that is invalid.
            for attribute, name, each in self._fields:
                into[attribute] = each.read(reader, name)
        values = list(self._struct.unpack_from(reader.data, reader.skip(self.byte_length)))
        for at, decode, name in self._decodes:
            values[at] = decode(values[at], name)
        into.update(zip(self._attributes, values))

    def write(self, out: bytearray, of: Any) -> None:
        values = self._get(of)
        if self._encodes:
            values = list(values)
            for at, encode in self._encodes:
                values[at] = encode(values[at])
        out += self._struct.pack(*values)


class _One:
    """A field that tells its own length."""

    def __init__(self, attribute: str, name: str, of_type: _Varying) -> None:
        self._attribute, self._name, self._type = attribute, name, of_type

    def read(self, reader: Reader, into: dict[str, Any]) -> None:
        into[self._attribute] = self._type.read(reader, self._name)

    def write(self, out: bytearray, of: Any) -> None:
        self._type.write(out, getattr(of, self._attribute))


def _in_python(name: str) -> str:
    return re.sub('[A-Z]', lambda found: '_' + found[0].lower(), name)


def _fixed(type_name: str) -> _Fixed:
    of_type = _TYPES[type_name]
    assert isinstance(of_type, _Fixed)
    return of_type


def _parts(fields: Sequence[tuple[str, str]]) -> list[Union[_Run, _One]]:
    """A list of fields with their types, looked up once."""
    parts: list[Union[_Run, _One]] = []
    run: list[tuple[str, str, _Fixed]] = []
    for name, type_name in fields:
        of_type = _TYPES[type_name]
        if isinstance(of_type, _Fixed):
            run.append((_in_python(name), name, of_type))
            continue
        if run:
            parts.append(_Run(run))
            run = []
        parts.append(_One(_in_python(name), name, of_type))
    return [*parts, _Run(run)] if run else parts


# All of them have fixed sizes.
_EXPORTER = _Run([(_in_python(name), name, _fixed(type_name)) for name, type_name in EXPORTER_FIELDS])
_PARTS = [(has_exporter, _parts(fields)) for _, has_exporter, fields in KINDS]
assert Exporter._fields == tuple(_in_python(name) for name, _ in EXPORTER_FIELDS)


# Consecutive descriptors usually come from the same process: the bytes of the last one, and what they mean.
_last_exporter: tuple[bytes, Optional[Exporter]] = b'', None


def _read_exporter(reader: Reader) -> Exporter:
    global _last_exporter
    begin = reader.at
    data, (known, exporter) = reader.data[begin : begin + _EXPORTER.byte_length], _last_exporter
    if data == known and exporter:
        reader.at += len(data)
        return exporter
    fields: dict[str, Any] = {}
    _EXPORTER.read(reader, fields)
    exporter = Exporter(**fields)
    _last_exporter = data, exporter
    return exporter


def _read_kind(kind: int, reader: Reader) -> Fields:
    has_exporter, parts = _PARTS[kind]
    fields: dict[str, Any] = {}
    if has_exporter:
        fields['exporter'] = _read_exporter(reader)
    for part in parts:
        part.read(reader, fields)
    return Fields(kind, **fields)


def _write_kind(out: bytearray, fields: Fields) -> None:
    has_exporter, parts = _PARTS[fields.kind]
    if has_exporter:
        _EXPORTER.write(out, fields.exporter)
    for part in parts:
        part.write(out, fields)


# ---- Bytes ----


def encode(fields: Fields) -> bytes:
    """Encodes fields that are known to be valid."""
    out = bytearray((fields.kind,))
    _write_kind(out, fields)
    return bytes(out)


@functools.lru_cache(maxsize=1024)
def encode_known(kind: int, **fields: Any) -> bytes:
    """As `encode` of `Fields(kind, **fields)`, faster for what was encoded before: the same memory is sent again and again."""
    return encode(Fields(kind, **fields))


def decode(data: bytes) -> Fields:
    """Decodes what `encode` returned. Raises IpcError for any other bytes, and for fields that are inconsistent."""
    if len(data) > MAX_OBJECT_BYTE_LENGTH:
        raise _malformed(f'{len(data)} bytes are too many: at most {MAX_OBJECT_BYTE_LENGTH} are allowed')
    reader = Reader(data)
    try:
        fields = _read_kind(_check_below(reader.byte(), len(KINDS), 'kind'), reader)
    except (_InvalidField, IpcError) as error:
        raise _malformed(str(error)) from None
    if reader.at != reader.end:
        raise _malformed(f'{reader.end - reader.at} bytes follow its end')
    if fields.kind in MEMORY_KINDS:
        _check_consistency(fields)
    elif fields.kind == KIND_CHANNEL:
        _check_consistency(fields.memory)
        _check_channel(fields)
    return fields


@functools.lru_cache(maxsize=1024)
def decode_known(data: bytes) -> Fields:
    """As `decode`, faster for what was decoded before. Do not change what it returns."""
    return decode(data)


def pool_of(data: bytes) -> bytes:
    """The name of the pool that encoded fields are of, which need not be valid; empty for other kinds."""
    return data[1 + _EXPORTER.byte_length :][:ID_BYTE_LENGTH] if data[:1] == bytes((KIND_POOL,)) else b''


# ---- What the fields must be together ----


def _check_consistency(fields: Fields) -> None:
    """Raises IpcError for fields of memory that are valid one by one but inconsistent."""
    if fields.kind == KIND_POOL:
        if fields.handle is None:
            is_consistent = fields.base_byte_length == 0 and fields.layout is None and fields.ready_event is None
        else:
            is_consistent = fields.byte_length > 0
        if not is_consistent:
            raise _inconsistent(fields, 'the pool itself has size 0, and memory of the pool has a size above 0')
    if fields.kind == KIND_VIRTUAL and sum(fields.pieces) != fields.base_byte_length:
        raise _inconsistent(fields, 'the pieces must add up to baseByteLength')
    end = fields.byte_offset + fields.byte_length
    if end > fields.base_byte_length:
        raise IpcError(f'the descriptor names bytes {fields.byte_offset} to {end} of an allocation of process '
                       f'{fields.exporter.pid} that has {fields.base_byte_length}', 'invalid-descriptor')  # fmt: skip
    if fields.layout:
        try:
            _check_items(fields.layout, fields.byte_length)
        except (TypeError, ValueError) as error:
            raise IpcError(f'the array descriptor of process {fields.exporter.pid} is invalid: {error}', 'invalid-descriptor') from None


def _check_channel(fields: Fields) -> None:
    """Raises IpcError for slots beyond the memory, or messages beyond their slots."""
    layout, memory = fields.layout, fields.memory
    try:
        if fields.slots > MAX_SLOTS:
            raise ValueError(f'it has {fields.slots} slots: at most {MAX_SLOTS} are allowed')
        is_inside = fields.slots * fields.stride <= memory.byte_length and fields.byte_length <= fields.stride
        if not is_inside or memory.byte_offset > 0:
            raise ValueError('its slots lie outside of its memory')
        if layout is None:
            raise ValueError('it has no layout')
        itemsize = received_dtype(layout.dtype).itemsize
        checked_extents(layout.shape, layout.strides, itemsize)
        needed = math.prod(check_shape(layout.shape)) * itemsize
        if needed > fields.byte_length:
            raise ValueError(f'an array of {needed} bytes does not fit into a slot of {fields.byte_length}')
    except (TypeError, ValueError) as error:
        raise IpcError(f'the channel of process {memory.exporter.pid} is invalid: {error}', 'invalid-descriptor') from None


def _check_items(layout: Layout, byte_length: int) -> None:
    low, high = checked_extents(layout.shape, layout.strides, received_dtype(layout.dtype).itemsize)
    if 0 in layout.shape:
        raise ValueError('it has no items')
    if high - low > byte_length:
        raise ValueError(f'its items take {high - low} bytes of a range that has {byte_length}')


def _malformed(why: str) -> IpcError:
    return IpcError(f'these bytes are not a cuffi descriptor: {why}', 'invalid-descriptor')


def _inconsistent(fields: Fields, why: str) -> IpcError:
    return IpcError(f'this is not a cuffi descriptor of kind {KINDS[fields.kind][0]}:\n{why}', 'invalid-descriptor')
