"""What this process has sent, which is kept for its receivers."""

from __future__ import annotations

from typing import Any, Optional

from ._array import DeviceArray
from ._connection import connections
from ._deadlines import await_until, wait_until
from ._described import Described, is_on_gpu
from ._dtypes import extents
from ._event import CudaEvent
from ._memory import OwnMemory, ReceivedMemory, address_range, own_memory, received_at
from ._owner import Closable
from ._protocol import KIND_LEGACY


class leases:
    """What this process has sent, which is kept alive for its receivers."""

    @staticmethod
    def returned(thing: Any, *, timeout: Optional[float] = None) -> None:
        """Waits until every process that got an object has closed it, or has ended, and its work on it is done.

        The object itself may stay open: its memory can then be written again. A part of an allocation stands for
        the whole of it. Returns at once if nobody has it. Raises TimeoutError; TypeError for what cannot be sent.
        """
        root = _root_of(thing)
        wait_until(lambda: not _is_lent(root), timeout, 'what other processes have')

    @staticmethod
    async def areturned(thing: Any, *, timeout: Optional[float] = None) -> None:
        """As `returned`."""
        root = _root_of(thing)
        await await_until(lambda: not _is_lent(root), timeout, 'what other processes have')


def _root_of(thing: Any) -> Any:
    """What an object is a part of, as its exports name it."""
    if isinstance(thing, (CudaEvent, Closable)):
        return thing._held()
    if not isinstance(thing, DeviceArray) and not is_on_gpu(thing):
        raise TypeError(f'returned takes what a connection can send, not {type(thing).__name__}')
    described = Described(thing)
    if isinstance(described.memory, (OwnMemory, ReceivedMemory)):
        return described.memory
    low, high = extents(described.shape, described.strides, described.dtype.itemsize)
    begin = described.address + low
    base, _ = address_range(begin)
    return own_memory.get(base) or received_at(base, begin, high - low) or (KIND_LEGACY, base)


def _is_lent(root: Any) -> bool:
    for connection in list(connections):
        if any(exported.root is root or exported.root == root for exported in connection.exports.kept()):
            return True
    return False
