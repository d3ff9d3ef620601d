"""What is sent: values are encoded and exported, put into frames, and queued while the socket is full."""

from __future__ import annotations

import collections
import errno
import fcntl
import functools
import socket
import struct
import termios
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from ._bytes import pack_double, write_length
from ._deadlines import Deadline
from ._devices import stream_handle
from ._encoder import Encoder
from ._errors import IpcError
from ._export import Exported, export
from ._files import SEND_FLAGS, close_fds
from ._process import start_thread
from ._protocol import (
    CONTROL_TIMELINE_PAGE,
    FRAME_CONTROL,
    FRAME_VALUE,
    KIND_EVENT,
    MAX_VALUE_BYTE_LENGTH,
    MAX_VALUE_OBJECTS,
    MAX_VERSION,
    PACKET_BYTE_LENGTH,
    PACKET_FDS,
)
from ._releases import wait_for_device
from ._signals import signals
from ._waiter import Waiter, again
from ._wire import HEADER, MAGIC, MAX_LIST, MAX_PART, Outgoing, Release, write_control
from ._words import Points

if TYPE_CHECKING:
    from ._connection import Connection

# A value in bytes, its GPU objects, and points behind the work on them.
Prepared = tuple[bytearray, list[Exported], Points]

# Waits until something is done. Raises TimeoutError, CudaError.
Wait = Callable[[Deadline], None]
# What a whole frame takes of the room of a socket, with what the system adds, and how much room is wanted.
_FRAME_IN_SOCKET, _WANTED_IN_SOCKET = PACKET_BYTE_LENGTH + 8192, 1 << 20
_NO_ROOM_NOW = (errno.ENOBUFS, errno.ETOOMANYREFS, errno.ENOMEM)
_pack_header = HEADER.pack


class Later:
    """A message that is sent when work is done."""

    __slots__ = ('on_error', 'post', 'posted', 'prepared', 'waits')

    def __init__(self, post: Callable[[Prepared], Any], on_error: Callable[[Exception], None]) -> None:
        # None again when it was sent, or given up.
        self.prepared: Optional[Prepared] = None
        self.waits: Sequence[Wait] = ()
        self.post, self.on_error = post, on_error
        self.posted: Any = None


