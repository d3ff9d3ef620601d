"""What is sent for an object, and what is kept until the other end has released it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _descriptors
from ._described import Described, layout_of
from ._descriptors import Fields
from ._devices import device_at
from ._driver import ATTRIBUTE_BUFFER_ID, ATTRIBUTE_IPC_CAPABLE, ATTRIBUTE_POOL, Handle64, c_u64, call, cuda_driver
from ._dtypes import extents
from ._errors import IpcError, NotSupportedError
from ._event import CudaEvent
from ._files import close_fds
from ._forward import Forward
from ._memory import BorrowedMemory, OwnMemory, ReceivedMemory, address_range, check_within, own_memory, received_at
from ._owner import Closable
from ._process import this_process
from ._protocol import KIND_EVENT, KIND_LEGACY, KIND_POOL

if TYPE_CHECKING:
    from ._connection import Connection
    from ._devices import Device


class Exported:
    """What is sent for one object, and what must be kept until the other end has released it."""

    __slots__ = ('fields', 'fds', 'keep', 'device', 'begin', 'stream', 'owned', 'root', 'restore', 'forward', 'since')

    def __init__(self, fields: bytes, fds: tuple[int, ...], keep: Any, device: Optional[Device], begin: int = 0,
                 owned: Optional[list[int]] = None, root: Any = None) -> None:  # fmt: skip
        """
        :param begin: the address of the first byte of the range; 0 for an event
        """
        self.fields, self.fds, self.keep, self.device, self.begin = fields, fds, keep, device, begin
        # Descriptors for one process only, before the others. They are closed when they were sent.
        self.owned: list[int] = owned or []
        # What `leases.returned` waits for.
        self.root = root
        # Later work of this stream runs behind the other end's.
        self.stream: Optional[int] = None
        # Takes `owned` back if it is not sent, and returns whether it has. Otherwise they are closed.
        self.restore: Optional[Callable[[list[int]], bool]] = None
        # If it is passed on for its owner.
        self.forward: Optional[Forward] = None
        # When it was sent, in seconds since 1970.
        self.since = 0.0

    def undo(self) -> None:
        """It is not sent."""
        owned, self.owned = self.owned, []
        if not (owned and self.restore and self.restore(owned)):
            close_fds(owned)

    def __del__(self) -> None:
        self.undo()


def export(value: Any, peer: Connection) -> Exported:
    if isinstance(value, CudaEvent):
        return _export_event(value, peer)
    if isinstance(value, Closable):
        return value._export()
    described = Described(value)
    low, high = extents(described.shape, described.strides, described.dtype.itemsize)
    if low == high:
        raise ValueError('an array without items has no memory that can be shared')
    begin, length = described.address + low, high - low
    memory = described.memory
    base = size = 0
    if memory is None or isinstance(memory, BorrowedMemory):
        base, size = address_range(begin)
        memory = own_memory.get(base) or received_at(base, begin, length)
    if isinstance(memory, OwnMemory):
        check_within(begin, length, memory.address, memory.byte_length)
        fields = memory.fields(begin - memory.address, length, described.read_only, layout_of(described))
        return Exported(_descriptors.encode_known(**fields), (memory.fd,), (described.owner, memory), memory.device, begin, root=memory)
    if isinstance(memory, ReceivedMemory):
        return _export_received(memory, begin, length, described, peer)
    if size:
        check_within(begin, length, base, size)
    return _export_legacy(described, base, size, begin, length)


def _attribute(attribute: int, address: int) -> int:
    value = c_u64()
    return value.value if cuda_driver().cuPointerGetAttribute(ctypes.byref(value), attribute, address) == 0 else 0


def _export_legacy(described: Described, base: int, size: int, begin: int, length: int) -> Exported:
    if described.read_only:
        raise IpcError('this memory is read-only here, but the driver maps it for writing as well: send a copy',
                       'not-supported')  # fmt: skip
    device = device_at(begin)
    handle = Handle64()
    with device:
        status = cuda_driver().cuIpcGetMemHandle(ctypes.byref(handle), base)
        if status or not _attribute(ATTRIBUTE_IPC_CAPABLE, begin):
            is_pool = _attribute(ATTRIBUTE_POOL, begin) != 0
            what = 'memory of a pool (cudaMallocAsync)' if is_pool else 'memory that is virtual (expandable segments) or managed'
            raise IpcError(
                f'{what} has no handle for other processes: copy it into cuffi.empty(shape, dtype), which every '
                'library takes; or unset expandable_segments in PYTORCH_CUDA_ALLOC_CONF, or use the default '
                'memory pool of cupy, or jax with XLA_PYTHON_CLIENT_ALLOCATOR=platform',
                'not-supported',
            )
        # Tells apart the allocations that had the same address one after the other.
        buffer_id = (_attribute(ATTRIBUTE_BUFFER_ID, begin) * 0x9E3779B97F4A7C15 ^ this_process().secret) & (2**48 - 1)
    fields = _descriptors.encode_known(
        KIND_LEGACY, exporter=this_process().exporter(device), handle=bytes(handle.reserved), base_byte_length=size,
        byte_offset=begin - base, byte_length=length, access=_descriptors.READ_WRITE, buffer_id=buffer_id, generation=0,
        layout=layout_of(described))  # fmt: skip
    return Exported(fields, (), described.owner, device, begin, root=(KIND_LEGACY, base))


def _export_received(memory: ReceivedMemory, begin: int, length: int, described: Described, peer: Connection) -> Exported:
    """Sends memory of another process: back to it, or to a third one, as part of what it has sent."""
    fields = memory.fields
    forward, fds = None, ()
    if memory.connection is not peer and memory.connection.pid != peer.pid:
        if fields.kind == KIND_POOL:
            raise NotSupportedError(
                'Python cannot forward memory of a pool of another process: copy it into cuffi.empty(shape, dtype), '
                'or let its owner send it'
            )
        forward, fds = Forward(memory.connection, memory.lease, peer), tuple(memory.mapping.fds)
    access = _descriptors.READ_ONLY if described.read_only else fields.access
    data = fields.encode_part(byte_offset=begin - memory.mapping.base, byte_length=length, access=access, layout=layout_of(described))
    exported = Exported(data, fds, (described.owner, memory), memory.device, root=memory)
    exported.forward = forward
    return exported


def _export_event(event: CudaEvent, peer: Connection) -> Exported:
    own = event._held()
    if own.received is not None:
        connection, lease, fields = own.received
        exported = Exported(fields, (), own, own.device, root=own)
        if connection is not peer and connection.pid != peer.pid:
            exported.forward = Forward(connection, lease, peer)
        return exported
    handle = Handle64()
    with own.device:
        call('cuIpcGetEventHandle', ctypes.byref(handle), own.value)
    made = Fields(KIND_EVENT, exporter=this_process().exporter(own.device), handle=bytes(handle.reserved))
    return Exported(_descriptors.encode(made), (), own, own.device, root=own)
