"""What this process has sent, which is kept for its receivers."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ._array import DeviceArray
from ._connection import Connection, connections
from ._deadlines import await_until, wait_until
from ._described import Described, is_on_gpu
from ._descriptors import MEMORY_KINDS, decode_known
from ._dtypes import extents
from ._event import CudaEvent, is_event_open
from ._export import Exported
from ._memory import OwnMemory, ReceivedMemory, address_range, own_memory, received_at
from ._owner import Closable
from ._protocol import KIND_EVENT, KIND_LEGACY, KIND_PINNED, KIND_SIGNALER, KIND_TIMELINE, KINDS
from ._waits import EventHandle


class LeaseStats(NamedTuple):
    """What one process holds of this one."""

    # The process that holds it; 0 for one of another pid namespace, and for one that it was forwarded to.
    pid: int
    # memory, event, timeline, pinned or channel.
    kind: str
    # The size of the memory that is kept alive: the whole allocation, whatever part was sent.
    byte_length: int
    since: datetime.datetime
    # Whether it is closed here and kept alive only for that process. False for memory of other libraries, whose end
    # nothing tells, and for what is of another process and was sent back to it.
    orphaned: bool


class OrphanedStats(NamedTuple):
    """What is closed here but kept alive for other processes. Each object counts once."""

    # As in Node. It hides the method of tuples.
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    byte_length: int


class LeasesStats(NamedTuple):
    """The result of `leases.stats()`."""

    # The size of everything that other processes hold. Each object counts once.
    byte_length: int
    orphaned: OrphanedStats
    leases: tuple[LeaseStats, ...]


class leases:
    """What this process has sent, which is kept alive for its receivers."""

    @staticmethod
    def stats() -> LeasesStats:
        """Returns who holds what, and how much memory is closed here but kept for others. Does not wait."""
        leased = list(_all_leases())
        return LeasesStats(
            _distinct_bytes(leased),
            OrphanedStats(len(_distinct(_orphaned(leased))), _distinct_bytes(_orphaned(leased))),
            tuple(each.stats for each in leased))  # fmt: skip

    @staticmethod
    def drain(*, timeout: Optional[float] = None) -> None:
        """Waits until no closed object is kept alive for other processes.

        Raises TimeoutError, which says who holds what.
        """
        wait_until(_is_drained, timeout, _describe_orphaned)

    @staticmethod
    async def adrain(*, timeout: Optional[float] = None) -> None:
        """As `drain`."""
        await await_until(_is_drained, timeout, _describe_orphaned)

    @staticmethod
    def returned(thing: Any, *, timeout: Optional[float] = None) -> None:
        """Waits until every process that got an object has closed it, or has ended, and its work on it is done.

        The object itself may stay open: its memory can then be written again. A part of an allocation stands for
        the whole of it. Returns at once if nobody has it. Raises TimeoutError; TypeError for what cannot be sent.
        """
        root = _root_of(thing)
        wait_until(lambda: not _is_lent(root), timeout, 'other processes to return an object')

    @staticmethod
    async def areturned(thing: Any, *, timeout: Optional[float] = None) -> None:
        """As `returned`."""
        root = _root_of(thing)
        await await_until(lambda: not _is_lent(root), timeout, 'other processes to return an object')


def _root_of(thing: Any) -> Any:
    """What an object is a part of, as its exports name it."""
    if isinstance(thing, (CudaEvent, Closable)):
        return thing._held()
    if not isinstance(thing, DeviceArray) and not is_on_gpu(thing):
        raise TypeError(f'returned takes an object that can be sent, not {type(thing).__name__}')
    described = Described(thing)
    if isinstance(described.memory, (OwnMemory, ReceivedMemory)):
        return described.memory
    low, high = extents(described.shape, described.strides, described.dtype.itemsize)
    begin = described.address + low
    base, _ = address_range(begin)
    return own_memory.get(base) or received_at(base, begin, high - low) or (KIND_LEGACY, base)


def _exported() -> Iterator[tuple[Connection, Exported, bool]]:
    """Everything that is lent, and whether the receiver has forwarded it."""
    for connection in list(connections):
        for exported in list(connection.exports.leases.values()):
            yield connection, exported, False
        for _, exported in list(connection.exports.forwarded.values()):
            yield connection, exported, True


def _is_lent(root: Any) -> bool:
    return any(exported.root is root or exported.root == root for _, exported, _ in _exported())


# ---- Statistics ----


class _Lease:
    """One object that one process holds."""

    def __init__(self, connection: Connection, exported: Exported, is_forwarded: bool) -> None:
        kind, root = exported.fields[0], exported.root
        # Only what names it, as two exports of one allocation of another library do.
        self.key: Any = id(exported) if root is None else root if kind == KIND_LEGACY and isinstance(root, tuple) else id(root)
        self.holder = 'a process that it was forwarded to' if is_forwarded else connection.name
        self.stats = LeaseStats(
            0 if is_forwarded else connection.pid, _KIND_NAMES[kind], _byte_length(kind, exported),
            datetime.datetime.fromtimestamp(exported.since, datetime.timezone.utc), not _is_open_here(root))  # fmt: skip


_KIND_NAMES = ['memory' if kind in MEMORY_KINDS else 'timeline' if kind == KIND_SIGNALER else name for kind, (name, *_) in enumerate(KINDS)]


def _all_leases() -> Iterator[_Lease]:
    for connection, exported, is_forwarded in _exported():
        yield _Lease(connection, exported, is_forwarded)


def _byte_length(kind: int, exported: Exported) -> int:
    if kind in (KIND_EVENT, KIND_TIMELINE, KIND_SIGNALER):
        return 0
    root = exported.root
    if isinstance(root, (OwnMemory, ReceivedMemory)) or kind == KIND_PINNED:
        length: int = root.byte_length
        return length
    if kind == KIND_LEGACY:
        found: int = decode_known(exported.fields).base_byte_length
        return found
    # A channel, which keeps its memory.
    kept: int = exported.keep.byte_length
    return kept


def _is_open_here(root: Any) -> bool:
    if isinstance(root, OwnMemory):
        return root.has_array
    if isinstance(root, EventHandle):
        return is_event_open(root)
    return not getattr(root, 'is_closed', False)


def _orphaned(leased: list[_Lease]) -> list[_Lease]:
    return [each for each in leased if each.stats.orphaned]


def _distinct(leased: list[_Lease]) -> list[_Lease]:
    """One lease of each object."""
    by_object: dict[Any, _Lease] = {each.key: each for each in leased}
    return list(by_object.values())


def _distinct_bytes(leased: list[_Lease]) -> int:
    return sum(each.stats.byte_length for each in _distinct(leased))


def _is_drained() -> bool:
    return not any(each.stats.orphaned for each in _all_leases())


def _describe_orphaned() -> str:
    orphaned = _orphaned(list(_all_leases()))
    kinds = ', '.join(dict.fromkeys(each.stats.kind for each in orphaned))
    names = list(dict.fromkeys(each.holder for each in orphaned))
    return f'{_distinct_bytes(orphaned)} bytes ({kinds}) that {", ".join(names)} {"has" if len(names) == 1 else "have"}'
