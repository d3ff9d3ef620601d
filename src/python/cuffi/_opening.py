"""Opens what has arrived: descriptors become arrays, events, timelines, channels and page-locked memory."""

from __future__ import annotations

import ctypes
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _descriptors
from ._array import ImportedPool, array_of
from ._consumer import ChannelFields
from ._deadlines import Deadline, pauses
from ._descriptors import Fields
from ._devices import stream_handle
from ._driver import Handle64, read_number
from ._errors import ClosedError, IpcError, PeerGoneError
from ._event import CudaEvent
from ._files import close_fds
from ._inbox import NO_ROOM_FOR_FDS
from ._mappings import check_exporter, device_of, opening
from ._memory import BorrowedMemory, ReceivedMemory
from ._pinned import PinnedFields
from ._process import this_process
from ._protocol import KIND_CHANNEL, KIND_EVENT, KIND_PINNED, KIND_SIGNALER, KIND_TIMELINE
from ._signals import signals
from ._timeline import TimelineFields
from ._waits import EventHandle

if TYPE_CHECKING:
    from ._connection import Connection
    from ._inbox import Arrived

# How what no device owns is opened.
HOST_KINDS: dict[int, Callable[[Fields], Any]] = {
    KIND_TIMELINE: TimelineFields,
    KIND_SIGNALER: TimelineFields,
    KIND_PINNED: PinnedFields,
    KIND_CHANNEL: ChannelFields,
}


def open_arrived(arrived: Arrived, stream: Any, deadline: Deadline) -> Any:
    """Returns the value with its GPU objects, when the sender's work on them is done or `stream` waits for it."""
    begin_open(arrived, stream)
    if arrived.points or arrived.events:
        finish_open(arrived, deadline)
    return arrived.take()


def finish_open(arrived: Arrived, deadline: Deadline) -> None:
    """Waits until the sender's work is done. Raises TimeoutError, PeerGoneError."""
    for pause in pauses(lambda: is_ready(arrived), deadline, "the sender's work"):
        time.sleep(pause)
        signals.check()


def is_ready(arrived: Arrived) -> bool:
    """Whether the sender's work is done. Raises PeerGoneError if it never will be."""
    connection = arrived.connection
    if connection.order.is_reached(arrived.points) and all(event.done for event in arrived.events):
        arrived.points = []
        while arrived.events:
            arrived.events.pop().close()
        return True
    if connection.is_gone:
        raise PeerGoneError(f'{connection.name} has ended before its work on the objects that it had sent was done', connection.pid)
    return False


def begin_open(arrived: Arrived, stream: Any) -> None:
    """Opens the objects of a value, once. If `is_ready` is false then, the host must wait."""
    connection = arrived.connection
    if arrived.is_cut:
        connection.inbox.discard(arrived)
        raise IpcError(f'the objects of a value of {connection.name} were refused: {NO_ROOM_FOR_FDS}', 'limit-exceeded')
    if arrived.refusal is not None:
        connection.inbox.discard(arrived)
        why, code = arrived.refusal
        what = 'cannot be one of Python' if code == 'not-supported' else 'is refused'
        raise IpcError(f'a value of {connection.name} {what}: {why}', code)
    if not arrived.objects:
        return
    handle = None if stream is None else stream_handle(stream)
    opened: list[Any] = []
    try:
        for data, fds, lease in arrived.objects:
            opened.append(_open_object(arrived, data, fds, lease, handle))
            if fds:
                close_fds(fds)
        if handle is not None and arrived.points:
            devices = {one._device for one in opened if hasattr(one, '_device')}
            if devices and all(connection.let_wait(device, handle, arrived.points) for device in devices):
                arrived.points = []
    except BaseException:
        arrived.objects = arrived.objects[len(opened) :]
        connection.inbox.discard(arrived)
        for one in opened:
            one.close()
        raise
    arrived.objects = []
    for put, one in zip(arrived.places, opened):
        if put:
            put(one)
        else:
            arrived.value = one
    arrived.places = []


def _open_object(arrived: Arrived, data: bytes, fds: list[int], lease: int, stream: Optional[int]) -> Any:
    connection = arrived.connection
    imports = connection.imports
    if lease in imports.revoked:
        raise ClosedError(f'{connection.name} has revoked what it had sent')
    fields = _descriptors.decode_known(data)
    if fields.kind in HOST_KINDS:
        return HOST_KINDS[fields.kind](fields).open(connection, fds, lease)
    if this_process().has_made(fields):
        return _open_own(connection, fields, lease)
    if fields.kind == KIND_EVENT:
        return _open_event(fields, connection, (connection, lease, data))
    device = device_of(fields)
    if fields.ready_event:
        event = _open_event(fields.ready_event, connection)
        if stream is None:
            arrived.events.append(event)
        else:
            event.wait(stream)
    mapping = imports.map(fields, device, fds)
    if mapping is None:
        imports.release(lease)
        return ImportedPool(fields.exporter.device)
    end = fields.byte_offset + fields.byte_length
    if end > mapping.byte_length:
        mapping.release()
        raise IpcError(f'a range ends at byte {end} of memory that has {mapping.byte_length}', 'invalid-descriptor')
    memory = ReceivedMemory(connection, lease, fields, mapping)
    imports.leases[lease] = weakref.ref(memory)
    if lease in imports.revoked:
        memory.revoked_by = connection.name
    read_only = fields.read_only or mapping.is_read_only
    return array_of(memory, memory.address, fields.layout, fields.byte_length, read_only, stream)


def _open_own(connection: Connection, fields: Fields, lease: int) -> Any:
    """Returns what was sent to the other end and came back."""
    for exported in list(connection.exports.leases.values()):
        known = _descriptors.decode_known(exported.fields)
        if known.kind in HOST_KINDS:
            continue
        if KIND_EVENT in (known.kind, fields.kind):
            if known.kind == fields.kind and known.handle == fields.handle:
                connection.imports.release(lease)
                return CudaEvent._of(exported.keep)
            continue
        inside = known.byte_offset <= fields.byte_offset and (
            fields.byte_offset + fields.byte_length <= known.byte_offset + known.byte_length
        )
        if known.allocation != fields.allocation or not inside or exported.device is None:
            continue
        address = exported.begin + fields.byte_offset - known.byte_offset
        memory = BorrowedMemory(exported.device, address, fields.byte_length, exported.keep)
        connection.imports.release(lease)
        return array_of(memory, address, fields.layout, fields.byte_length, fields.read_only, None)
    raise IpcError(f'{connection.name} sent a descriptor of memory of this very process that it does not hold', 'same-process')


def _open_event(fields: Fields, connection: Connection, received: Optional[tuple[Connection, int, bytes]] = None) -> CudaEvent:
    assert fields.handle is not None, 'an event has one'
    device = device_of(fields)
    check_exporter(fields, connection.allow_other_users)
    handle = Handle64((ctypes.c_ubyte * 64)(*fields.handle))
    with device, opening(fields.exporter):
        return CudaEvent._of(EventHandle(device, read_number('cuIpcOpenEventHandle', handle), received))
