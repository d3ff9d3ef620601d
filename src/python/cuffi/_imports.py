"""What this end holds of the other: mapped, and given back when nothing here refers to it and the work on it is done."""

from __future__ import annotations

import collections
import fcntl
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from ._bytes import SAFE, limit_exceeded
from ._driver import LEGACY_STREAM
from ._errors import CuffiError, IpcError
from ._files import close_fds, is_driver_fd
from ._mappings import OpenPool, check_exporter, map_legacy, map_once, map_pool, map_virtual, virtual_key
from ._process import locks
from ._protocol import KIND_LEGACY, KIND_POOL, KIND_VIRTUAL, MAX_OBJECT_BYTE_LENGTH, MAX_TABLE_BYTE_LENGTH
from ._releases import releases_of
from ._waits import waiting_streams
from ._wire import MAX_LIST
from ._words import Points

if TYPE_CHECKING:
    from ._bytes import Reader
    from ._connection import Connection
    from ._descriptors import Fields
    from ._devices import Device
    from ._forward import Forward
    from ._memory import Mapping, ReceivedMemory
    from ._wire import Release

_MAX_POOLS = 1024
# Four bytes that are read one by one.
_LONG = bytes((0xFF,)) * 4


class Imports:
    """The leases that the other end has given. Its lock is that of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.leases: dict[int, Optional[weakref.ref[ReceivedMemory]]] = {}
        self._next = 0
        # Of what a third process has made: links to it. Each ends when that is given back, not with the connection.
        self.links: dict[int, int] = {}
        self.revoked: set[int] = set()
        self._pools: dict[bytes, OpenPool] = {}
        # Descriptors of pools that were not opened yet: each comes once.
        self._pool_fds: dict[bytes, int] = {}
        # What nothing refers to any more, in the order in which that was found.
        self.given_back: collections.deque[tuple[int, Optional[Mapping], Optional[int]]] = collections.deque()
        # What is given back behind streams that still use it.
        self.behind_streams: list[tuple[Points, int, Mapping]] = []
        # What it keeps for third processes because this one has asked.
        self.forwards: weakref.WeakSet[Forward] = weakref.WeakSet()
        # What the other end is still to be told.
        self.releases: list[Release] = []

    @property
    def is_in_use(self) -> bool:
        return bool(self.leases or self.given_back or self.behind_streams)

    # ---- Receiving ----

    def read_table(self, reader: Reader, count: int) -> list[tuple[bytes, int, bool, int]]:
        """Reads the objects of a value: the fields, how many descriptors, whether there is a link, and the lease of each."""
        begin, first = reader.at, reader.number()
        if first < self._next or first + count > SAFE:
            raise IpcError(f'lease {first} was sent after lease {self._next - 1}, or a second time')
        entries: list[tuple[bytes, int, bool, int]] = []
        for lease in range(first, first + count):
            at, end, data = reader.at, reader.end, reader.data
            # Most are read in one go, those whose length has two bytes.
            fd_count, has_link, low, high = data[at : at + 4] if at + 4 < end else _LONG
            length = low & 0x7F | high << 7
            if fd_count < 0x80 and has_link < 2 and low > 0x7F > high and length <= end - at - 4:
                reader.at = at + 4
            else:
                fd_count, has_link, length = reader.length(0), reader.flag(), reader.length()
            if length > MAX_OBJECT_BYTE_LENGTH:
                raise limit_exceeded(f'a descriptor of {length} bytes is too long')
            entries.append((reader.take(length), fd_count, has_link != 0, lease))
            if reader.at - begin > MAX_TABLE_BYTE_LENGTH:
                raise limit_exceeded('a table of objects is too long')
        return entries

    def begin(self, lease: int) -> None:
        self.leases[lease] = None
        self._next = lease + 1

    def revoke(self, leases: Sequence[int]) -> None:
        """The other end wants them back: whoever has them gets a ClosedError from now on."""
        for lease in leases:
            if lease >= self._next:
                raise IpcError(f'lease {lease} was revoked, but was never sent')
            found = self.leases.get(lease)
            memory = found() if found else None
            if memory:
                memory.revoked_by = self._connection.name
            elif lease in self.leases:
                self.revoked.add(lease)

    # ---- Mapping ----

    def keep_pool(self, name: bytes, fds: list[int]) -> None:
        """Keeps the descriptor of a pool, which later memory of it needs also if this is never opened."""
        if name not in self._pools and name not in self._pool_fds:
            if len(self._pools) + len(self._pool_fds) >= _MAX_POOLS:
                raise IpcError(f'more than {_MAX_POOLS} memory pools came over one connection', 'limit-exceeded')
            self._pool_fds[name] = fds.pop()

    def close_pool(self, name: bytes) -> None:
        """The other end has closed it."""
        fd, pool = self._pool_fds.pop(name, -1), self._pools.pop(name, None)
        close_fds([fd] if fd >= 0 else [])
        if pool:
            releases_of(pool.device).add(pool.release)

    def map(self, fields: Fields, device: Device, fds: Sequence[int]) -> Optional[Mapping]:
        """Maps memory, unless it is mapped already. Returns None for a pool without memory."""
        if fields.kind == KIND_LEGACY:
            key: tuple[Any, ...] = (KIND_LEGACY, device.ordinal, fields.handle)
            return map_once(key, fields.buffer_id, lambda: map_legacy(self._checked(fields), device))
        if fields.kind == KIND_VIRTUAL:
            return self._map_virtual(fields, device, fds)
        with locks.mappings:
            name = fields.pool
            assert name is not None, 'all memory that is neither legacy nor virtual is of a pool'
            pool = self._pools.get(name)
            if pool is None:
                exporter, fd = self._checked(fields).exporter, self._pool_fds.pop(name, -1)
                try:
                    if fd < 0 or not is_driver_fd(fd):
                        raise IpcError('memory of a pool came without the descriptor of the pool', 'no-file-descriptor')
                    pool = self._pools[name] = OpenPool(device, fd, exporter)
                finally:
                    close_fds([fd] if fd >= 0 else [])
            if fields.handle is None:
                return None
            # The driver finds memory by its pool and handle; what the sender calls the pool proves nothing.
            found = pool
            return map_once((KIND_POOL, found.handle, fields.handle), fields.generation, lambda: map_pool(self._checked(fields), found))

    def _map_virtual(self, fields: Fields, device: Device, fds: Sequence[int]) -> Mapping:
        if not all(map(is_driver_fd, fds)):
            raise IpcError("a descriptor that came with memory is not one of the driver's", 'no-file-descriptor')
        if len(fds) != len(fields.pieces):
            raise IpcError(f'virtual memory of {len(fields.pieces)} pieces came with {len(fds)} descriptors', 'no-file-descriptor')
        # The mark of memory that is shared for reading only.
        read_only = fields.read_only or any(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND for fd in fds)
        with locks.mappings:
            key = virtual_key(fields, device, fds, read_only)
            return map_once(key, 0, lambda: map_virtual(self._checked(fields), device, fds, read_only), fds)

    def _checked(self, fields: Fields) -> Fields:
        check_exporter(fields, self._connection.allow_other_users)
        return fields

    # ---- Giving back ----

    def release(self, lease: int) -> None:
        """Tells the other end that nothing here uses what it has sent."""
        connection = self._connection
        with connection.mutex:
            if self.links:
                link = self.links.pop(lease, -1)
                if link >= 0:
                    close_fds([link])
            self.revoked.discard(lease)
            self.leases.pop(lease, None)
            if connection.is_socket_closed:
                if connection.is_read:
                    # Its thread may be over.
                    connection.kick()
                return
            # It goes with the next value, or when somebody reads.
            self.releases.append((lease, True, []))
            if connection.is_closing:
                connection.outbox.send_releases()
                connection.close_if_unused()
            elif connection.is_read or len(self.releases) >= MAX_LIST:
                connection.kick()

    def give_back_later(self, lease: int, mapping: Optional[Mapping], stream: Optional[int]) -> None:
        """As `give_back`, from anywhere: objects may be collected in the middle of any work."""
        self.given_back.append((lease, mapping, stream))
        if self._connection.is_read:
            self._connection.kick()

    def give_back(self, may_wait: bool = False) -> None:
        """Unmaps what nobody refers to any more, and tells the other end: behind the work that may use it.

        :param may_wait: whether this thread may wait for that work, unless it stands behind a wait for another process.
            Whoever reads must not: what is waited for may need a message
        """
        given_back = self.given_back
        is_free = may_wait and bool(given_back) and not waiting_streams()
        while given_back:
            try:
                lease, mapping, stream = given_back.popleft()
            except IndexError:
                break
            if mapping is None:
                self.release(lease)
                continue
            points: Optional[Points] = None
            try:
                if stream is not None:
                    points = self._connection.points_behind(mapping.device, stream or LEGACY_STREAM)
                elif is_free:
                    mapping.device.synchronize()
                    points = []
            except CuffiError:
                pass  # The context is lost: nothing runs in it.
            if points is None:
                self._finish_later(lease, mapping)
            elif points:
                with self._connection.mutex:
                    self.releases.append((lease, False, points))
                    self.behind_streams.append((points, lease, mapping))
                    self._connection.outbox.send_releases()
                    self._connection.kick()
            elif mapping.release_unless_last():
                self.release(lease)
            elif is_free:
                self._finish(lease, mapping)
            else:
                self._finish_later(lease, mapping)
        if self.behind_streams:
            self._give_back_behind_streams()

    def _give_back_behind_streams(self) -> None:
        own = self._connection.order.own
        with self._connection.mutex:
            pending, self.behind_streams = self.behind_streams, []
        for points, lease, mapping in pending:
            if own and not own.is_reached(points):
                self.behind_streams.append((points, lease, mapping))
            elif mapping.release_unless_last():
                self.release(lease)
            else:
                self._finish_later(lease, mapping)

    def _finish_later(self, lease: int, mapping: Mapping) -> None:
        releases_of(mapping.device).add(lambda: self._finish(lease, mapping))

    def _finish(self, lease: int, mapping: Mapping) -> None:
        try:
            mapping.release()
        except CuffiError:
            pass  # The context is lost, and the mapping with it.
        self.release(lease)

    def close(self) -> list[OpenPool]:
        """Ends what needs no other process. Returns the pools, to be released."""
        with locks.mappings:
            pools, self._pools = list(self._pools.values()), {}
            close_fds(self._pool_fds.values())
            self._pool_fds.clear()
        return pools