class Outbox:
    """Its lock is that of the connection, which callers of `post`, `flush` and `send_releases` hold."""

    def __init__(self, connection: Connection, sock: socket.socket) -> None:
        self._connection, self._socket = connection, sock
        # The system gives what it allows.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WANTED_IN_SOCKET)
        self._socket_size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._sent = 0
        # All that was sent, without messages of control alone.
        self.sent_messages = self.sent_bytes = self.sent_objects = 0
        self.queue: collections.deque[Outgoing] = collections.deque()
        # What is sent when work is done.
        self._later: collections.deque[Later] = collections.deque()
        # Those whose messages the other end has not taken.
        self._unsent: list[Waiter] = []

    # ---- Values ----

    def prepare(self, value: Any, stream: Any, deadline: Optional[Deadline] = None) -> Prepared:
        """Encodes a value and exports its GPU objects. Waits for the work on them, or returns points behind it."""
        prepared, waits = self.encode(value, stream)
        for wait in waits:
            wait(deadline or Deadline(None))
        return prepared

    def encode(self, value: Any, stream: Any) -> tuple[Prepared, Sequence[Wait]]:
        """As `prepare`, without waiting. Returns what must be waited for before it is sent, too."""
        encoder = Encoder()
        encoder.write(value)
        if len(encoder.out) > MAX_VALUE_BYTE_LENGTH or len(encoder.objects) > MAX_VALUE_OBJECTS:
            raise ValueError(f'the value is too large: it may have at most 16 MiB, and {MAX_VALUE_OBJECTS} GPU objects')
        handle = None if stream is None else stream_handle(stream)
        if not encoder.objects:
            return (encoder.out, [], []), ()
        exported = [export(value, self._connection) for value in encoder.objects]
        if sum(len(one.fds) + len(one.owned) + (one.forward is not None) for one in exported) > PACKET_FDS:
            raise ValueError(f'the value needs more than {PACKET_FDS} file descriptors: send fewer objects at a time')
        points: Points = []
        # Events are the order themselves.
        devices = list({one.device for one in exported if one.device and one.fields[0] != KIND_EVENT})
        if handle is not None:
            for device in devices[:]:
                behind = self._connection.points_behind(device, handle)
                if behind is not None:
                    points += behind
                    devices.remove(device)
        for one in exported:
            one.stream = handle if one.device else None
        waits: list[Wait] = [one.forward.wait for one in exported if one.forward]
        waits += [functools.partial(wait_for_device, device) for device in devices]
        return (encoder.out, exported, points), waits

    def send_at_once(self, prepared: Prepared) -> bool:
        """Sends a value without objects in one frame, with what is released. Returns False if that is not possible now."""
        body, exported, _ = prepared
        connection, length = self._connection, len(body)
        if exported or length > MAX_PART // 2:
            return False
        with connection.mutex:
            releases = connection.imports.releases
            readiness = connection.readiness
            if connection.end is not None or self.queue or readiness.needs_confirmation or readiness.are_values_ignored:
                return False
            if releases:
                # Points of this end come after its page.
                if len(releases) > 64 or connection.order.has_page_to_send:
                    return False
                write_control(body, (), releases)
            if len(body) > MAX_PART or not self._send_frame(FRAME_VALUE, 0, body):
                del body[length:]
                return False
            if releases:
                connection.imports.releases = []
            self.sent_messages += 1
            self.sent_bytes += len(body)
            return True

    def _send_frame(self, kind: int, request: int, body: bytearray) -> bool:
        if self._connection.is_socket_closed:
            return False
        try:
            self._socket.send(_pack_header(MAGIC, MAX_VERSION, kind, self._sent, len(body), 0, request) + body, SEND_FLAGS)
        except OSError:
            return False  # It is queued, and what is wrong is found there.
        self._sent = (self._sent + 1) & 0xFFFFFFFF
        return True

    def send(self, prepared: Prepared, kind: int = FRAME_VALUE, request: int = 0, waiter: Optional[Waiter] = None) -> Outgoing:
        """Sends a value, or queues it. `waiter` is settled when it was sent."""
        body, exported, points = prepared
        connection = self._connection
        fds: list[int] = []
        owned: list[int] = []
        with signals, connection.mutex:
            if connection.end is not None:
                raise again(connection.end)
            if kind == FRAME_VALUE and connection.readiness.are_values_ignored:
                raise connection.readiness.not_received()
            exports = connection.exports
            first = exports.next
            shares: list[tuple[Exported, list[int]]] = []
            if exported:
                body += pack_double(first)
                for one in exported:
                    links = [one.forward.take()] if one.forward else []
                    write_length(body, len(one.owned) + len(one.fds))
                    body.append(len(links))
                    write_length(body, len(one.fields))
                    body += one.fields
                    fds += one.owned
                    fds += one.fds
                    fds += links
                    own, one.owned = one.owned + links, []
                    if own:
                        owned += own
                        shares.append((one, own))
                    exports.add(one)
            self._send_page()
            releases = self._take_releases(body, points)
            if waiter and kind == FRAME_VALUE and connection.readiness.needs_confirmation:
                # Settled when the other end receives, or refuses.
                connection.readiness.unconfirmed.append(waiter)
                waiter = None
            message = Outgoing(kind, request, body, fds, owned, waiter)
            message.leases, message.releases, message.shares = range(first, exports.next), releases, shares
            self._post(message)
            self.sent_messages += 1
            self.sent_bytes += len(body)
            self.sent_objects += len(exported)
            return message

    def take_back(self, message: Outgoing, waiter: Waiter) -> bool:
        """Takes a message back of which nothing was sent yet. Returns False if it is too late."""
        connection = self._connection
        with signals, connection.mutex:
            if message.at or message not in self.queue:
                return False
            self.queue.remove(message)
            if waiter in connection.readiness.unconfirmed:
                connection.readiness.unconfirmed.remove(waiter)
            for one, owned in message.shares:
                one.owned = owned
                one.undo()
            for lease in message.leases:
                connection.exports.leases.pop(lease, None)
            connection.imports.releases[:0] = message.releases
            connection.close_if_unused()
            return True

    # ---- When work is done ----

    def send_later(self, value: Any, stream: Any, post: Callable[[Prepared], Any], on_error: Callable[[Exception], None]) -> Later:
        """Encodes a value now, and has `post` send it when the work on it is done, in the order of the calls. Does not wait."""
        later = Later(post, on_error)
        try:
            prepared, waits = self.encode(value, stream)
            with signals, self._connection.mutex:
                if self._later or waits:
                    later.prepared, later.waits = prepared, waits
                    self._later.append(later)
                    if len(self._later) == 1:
                        try:
                            start_thread(self._send_later, 'sends')
                        except IpcError:
                            # The next one starts it.
                            self._later.clear()
                            raise
                else:
                    later.posted = post(prepared)
        except Exception as error:
            on_error(error)
        return later

    def _send_later(self) -> None:
        while True:
            later = self._later[0]
            error: Optional[Exception] = None
            try:
                for wait in later.waits:
                    wait(Deadline(None))
            except Exception as failed:
                error = failed
            with self._connection.mutex:
                self._later.popleft()
                is_last = not self._later
                prepared, later.prepared = later.prepared, None
                if prepared is not None and error is None:
                    try:
                        later.posted = later.post(prepared)
                    except Exception as failed:
                        error = failed
            del prepared
            if error:
                later.on_error(error)
            if is_last:
                return

    # ---- Control ----

    def _take_releases(self, body: bytearray, points: Sequence[tuple[int, int]] = ()) -> list[Release]:
        """Writes points, and what is released, which it returns."""
        imports = self._connection.imports
        releases, imports.releases = imports.releases[:MAX_LIST], imports.releases[MAX_LIST:]
        write_control(body, points, releases)
        return releases

    def _send_page(self) -> None:
        """Sends this end's counters before the first points."""
        fd = self._connection.order.take_page()
        if fd >= 0:
            self.post(FRAME_CONTROL, bytes((CONTROL_TIMELINE_PAGE,)), (fd,), owned=[fd])

    def send_releases(self) -> None:
        imports = self._connection.imports
        if self._connection.is_socket_closed:
            imports.releases = []
        while imports.releases:
            self._send_page()
            body = bytearray()
            self._take_releases(body)
            self.post(FRAME_CONTROL, body)

    # ---- Frames ----

    def post(self, kind: int, body: Union[bytes, bytearray], fds: Sequence[int] = (), request: int = 0, owned: Sequence[int] = ()) -> None:
        self._post(Outgoing(kind, request, body, fds, owned))

    def _post(self, message: Outgoing) -> None:
        self.queue.append(message)
        self.flush()
        if self.queue:
            self._connection.on_full_socket()

    def flush(self) -> None:
        """Sends as much as the socket takes."""
        queue, connection = self.queue, self._connection
        while queue:
            message = queue[0]
            at, body, fds, owned, waiter = message.at, message.body, message.fds, message.owned, message.waiter
            length = len(body)
            if length > MAX_PART and not at and not self._has_room(length):
                return
            header = _pack_header(MAGIC, MAX_VERSION, message.kind, self._sent, length, at, message.request)
            frame = header + body if length <= MAX_PART else header + body[at : at + MAX_PART]
            is_lost = False
            try:
                if connection.is_socket_closed:
                    pass
                elif fds and not at:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f'{len(fds)}i', *fds))]
                    self._socket.sendmsg((frame,), ancillary, SEND_FLAGS)
                else:
                    self._socket.send(frame, SEND_FLAGS)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM_NOW:
                    return
                # The other end is closed: what it has sent before is read first, and its end is seen there.
                is_lost = True
            message.at = at + MAX_PART
            if owned and not at:
                close_fds(list(owned))
                message.owned, message.shares = (), []
            if message.at < length:
                continue
            queue.popleft()
            self._sent = (self._sent + 1) & 0xFFFFFFFF
            if not waiter:
                continue
            if is_lost:
                self._unsent.append(waiter)
            else:
                waiter.settle(connection.end if connection.is_socket_closed else None)

    def _has_room(self, length: int) -> bool:
        """Whether the frames of a message fit into the socket, so that it need not be left half sent. None above 3/4 of it do."""
        frames = -(-length // MAX_PART) * _FRAME_IN_SOCKET
        if self._connection.is_socket_closed or frames > self._socket_size * 3 // 4:
            return True
        unread = struct.unpack('i', fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return unread + frames <= self._socket_size

    # ---- The end ----

    def end(self) -> None:
        """The socket is closed: tells those whose messages the other end has not taken."""
        self.flush()
        for waiter in self._unsent:
            waiter.settle(self._connection.end)

    def abandon(self) -> None:
        """In a child by fork."""
        self.queue.clear()
        self._later.clear()
