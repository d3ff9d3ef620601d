"""One end of a connection."""

from __future__ import annotations

import asyncio
import collections
import copy
import ctypes
import errno
import fcntl
import math
import os
import select
import socket
import stat
import struct
import termios
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, TYPE_CHECKING, Tuple, Union

from . import _descriptors, _install
from ._array import ImportedPool, array_of
from ._bytes import SAFE, Reader, limit_exceeded, pack_double, write_length
from ._consumer import ChannelFields
from ._deadlines import Deadline, pauses
from ._decoder import Decoder
from ._devices import all_devices, device_by_uuid, stream_handle
from ._driver import LEGACY_STREAM, CudaError, Handle64, cuda_driver, read_number
from ._encoder import Encoder, encoded
from ._errors import ClosedError, CuffiError, IpcError, PeerGoneError
from ._event import CudaEvent
from ._export import export
from ._files import (
    FD_SPACE,
    close_fds,
    credentials,
    file_type,
    is_driver_fd,
    is_sealed,
    received_fds,
    seal_against_holes,
    sealed_memory,
    start_closing,
)
from ._mappings import OpenPool, check_exporter, map_legacy, map_once, map_pool, map_virtual, opening, virtual_key
from ._memory import BorrowedMemory, ReceivedMemory
from ._pinned import PinnedFields
from ._process import has_failed, locks, process_exit, start_time_of, this_process
from ._protocol import (
    BEGUN_IGNORING_VALUES,
    BEGUN_RECEIVING,
    BEGUN_SERVING,
    CONTROL_BEGUN,
    CONTROL_CLOSING,
    CONTROL_DONE,
    CONTROL_POINTS,
    CONTROL_RELEASED,
    CONTROL_TIMELINE_PAGE,
    COUNTER_COUNT,
    END_OF_WAITS,
    FRAME_CANCELLATION,
    FRAME_CONTROL,
    FRAME_FAILURE,
    FRAME_HELLO,
    FRAME_REQUEST,
    FRAME_RESPONSE,
    FRAME_UNSERVED,
    FRAME_VALUE,
    FRAME_VERIFICATION,
    KIND_CHANNEL,
    KIND_EVENT,
    KIND_LEGACY,
    KIND_PINNED,
    KIND_POOL,
    KIND_SIGNALER,
    KIND_TIMELINE,
    KIND_VIRTUAL,
    MAX_CONTROL_BYTE_LENGTH,
    MAX_OBJECT_BYTE_LENGTH,
    MAX_PACKAGE_NAME_BYTE_LENGTH,
    MAX_PENDING_REQUESTS,
    MAX_PENDING_REQUEST_BYTE_LENGTH,
    MAX_QUEUED_BYTE_LENGTH,
    MAX_QUEUED_FDS,
    MAX_QUEUED_VALUES,
    MAX_TABLE_BYTE_LENGTH,
    MAX_VALUE_BYTE_LENGTH,
    MAX_VALUE_OBJECTS,
    MAX_VERIFICATION_BYTE_LENGTH,
    MAX_VERSION,
    MIN_VERSION,
    PACKET_BYTE_LENGTH,
    PACKET_FDS,
    PAGE_BYTE_LENGTH,
    READINESS_WAIT_MS,
)
from ._releases import releases_of, wait_for_device
from ._signals import signals
from ._timeline import TimelineFields
from ._waits import REPAIR_S, EventHandle, enqueue_store, enqueue_wait, have_room_for_waits, stream_of, waiting_streams
from ._wire import (
    FRAME_KINDS,
    HEADER,
    MAGIC,
    MAX_LIST,
    MAX_MESSAGE,
    MAX_PART,
    NULL,
    OLDEST_WITH_HELLO,
    Control,
    Outgoing,
    choose_version,
    package_name,
    printable,
    versions_text,
    write_points,
)
from ._words import SharedWords

if TYPE_CHECKING:
    from ._descriptors import Fields
    from ._devices import Device
    from ._export import Exported
    from ._memory import Mapping
    from ._values import Put
    from ._wire import Prepared
    from ._words import Points

_MAX_POOLS = 1024
# What a whole frame takes of the room of a socket, with what the system adds, and how much room is wanted.
_FRAME_IN_SOCKET, _WANTED_IN_SOCKET = PACKET_BYTE_LENGTH + 8192, 1 << 20
# A thread that has just received probably receives again, faster than the connection's own thread would.
_IDLE_S = 0.005
# The system counts milliseconds in 32 bits.
_MAX_POLL_S = 86_400.0
# How often a wait that has no time left asks another thread that reads to look.
_MAX_LOOKS = 3
# As in Node: only the end of the process tells a crash from a close.
_MAX_EXIT_S = 2.0
_NO_ROOM = "no descriptor is left for those of a message, which are lost: raise the limit ('ulimit -n')"


def again(error: Any) -> Any:
    """A copy of an error: a kept one that is raised would keep the frames that it passes, and what they hold."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again


class Slot:
    """Somebody who waits for a value or an answer: a thread, or the future of an event loop."""

    def __init__(self, is_async: bool = False) -> None:
        self.is_done = False
        self.result: Any = None
        self._loop = asyncio.get_running_loop() if is_async else None
        self.future: Optional['asyncio.Future[None]'] = self._loop.create_future() if self._loop else None

    def settle(self, result: Any) -> None:
        if self.is_done:
            return
        self.is_done, self.result = True, result
        if self._loop:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # The loop is closed: nobody waits any more.

    def _wake(self) -> None:
        if self.future and not self.future.done():
            self.future.set_result(None)

    def take(self) -> Any:
        if isinstance(self.result, Exception):
            raise again(self.result)
        return self.result


class Later:
    """A message that is sent when work is done."""

    __slots__ = ('prepared', 'devices', 'post', 'posted', 'on_error')

    def __init__(self, post: Callable[[Prepared], Any], on_error: Callable[[Exception], None]) -> None:
        # None again when it was sent, or given up.
        self.prepared: Optional[Prepared] = None
        self.devices: List[Device] = []
        self.post, self.on_error, self.posted = post, on_error, None


class Arrived:
    """A value that has arrived. Its GPU objects are opened when somebody takes it."""

    __slots__ = ('connection', 'kind', 'request', 'value', 'places', 'objects', 'points', 'events', 'size', 'fd_count', 'refusal',
                 'is_cut')  # fmt: skip

    def __init__(self, connection: 'Connection', kind: int, request: int, size: int) -> None:
        self.connection, self.kind, self.request, self.size, self.fd_count = connection, kind, request, size, 0
        self.value: Any = None
        # None: the value is the object. A function would keep this object, and this object it.
        self.places: List[Optional[Put]] = []
        self.objects: List[Tuple[bytes, List[int], int]] = []
        # What the host waits for: points and events of the sender.
        self.points: Points = []
        self.events: List[CudaEvent] = []
        self.refusal: Optional[Tuple[str, str]] = None
        # Whether no descriptor was left for those of its objects.
        self.is_cut = False

    def take(self) -> Any:
        """Returns the value, which only its receiver keeps from now on."""
        value, self.value, self.places = self.value, None, []
        return value

    def __del__(self) -> None:
        """Gives back what nobody has taken. It may run anywhere, as while this thread sends."""
        if process_exit and not process_exit.has_begun:
            for _, fds, lease in self.objects:
                close_fds(fds)
                self.connection.give_back_later(lease, None, None)


class Connection:
    """One end of a connection. Whoever waits reads it; its own thread does while nobody waits."""

    def __init__(self, sock: socket.socket, allow_other_users: bool) -> None:
        start_closing()
        self.pid, self.uid, self.gid = credentials(sock)
        self.name = f'process {self.pid}' if self.pid else 'a process of another pid namespace'
        self._allow_other_users = allow_other_users
        self._socket, self._fd = sock, sock.fileno()
        sock.setblocking(False)
        # The system gives what it allows.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WANTED_IN_SOCKET)
        self._socket_size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._cond = threading.Condition(threading.RLock())
        self._wake_lock = threading.RLock()
        self._poll = select.poll()
        self._poll_events = 0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake_read, select.POLLIN)
        self._pidfd = self._watch_process()
        self._started = start_time_of(self.pid) if self.pid else 0
        # Who reads.
        self._is_read = self._is_read_by_own_thread = self._is_kicked = False
        self._waiting, self._last_wait = 0, 0.0
        # The end.
        self.end: Optional[Exception] = None
        self._is_closing = self._is_closed_here = self._is_socket_closed = self._is_gone = self._is_dropped = False
        # A parent learns how this process exits.
        self._is_of_parent = False
        # Until when the end of the process may follow that of its socket.
        self._gone_until: Optional[float] = None
        # Whether the other end has said which versions it speaks: it does so as soon as it exists.
        self._has_met = False
        # Messages.
        self._sent = self._received = 0
        self._parts: List[bytes] = []
        self._part_header: Tuple[int, ...] = ()
        self._part_fds: List[int] = []
        self._is_part_cut = False
        self._outgoing: Deque[Outgoing] = collections.deque()
        # What is sent when work is done.
        self._later: Deque[Later] = collections.deque()
        self._unsent: List[Slot] = []
        self._values: Deque[Arrived] = collections.deque()
        self._value_slots: Deque[Slot] = collections.deque()
        self._requests: Deque[Arrived] = collections.deque()
        self._request_slots: Deque[Slot] = collections.deque()
        self._queued_bytes = self._queued_fds = self._request_bytes = 0
        self._canceled: set = set()
        self._unanswered: set = set()
        # For each request whose handler is a task: what cancels that.
        self._cancels: Dict[int, Callable[[], None]] = {}
        self._asked: Dict[int, Slot] = {}
        self._last_question = 0
        # What each end has begun; how many threads wait for what; sends whose values may never be received.
        self._begun = self._peer_begun = 0
        self._waiting_for = {0: 0, FRAME_VALUE: 0, FRAME_REQUEST: 0}
        self._unconfirmed: List[Slot] = []
        self._stuck_until: Optional[float] = None
        # What each end holds of the other.
        self._exports: Dict[int, Exported] = {}
        self._next_export = self._next_import = 0
        self._imports: Dict[int, Optional['weakref.ref[ReceivedMemory]']] = {}
        self._links: Dict[int, int] = {}
        self._revoked: set = set()
        self._forwarded: Dict[int, Tuple[socket.socket, Exported]] = {}
        self._pools: Dict[bytes, OpenPool] = {}
        # Descriptors of pools that were not opened yet: each comes once.
        self._pool_fds: Dict[bytes, int] = {}
        self._given_back: Deque[Tuple[int, Optional[Mapping], Optional[int]]] = collections.deque()
        self._behind_streams: List[Tuple[Points, int, Mapping]] = []
        self._releases: List[Tuple[int, bool, Points]] = []
        # Order.
        self._page: Optional[SharedWords] = None
        self._page_fd = -1
        self._counters: Dict[Tuple[int, int], List[int]] = {}
        self._peer_page: Optional[SharedWords] = None
        self._is_peer_page_fixed = True
        self._awaited: Dict[int, int] = {}
        self._held: Points = []
        self._after_hold: List[int] = []
        self._thread = threading.Thread(target=self._run, name=f'cuffi {self.name}', daemon=True)
        self._say_hello()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._close_own_fds()
            raise IpcError(f'a connection needs a thread: {error}') from None
        connections.add(self)

    def _watch_process(self) -> int:
        """A descriptor of the other process, unlike whose number it never comes to mean another one."""
        try:
            pidfd = struct.unpack('i', self._socket.getsockopt(socket.SOL_SOCKET, 77, 4))[0]  # SO_PEERPIDFD
        except OSError:
            try:
                pidfd = os.pidfd_open(self.pid) if self.pid else -1
            except (AttributeError, OSError):
                pidfd = -1
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)
        # Without one, for lack of the system or as the process is gone, the socket tells.
        return pidfd

    def end_of_process(self) -> int:
        """A new descriptor that can be read once the other process has ended; -1 if it has. Raises OSError if there is none."""
        with self._wake_lock:
            if self._pidfd >= 0:
                return os.dup(self._pidfd)
        if self._is_gone:
            return -1
        if not self._started or not hasattr(os, 'pidfd_open'):
            raise OSError(errno.ENOSYS, 'the end of the process cannot be observed')
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return -1
        # The number may have come to be that of another process.
        if start_time_of(self.pid) == self._started:
            return pidfd
        os.close(pidfd)
        return -1

    def _close_own_fds(self) -> None:
        with self._wake_lock:
            fds = (self._page_fd, self._pidfd, self._wake_read, self._wake_write)
            self._page_fd = self._pidfd = self._wake_read = self._wake_write = -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    # ---- Reading ----

    def wait(self, is_done: Callable[[], bool], deadline: Deadline, what: Any, kind: int = 0) -> None:
        """Waits in this thread, and reads meanwhile. Raises TimeoutError.

        :param kind: FRAME_VALUE or FRAME_REQUEST, if that is what it waits for
        """
        begun, cond, looks = time.monotonic(), self._cond, 0
        with signals:
            wake = signals.wake_by(self._kick)
            if kind:
                self.begin(kind)
            with cond:
                self._waiting += 1
                self._waiting_for[kind] += 1
                if self._is_read and (self._are_requests_stuck() or self._are_values_stuck()):
                    # The thread that reads must refuse them in time.
                    self._kick()
            try:
                while True:
                    signals.check()
                    with cond:
                        if is_done():
                            return
                        left = deadline.left_or_none()
                        if left is None and looks >= _MAX_LOOKS:
                            deadline.left(what)
                        if self._is_read or self._is_socket_closed:
                            if self._is_read_by_own_thread or left is None:
                                self._kick()
                            looks += left is None
                            cond.wait(0.01 if left is None else min(left, 0.05))
                            continue
                        self._is_read = True
                    try:
                        # What has arrived is looked at even if no time is left.
                        if not self._step(left or 0) and left is None:
                            looks = _MAX_LOOKS
                    finally:
                        with cond:
                            self._is_read = False
                            if self._waiting > 1:
                                # It may have come for them.
                                cond.notify_all()
            finally:
                signals.wake_by(wake)
                with cond:
                    self._waiting -= 1
                    self._waiting_for[kind] -= 1
                    self._last_wait = time.monotonic()
                    if self._waiting or self._last_wait - begun > 0.02:
                        cond.notify_all()

    def _run(self) -> None:
        """Reads while nobody waits, so that what the other end gives back is freed."""
        cond = self._cond
        while True:
            with cond:
                if self._is_over():
                    break
                if self._is_dropped and not self._is_closed_here:
                    self.close()
                if (self._given_back or self._is_closing) and not self._is_read:
                    self._last_wait = 0.0
                is_awaited = any(slot.future for slot in (*self._value_slots, *self._request_slots, *self._asked.values()))
                rest = 0.05 if self._is_read or self._waiting else self._last_wait + _IDLE_S - time.monotonic()
                if rest > 0 and not (is_awaited and not self._is_read and not self._waiting):
                    cond.wait(rest)
                    continue
                self._is_read = self._is_read_by_own_thread = True
            try:
                self._step(math.inf)
            except Exception as error:  # What another process sends must not end this thread without a word.
                self.fail(IpcError(f'the connection to {self.name} was closed: {error}'))
            finally:
                with cond:
                    self._is_read = self._is_read_by_own_thread = False
                    cond.notify_all()
        self._discard()

    def _kick(self) -> None:
        """Ends the poll of the thread that reads."""
        # Its number may come to be that of another file: nobody closes it meanwhile.
        with self._wake_lock:
            if self._wake_write >= 0 and not self._is_kicked:
                self._is_kicked = True
                os.write(self._wake_write, b'\0')

    def _step(self, timeout: float) -> bool:
        """Waits for one thing to happen, and handles it. Returns whether something has. Only the thread that reads calls this."""
        if self._held and (self._is_gone or (self._peer_page and self._peer_page.is_reached(self._held))):
            with self._cond:
                self._held = []
                leases, self._after_hold = self._after_hold, []
                for lease in leases:
                    self._exports.pop(lease, None)
        if self._given_back:
            self.give_back()
        if self._releases:
            with self._cond:
                self._send_releases()
        if self._stuck_until is not None or self._requests or self._values:
            self._watch_stuck()
        if self._gone_until is not None or self._stuck_until is not None:
            until = min(each for each in (self._gone_until, self._stuck_until) if each is not None)
            timeout = max(0.0, min(timeout, until - time.monotonic()))
        milliseconds = None if timeout == math.inf else math.ceil(min(timeout, _MAX_POLL_S) * 1000)
        if self._held or self._behind_streams:
            time.sleep(0.0001)
            milliseconds = 0
        self._register()
        events = self._poll.poll(milliseconds)
        with self._cond:
            for fd, event in events:
                if fd == self._wake_read:
                    with self._wake_lock:
                        os.read(fd, 4096)
                        self._is_kicked = False
                elif fd == self._fd:
                    if event & select.POLLOUT:
                        self._flush()
                    if event & ~select.POLLOUT and not self._is_socket_closed:
                        self._read()
                elif fd == self._pidfd:
                    self._on_gone()
                elif fd in self._forwarded:
                    self._poll.unregister(fd)
                    close_fds([self._forwarded.pop(fd)[0].detach()])
            if self._gone_until is not None and time.monotonic() >= self._gone_until:
                self._on_closed()
            if self._stuck_until is not None and time.monotonic() >= self._stuck_until:
                self._refuse_stuck()
            self._close_if_unused()
        self.give_back()
        return bool(events)

    def _register(self) -> None:
        if self._is_socket_closed:
            return
        is_full = not self._is_closing and (
            len(self._values) >= MAX_QUEUED_VALUES
            or self._queued_bytes >= MAX_QUEUED_BYTE_LENGTH
            or self._queued_fds >= MAX_QUEUED_FDS
        )
        is_held = is_full or self._held or self._gone_until is not None
        events = (0 if is_held else select.POLLIN) | (select.POLLOUT if self._outgoing else 0)
        if events == self._poll_events:
            return
        # A socket without events would still report its end, over and over.
        if events and self._poll_events:
            self._poll.modify(self._fd, events)
        elif events:
            self._poll.register(self._fd, events)
        else:
            self._poll.unregister(self._fd)
        self._poll_events = events

    def _read(self) -> bool:
        """Reads one frame. Returns False if there is none."""
        try:
            data, controls, flags, _ = self._socket.recvmsg(PACKET_BYTE_LENGTH + 1, FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            # It is told first that the other end has not read all; then comes what that end has sent.
            return True
        except OSError:
            data, controls, flags = b'', [], 0
        fds = received_fds(controls)
        try:
            if flags & socket.MSG_TRUNC:
                raise IpcError('received a message that is too long')
            # There is room for as many descriptors as the kernel sends, but this process has none left for them.
            is_cut = flags & socket.MSG_CTRUNC != 0
            if is_cut:
                close_fds(fds)
                fds.clear()
            if data:
                self._on_frame(data, fds, is_cut)
                return True
            self._on_socket_end()
        except BaseException as error:
            close_fds(fds)
            what = error if isinstance(error, CuffiError) else f'it has sent what cannot be read: {error!r}'
            code = error.code if isinstance(error, IpcError) else 'ipc-failed'
            self.fail(IpcError(f'the connection to {self.name} was closed: {what}', code))
            if not isinstance(error, Exception):
                raise
        return False

    def _on_frame(self, data: bytes, fds: List[int], is_cut: bool) -> None:
        """Puts frames together. Takes the descriptors out of the list when they have another owner."""
        if len(data) <= HEADER.size or len(data) > PACKET_BYTE_LENGTH:
            raise IpcError(f'a frame has {len(data)} bytes')
        magic, version, kind, number, length, offset, request = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise IpcError('not a cuffi frame (wrong magic number)')
        if not self._has_met:
            is_plain = (number, length, offset, request) == (0, len(data) - HEADER.size, 0, 0)
            self._meet(version, kind, data[HEADER.size :], is_plain)
            close_fds(fds)
            fds.clear()
            return
        if version != MAX_VERSION:
            raise IpcError(f'a frame is of version {version}, although both ends speak {MAX_VERSION}')
        part, had = data[HEADER.size :], sum(map(len, self._parts))
        header = (kind, number, length, request)
        if number != self._received or offset != had or (had and header != self._part_header):
            raise IpcError(f'received byte {offset} of message {number} instead of byte {had} of message {self._received}')
        if kind not in FRAME_KINDS or (request > 0) != (kind > FRAME_CONTROL):
            raise IpcError(f'a frame of kind {kind} has the request number {request}')
        if length > MAX_MESSAGE:
            raise limit_exceeded(f'a message of {length} bytes is too large')
        if len(part) != min(MAX_PART, length - offset) or (kind == FRAME_CONTROL and len(part) != length):
            raise IpcError(f'a frame has {len(part)} bytes of a message of {length}: too few or too many')
        if offset and fds:
            raise IpcError('received descriptors in the middle of a message')
        if not offset:
            self._part_fds, self._is_part_cut = list(fds), is_cut
            fds.clear()
        self._parts.append(part)
        self._part_header = header
        if had + len(part) < length:
            return
        body = b''.join(self._parts) if had else part
        self._parts = []
        self._received = (number + 1) & 0xFFFFFFFF
        own, self._part_fds = self._part_fds, []
        try:
            self._on_message(kind, request, body, own, self._is_part_cut)
        except BaseException:
            close_fds(own)
            raise

    def _say_hello(self) -> None:
        text = bytes((MIN_VERSION, MAX_VERSION)) + package_name().encode('utf-8', 'replace')[:MAX_PACKAGE_NAME_BYTE_LENGTH]
        try:
            self._socket.send(HEADER.pack(MAGIC, MAX_VERSION, FRAME_HELLO, 0, len(text), 0, 0) + text, socket.MSG_NOSIGNAL)
        except OSError:
            pass  # It is gone. What it has left is still read.

    def _meet(self, version: int, kind: int, content: bytes, is_plain: bool) -> None:
        """Takes the first frame of the other end: the versions that it speaks, and what it is.

        :param is_plain: whether all other numbers of the header are 0 but the length
        """
        if kind != FRAME_HELLO and version < OLDEST_WITH_HELLO:
            raise self._other_version(version, version, None)
        is_whole = kind == FRAME_HELLO and is_plain and 2 <= len(content) <= 2 + MAX_PACKAGE_NAME_BYTE_LENGTH
        if not is_whole or content[1] < content[0]:
            raise IpcError('the other end did not say first which versions of the protocol it speaks')
        if choose_version((content[0], content[1]), (MIN_VERSION, MAX_VERSION)) is None:
            raise self._other_version(content[0], content[1], content[2:])
        self._has_met = True

    def _other_version(self, least: int, most: int, theirs: Optional[bytes]) -> IpcError:
        there = '' if theirs is None else f'There: {printable(theirs)}. '
        return IpcError(f'the other end speaks {versions_text(least, most)} of the protocol, '
                        f'this one {versions_text(MIN_VERSION, MAX_VERSION)}. {there}Here: {package_name()}. '
                        + _install.remedy(package_name(), theirs, least > MAX_VERSION), 'version-mismatch')  # fmt: skip

    def _on_message(self, kind: int, request: int, body: bytes, fds: List[int], is_cut: bool) -> None:
        reader = Reader(body)
        if kind == FRAME_CONTROL:
            # Without the counters of the other end, or a link of a third process, order and memory are not safe.
            if is_cut:
                raise IpcError(_NO_ROOM, 'limit-exceeded')
            self._apply_control(reader, fds, True)
            return
        arrived = Arrived(self, kind, request, len(body))
        decoder = Decoder(reader)
        arrived.value = decoder.read(None)
        arrived.places, arrived.refusal, arrived.is_cut = decoder.places, decoder.refusal, is_cut
        if reader.at > (MAX_VERIFICATION_BYTE_LENGTH if kind == FRAME_VERIFICATION else MAX_VALUE_BYTE_LENGTH):
            raise limit_exceeded(f'a value of {reader.at} bytes is too large')
        entries = self._read_table(reader, len(arrived.places)) if arrived.places else []
        if reader.end - reader.at > MAX_CONTROL_BYTE_LENGTH:
            raise limit_exceeded('a control block is too large')
        if not is_cut and sum(count + has_link for _, count, has_link, _ in entries) != len(fds):
            raise IpcError(f'received {len(fds)} descriptors with a value that has others')
        arrived.points = self._apply_control(reader, fds, False)
        if arrived.points and self._peer_page is None:
            raise IpcError('received points before their page')
        for data, count, has_link, lease in entries:
            self._imports[lease] = None
            self._next_import = lease + 1
            own, fds[:count] = fds[:count], []
            arrived.objects.append((data, own, lease))
            if is_cut:
                continue
            arrived.fd_count += count
            if has_link:
                self._links[lease] = fds.pop(0)
            if count == 1 and data[:1] == bytes((KIND_POOL,)):
                self._keep_pool(_descriptors.pool_of(data), own)
        self._deliver(arrived)

    def _read_table(self, reader: Reader, count: int) -> List[Tuple[bytes, int, bool, int]]:
        begin, first = reader.at, reader.number()
        if first < self._next_import or first + count > SAFE:
            raise IpcError(f'lease {first} was sent after lease {self._next_import - 1}, or a second time')
        entries = []
        for at in range(count):
            own, has_link, length = reader.length(0), reader.flag(), reader.length()
            if length > MAX_OBJECT_BYTE_LENGTH:
                raise limit_exceeded(f'a descriptor of {length} bytes is too long')
            entries.append((reader.take(length), own, has_link, first + at))
            if reader.at - begin > MAX_TABLE_BYTE_LENGTH:
                raise limit_exceeded('a table of objects is too long')
        return entries

    def _keep_pool(self, name: bytes, fds: List[int]) -> None:
        """Keeps the descriptor of a pool, which later memory of it needs also if this is never opened."""
        if name not in self._pools and name not in self._pool_fds:
            if len(self._pools) + len(self._pool_fds) >= _MAX_POOLS:
                raise IpcError(f'more than {_MAX_POOLS} memory pools came over one connection', 'limit-exceeded')
            self._pool_fds[name] = fds.pop()

    def _deliver(self, arrived: Arrived) -> None:
        kind, request = arrived.kind, arrived.request
        if self.end is not None:
            self.discard(arrived)
        elif kind == FRAME_VALUE:
            self.offer(arrived)
        elif kind == FRAME_REQUEST:
            self._on_request(arrived)
        elif kind in (FRAME_RESPONSE, FRAME_FAILURE):
            slot = self._asked.pop(request, None)
            if slot is None:
                raise IpcError(f'received an answer to request {request}, which was not made')
            if slot.is_done:
                self.discard(arrived)  # Given up.
            else:
                slot.settle(arrived)
        elif kind == FRAME_UNSERVED and not arrived.objects and arrived.value is None:
            slot = self._asked.pop(request, None)
            if slot is None:
                raise IpcError(f'received a refusal of request {request}, which was not made')
            slot.settle(IpcError(f'{self.name} serves no requests: it waits for values and has never called serve(). '
                                 'Serve there, or send values', 'not-served'))  # fmt: skip
        elif kind == FRAME_CANCELLATION and not arrived.objects and arrived.value is None:
            # Handlers of threads may ask; what waits is not begun.
            if request in self._unanswered:
                self._canceled.add(request)
                cancel = self._cancels.get(request)
                if cancel:
                    cancel()
        elif kind == FRAME_VERIFICATION and not arrived.objects:
            self._on_verification(request)
        else:
            raise IpcError(f'received a message of kind {kind} that is none')

    def _on_verification(self, request: int) -> None:
        """Answers at once, as nothing waits for a handler."""
        self._check_number(request)
        # Its answers count as pending until they are sent, for an end that asks and does not read.
        if len(self._outgoing) >= MAX_PENDING_REQUESTS:
            if sum(message.kind == FRAME_FAILURE for message in self._outgoing) >= MAX_PENDING_REQUESTS:
                raise IpcError(f'{MAX_PENDING_REQUESTS} answers wait to be sent, and nobody there reads them', 'limit-exceeded')
        error = IpcError('the companion for Python confirms no descriptors', 'not-supported')
        self._post(FRAME_FAILURE, encoded(error), request=request)

    def _check_number(self, request: int) -> None:
        if request in self._unanswered:
            raise IpcError(f'received request {request} a second time')

    def _on_request(self, arrived: Arrived) -> None:
        self._check_number(arrived.request)
        self._request_bytes += arrived.size
        if len(self._requests) >= MAX_PENDING_REQUESTS or self._request_bytes > MAX_PENDING_REQUEST_BYTE_LENGTH:
            raise IpcError('too many requests wait to be served', 'limit-exceeded')
        self._unanswered.add(arrived.request)
        self.offer(arrived)

    def offer(self, arrived: Arrived, is_first: bool = False) -> None:
        """Gives a value or request to somebody who waits for one, or queues it: `is_first` if it was taken already."""
        is_value = arrived.kind == FRAME_VALUE
        slots, queued = (self._value_slots, self._values) if is_value else (self._request_slots, self._requests)
        while slots:
            slot = slots.popleft()
            if not slot.is_done:
                slot.settle(arrived)
                return
        if not self._is_closed_here:
            queued.insert(0 if is_first else len(queued), arrived)
            if is_value:
                self._queued_bytes += arrived.size + 4096 * len(arrived.objects)
                self._queued_fds += arrived.fd_count
        self._cond.notify_all()

    def _apply_control(self, reader: Reader, fds: List[int], is_alone: bool) -> Points:
        """Applies a control block, up to the end of the message. Returns the points of the value."""
        control = Control(reader, len(fds) if is_alone else None)
        if control.has_page:
            self._accept_page(fds[0])
            fds.clear()
        self._apply_releases(control.released)
        self._apply_revocations(control.revoked)
        if control.forwards:
            self._apply_forwards(control.forwards, fds)
        for name in control.closed_pools:
            fd, pool = self._pool_fds.pop(name, -1), self._pools.pop(name, None)
            close_fds([fd] if fd >= 0 else [])
            if pool:
                releases_of(pool.device).add(pool.release)
        if control.begun:
            self._on_peer_begun(control.begun)
        if control.is_closing or control.is_done:
            self._begin_closing(ClosedError(f'this Peer is closed: {self.name} has closed the connection'))
        if control.is_done:
            self._exports.clear()
        return control.points

    def _apply_releases(self, released: Sequence[Tuple[int, bool, Points]]) -> None:
        for lease, is_final, points in released:
            exported = self._exports.get(lease)
            if exported is None:
                raise IpcError(f'lease {lease} was released, but is not in use')
            if points and self._peer_page is None:
                raise IpcError('received points before their page')
            if points and not self._peer_page.is_reached(points):  # type: ignore[union-attr]
                # What follows must not overtake the other end's work.
                try:
                    is_ordered = exported.stream is not None and self._let_wait(exported.device, exported.stream, points)
                except CudaError:
                    is_ordered = False  # The stream may be gone, or the context lost.
                if not is_ordered:
                    self._held += points
            if is_final and self._held:
                self._after_hold.append(lease)
            elif is_final:
                del self._exports[lease]

    def _apply_revocations(self, leases: List[int]) -> None:
        for lease in leases:
            if lease >= self._next_import:
                raise IpcError(f'lease {lease} was revoked, but was never sent')
            found = self._imports.get(lease)
            memory = found() if found else None
            if memory:
                memory.revoked_by = self.name
            elif lease in self._imports:
                self._revoked.add(lease)

    def _apply_forwards(self, asked: Sequence[Tuple[int, int, int]], fds: List[int]) -> None:
        """Keeps objects for third processes: until those close their ends of the links."""
        if len(self._forwarded) + len(asked) > 2048:
            raise IpcError('received links for other objects than were passed on')
        for at, (lease, _, _) in enumerate(asked):
            exported = self._exports.get(lease)
            fd = fds[at]
            if exported is None or file_type(fd)[0] != stat.S_IFSOCK:
                raise IpcError(f'lease {lease} was passed on without a link, or is not in use')
            link = socket.socket(fileno=os.dup(fd))
            is_link = link.type == socket.SOCK_SEQPACKET and link.family == socket.AF_UNIX
            if not is_link or credentials(link)[0] != self.pid:
                close_fds([link.detach()])
                raise IpcError(f'lease {lease} was passed on with a link that {self.name} has not made')
            self._forwarded[link.fileno()] = (link, exported)
            self._poll.register(link.fileno(), select.POLLIN)
            try:
                link.send(b'\x01', socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                pass  # It is gone, and its end of the link: the poll tells.
        close_fds(fds)

    # ---- What each end has begun ----

    def begin(self, kind: int) -> None:
        """Tells the other end that this one receives values, or serves requests. Call it before it waits for any."""
        what = BEGUN_RECEIVING if kind == FRAME_VALUE else BEGUN_SERVING
        if not self._begun & what:
            with self._cond:
                begun = self._begun | what
                self._tell_begun(begun & ~BEGUN_IGNORING_VALUES if begun & BEGUN_RECEIVING else begun)

    def _tell_begun(self, begun: int) -> None:
        self._begun = begun
        if self.end is None:
            self._post(FRAME_CONTROL, bytes((CONTROL_BEGUN, begun)))

    def _watch_stuck(self) -> None:
        with self._cond:
            if not (self._are_requests_stuck() or self._are_values_stuck()):
                self._stuck_until = None
            elif self._stuck_until is None:
                self._stuck_until = time.monotonic() + READINESS_WAIT_MS / 1000

    def _is_waiting_for(self, kind: int) -> bool:
        slots = self._value_slots if kind == FRAME_VALUE else self._request_slots
        return self._waiting_for[kind] > 0 or any(not slot.is_done for slot in slots)

    def _are_requests_stuck(self) -> bool:
        """Whether requests wait for an end that waits for values, and has never served."""
        return not self._begun & BEGUN_SERVING and bool(self._requests) and not self._values and self._is_waiting_for(FRAME_VALUE)

    def _are_values_stuck(self) -> bool:
        """Whether values wait for an end that waits for requests, and has never received."""
        return self._begun == BEGUN_SERVING and bool(self._values) and not self._unanswered and self._is_waiting_for(FRAME_REQUEST)

    def _refuse_stuck(self) -> None:
        self._stuck_until = None
        if self._are_values_stuck():
            self._tell_begun(self._begun | BEGUN_IGNORING_VALUES)
        while self._requests and self._are_requests_stuck():
            arrived = self._requests.popleft()
            self._request_bytes -= arrived.size
            self._unanswered.discard(arrived.request)
            self._canceled.discard(arrived.request)
            self.discard(arrived)
            if self.end is None:
                self._post(FRAME_UNSERVED, NULL, request=arrived.request)

    def _on_peer_begun(self, begun: int) -> None:
        self._peer_begun = begun
        if begun & BEGUN_RECEIVING:
            self._confirm(None)
        elif begun & BEGUN_IGNORING_VALUES:
            error = self._not_received()
            self._confirm(error)
            for message in self._outgoing:
                # It is still sent, but nobody receives it.
                if message.slot:
                    message.slot.settle(error)

    def _confirm(self, result: Optional[Exception]) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for slot in unconfirmed:
            slot.settle(result)
        self._cond.notify_all()

    def _not_received(self) -> IpcError:
        return IpcError(f'{self.name} receives no values: it serves requests and has never called receive(). '
                        'Receive there, or send requests', 'not-received')  # fmt: skip

    def hint(self, kind: int) -> str:
        """Why a value or a request may still wait, for its time-out."""
        begun = self._peer_begun
        name, what = ('receive', BEGUN_RECEIVING) if kind == FRAME_VALUE else ('serve', BEGUN_SERVING)
        if kind == FRAME_REQUEST and begun & BEGUN_IGNORING_VALUES:
            return ': values wait there that it does not receive, and what comes behind them waits, too'
        if begun & what:
            return ''
        does = ('has neither received nor served yet' if not begun else 'serves requests and has never received'
                if begun & BEGUN_SERVING else 'receives values and has never served')  # fmt: skip
        return f': {self.name} {does}: does it call {name}()?'

    # ---- Sending ----

    def prepare(self, value: Any, stream: Any, deadline: Optional[Deadline] = None) -> Prepared:
        """Encodes a value and exports its GPU objects. Waits for the work on them, or returns points behind it."""
        until, (prepared, devices) = deadline or Deadline(None), self.encode(value, stream)
        for device in devices:
            wait_for_device(device, until)
        return prepared

    def encode(self, value: Any, stream: Any) -> Tuple[Prepared, List[Device]]:
        """As `prepare`, without waiting. Returns the devices whose work must be done before it is sent, too."""
        encoder = Encoder()
        encoder.write(value)
        if len(encoder.out) > MAX_VALUE_BYTE_LENGTH or len(encoder.objects) > MAX_VALUE_OBJECTS:
            raise ValueError(f'the value is too large: it may have 16 MiB, and {MAX_VALUE_OBJECTS} GPU objects')
        exported = [export(value, self) for value in encoder.objects]
        if sum(len(one.fds) + len(one.owned) for one in exported) > PACKET_FDS:
            raise ValueError(f'the value has more than {PACKET_FDS} descriptors')
        points: Points = []
        handle = None if stream is None else stream_handle(stream)
        # Events are the order themselves.
        devices = list({one.device for one in exported if one.device and one.fields[0] != KIND_EVENT})
        if handle is not None:
            for device in devices[:]:
                behind = self._points_behind(device, handle)
                if behind is not None:
                    points += behind
                    devices.remove(device)
        for one in exported:
            one.stream = handle if one.device else None
        return (encoder.out, exported, points), devices

    def send_later(self, value: Any, stream: Any, post: Callable[[Prepared], Any], on_error: Callable[[Exception], None]) -> 'Later':
        """Encodes a value now, and has `post` send it when the work on it is done, in the order of the calls. Does not wait."""
        later = Later(post, on_error)
        try:
            prepared, devices = self.encode(value, stream)
            with signals, self._cond:
                if self._later or devices:
                    later.prepared, later.devices = prepared, devices
                    self._later.append(later)
                    if len(self._later) == 1:
                        threading.Thread(target=self._send_later, name='cuffi sends', daemon=True).start()
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
                for device in later.devices:
                    device.synchronize()
            except Exception as failed:
                error = failed
            with self._cond:
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

    def send(self, prepared: Prepared, kind: int = FRAME_VALUE, request: int = 0, slot: Optional[Slot] = None) -> Outgoing:
        """Sends a value, or queues it. `slot` is settled when it was sent."""
        body, exported, points = prepared
        fds: List[int] = []
        owned: List[int] = []
        with signals, self._cond:
            if self.end is not None:
                raise again(self.end)
            if kind == FRAME_VALUE and self._peer_begun == BEGUN_SERVING | BEGUN_IGNORING_VALUES:
                raise self._not_received()
            first, shares = self._next_export, [(one, one.owned) for one in exported if one.owned]
            if exported:
                body += pack_double(first)
                for one in exported:
                    write_length(body, len(one.owned) + len(one.fds))
                    body.append(0)
                    write_length(body, len(one.fields))
                    body += one.fields
                    fds += one.owned
                    fds += one.fds
                    owned += one.owned
                    one.owned = []
                    self._exports[self._next_export] = one
                    self._next_export += 1
            self._send_page()
            releases = self._write_control(body, points)
            if slot and kind == FRAME_VALUE and self._peer_begun == BEGUN_SERVING:
                # Settled when the other end receives, or refuses.
                self._unconfirmed.append(slot)
                slot = None
            message = Outgoing(kind, request, body, fds, owned, slot)
            message.leases, message.releases, message.shares = range(first, self._next_export), releases, shares
            self._post_message(message)
            return message

    def take_back(self, message: Outgoing, slot: Slot) -> bool:
        """Takes a message back of which nothing was sent yet. Returns False if it is too late."""
        with signals, self._cond:
            if message.at or message not in self._outgoing:
                return False
            self._outgoing.remove(message)
            if slot in self._unconfirmed:
                self._unconfirmed.remove(slot)
            for one, one.owned in message.shares:
                one.undo()
            for lease in message.leases:
                self._exports.pop(lease, None)
            self._releases[:0] = message.releases
            self._close_if_unused()
            return True

    def _write_control(self, body: bytearray, points: Points = []) -> List[Tuple[int, bool, Points]]:
        """Returns the releases that it has written."""
        releases: List[Tuple[int, bool, Points]] = []
        if points:
            body.append(CONTROL_POINTS)
            write_points(body, points)
        if self._releases:
            releases, self._releases = self._releases[:MAX_LIST], self._releases[MAX_LIST:]
            body.append(CONTROL_RELEASED)
            write_length(body, len(releases))
            for lease, is_final, behind in releases:
                body += pack_double(lease)
                body.append(is_final)
                write_points(body, behind)
        return releases

    def _send_page(self) -> None:
        """Sends this end's counters before the first points."""
        if self._page_fd >= 0:
            fd, self._page_fd = self._page_fd, -1
            self._post(FRAME_CONTROL, bytes((CONTROL_TIMELINE_PAGE,)), (fd,), owned=[fd])

    def _send_releases(self) -> None:
        if self._is_socket_closed:
            self._releases = []
        while self._releases:
            self._send_page()
            body = bytearray()
            self._write_control(body)
            self._post(FRAME_CONTROL, body)

    def _post(self, kind: int, body: Union[bytes, bytearray], fds: Sequence[int] = (), request: int = 0,
              owned: Sequence[int] = ()) -> None:  # fmt: skip
        self._post_message(Outgoing(kind, request, body, fds, owned, None))

    def _post_message(self, message: Outgoing) -> None:
        self._outgoing.append(message)
        self._flush()
        if self._outgoing and self._is_read and not self._poll_events & select.POLLOUT:
            self._kick()

    def _flush(self) -> None:
        outgoing = self._outgoing
        while outgoing:
            message = outgoing[0]
            at, body, fds, owned, slot = message.at, message.body, message.fds, message.owned, message.slot
            length = len(body)
            if length > MAX_PART and not at and not self._has_room(length):
                return
            header = HEADER.pack(MAGIC, MAX_VERSION, message.kind, self._sent, length, at, message.request)
            frame = header + body if length <= MAX_PART else header + body[at : at + MAX_PART]
            is_lost = False
            try:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f'{len(fds)}i', *fds))] if fds and not at else []
                if not self._is_socket_closed:
                    self._socket.sendmsg((frame,), ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.ENOBUFS, errno.ETOOMANYREFS, errno.ENOMEM):
                    return
                # The other end is closed: what it has sent before is read first, and its end is seen there.
                is_lost = True
            message.at = at + MAX_PART
            if owned and not at:
                close_fds(list(owned))
                message.owned, message.shares = (), []
            if message.at < length:
                continue
            outgoing.popleft()
            self._sent = (self._sent + 1) & 0xFFFFFFFF
            if not slot:
                continue
            if is_lost:
                self._unsent.append(slot)
            else:
                slot.settle(self.end if self._is_socket_closed else None)

    def _has_room(self, length: int) -> bool:
        """Whether the frames of a message fit into the socket, so that it need not be left half sent. None above 3/4 of it do."""
        frames = -(-length // MAX_PART) * _FRAME_IN_SOCKET
        if self._is_socket_closed or frames > self._socket_size * 3 // 4:
            return True
        unread = struct.unpack('i', fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4)))[0]
        return unread + frames <= self._socket_size

    def _points_behind(self, device: Device, stream: int) -> Optional[Points]:
        """Points behind the work that is queued in a stream; none if it is done. None if the host must wait for it."""
        cuda = cuda_driver()
        with self._cond, device:
            if stream != LEGACY_STREAM and cuda.cuStreamQuery(stream) == 0:
                return []
            key = (device.ordinal, stream)
            has_counter = key in self._counters or len(self._counters) < COUNTER_COUNT
            if self._is_socket_closed or not has_counter:
                # Nobody could wait for points any more, or none is left for this stream.
                return None
            if self._page is None:
                self._page_fd = sealed_memory(PAGE_BYTE_LENGTH)
                self._page = SharedWords(self._page_fd)
            counter = self._counters.setdefault(key, [len(self._counters), 0])
            counter[1] += 1
            enqueue_store(self._page, counter[0], counter[1], stream_of(device, stream))
            return [(counter[0], counter[1])]

    # ---- Order ----

    def _accept_page(self, fd: int) -> None:
        """Maps the other end's counters. Nobody may take the memory away from under this process."""
        if self._peer_page or not is_sealed(fd, PAGE_BYTE_LENGTH):
            raise IpcError('received a second page of counters, or one that is not sealed memory of its size')
        try:
            self._peer_page = SharedWords(fd, PAGE_BYTE_LENGTH)
        except OSError as error:
            raise IpcError(f'received a page of counters that cannot be written: {error.strerror}') from None
        self._is_peer_page_fixed = seal_against_holes(fd)
        os.close(fd)

    def is_reached(self, points: Points) -> bool:
        return not points or self._peer_page is None or self._peer_page.is_reached(points)

    def _let_wait(self, device: Device, stream: int, points: Points) -> bool:
        """Makes a stream wait for points. Returns False if the host must wait, also as too many streams wait."""
        page = self._peer_page
        if page is None or not self._is_peer_page_fixed or self._is_gone:
            return False
        found = stream_of(device, stream)
        unreached = [(index, count) for index, count in points if not page.reached(index, count)]
        if not have_room_for_waits(found, len(unreached)):
            return False
        for index, count in unreached:
            # Noted before: a wait that nobody knows could block for ever.
            self._awaited[index] = max(count, self._awaited.get(index, 0))
            if not enqueue_wait(page, index, count, found):
                return False
        return True

    def _abandon_waits(self) -> int:
        """Frees the streams that wait for an ended process. Returns how many waits were not over."""
        page = self._peer_page
        if page is None:
            return 0
        open_waits = [index for index, count in self._awaited.items() if not page.is_reached([(index, count)])]
        for index in open_waits:
            page.words[index] = END_OF_WAITS
        return len(open_waits)

    # ---- Opening ----

    def open(self, arrived: Arrived, stream: Any, deadline: Deadline) -> Any:
        """Returns the value with its GPU objects, when the sender's work on them is done or `stream` waits for it."""
        self.begin_open(arrived, stream)
        self.finish_open(arrived, deadline)
        return arrived.take()

    def finish_open(self, arrived: Arrived, deadline: Deadline) -> None:
        """Waits until the sender's work is done. Raises TimeoutError, PeerGoneError."""
        if arrived.points or arrived.events:
            for pause in pauses(lambda: self.is_ready(arrived), deadline, "the sender's work"):
                time.sleep(pause)
                signals.check()

    def is_ready(self, arrived: Arrived) -> bool:
        if self.is_reached(arrived.points) and all(event.done for event in arrived.events):
            arrived.points = []
            while arrived.events:
                arrived.events.pop().close()
            return True
        if self._is_gone:
            raise PeerGoneError(f'{self.name} has ended before its work on what it had sent was done', self.pid)
        return False

    def begin_open(self, arrived: Arrived, stream: Any) -> None:
        """As `open`, once. If `is_ready` is false then, the host must wait."""
        if arrived.is_cut:
            self.discard(arrived)
            raise IpcError(f'the objects of a value of {self.name} were refused: {_NO_ROOM}', 'limit-exceeded')
        if arrived.refusal is not None:
            self.discard(arrived)
            why, code = arrived.refusal
            what = 'cannot be one of Python' if code == 'not-supported' else 'is refused'
            raise IpcError(f'a value of {self.name} {what}: {why}', code)
        if not arrived.objects:
            return
        handle = None if stream is None else stream_handle(stream)
        opened: List[Any] = []
        try:
            for data, fds, lease in arrived.objects:
                opened.append(self._open_object(arrived, data, fds, lease, handle))
                close_fds(fds)
            if handle is not None and arrived.points:
                devices = {one._device for one in opened if hasattr(one, '_device')}
                if devices and all(self._let_wait(device, handle, arrived.points) for device in devices):
                    arrived.points = []
        except BaseException:
            arrived.objects = arrived.objects[len(opened) :]
            self.discard(arrived)
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

    def _open_object(self, arrived: Arrived, data: bytes, fds: List[int], lease: int, stream: Optional[int]) -> Any:
        if lease in self._revoked:
            raise ClosedError(f'{self.name} has revoked what it had sent')
        fields = _descriptors.decode_known(data)
        if fields.kind in _HOST_KINDS:
            return _HOST_KINDS[fields.kind](fields).open(self, fds, lease)
        if this_process().has_made(fields):
            return self._open_own(fields, lease)
        device = device_by_uuid(fields.exporter.device)
        if fields.kind == KIND_EVENT:
            check_exporter(fields, self._allow_other_users)
            return self._open_event(fields, device, (self, lease, data))
        if fields.read_only and fields.kind != KIND_VIRTUAL:
            raise IpcError('memory that the driver always maps for writing was sent as read-only', 'not-supported')
        if fields.ready_event:
            event = self._open_event(fields.ready_event, device)
            if stream is None:
                arrived.events.append(event)
            else:
                event.wait(stream)
        mapping = self._map(fields, device, fds)
        if mapping is None:
            self._imports.pop(lease, None)
            self._release(lease)
            return ImportedPool(fields.exporter.device)
        if fields.byte_offset + fields.byte_length > mapping.byte_length:
            mapping.release()
            raise IpcError(f'a range ends at byte {fields.byte_offset + fields.byte_length} of memory that has '
                           f'{mapping.byte_length}', 'invalid-descriptor')  # fmt: skip
        memory = ReceivedMemory(self, lease, fields, mapping)
        self._imports[lease] = weakref.ref(memory)
        if lease in self._revoked:
            memory.revoked_by = self.name
        read_only = fields.read_only or mapping.is_read_only
        return array_of(memory, memory.address, fields.layout, fields.byte_length, read_only, stream)

    def _map(self, fields: Fields, device: Device, fds: List[int]) -> Optional[Mapping]:
        if fields.kind == KIND_LEGACY:
            key: Tuple[Any, ...] = (KIND_LEGACY, device.ordinal, fields.handle)
            return map_once(key, fields.buffer_id, lambda: map_legacy(self._checked(fields), device))
        if fields.kind == KIND_VIRTUAL:
            if not all(map(is_driver_fd, fds)):
                raise IpcError("a descriptor that came with memory is not one of the driver's", 'no-file-descriptor')
            if len(fds) != len(fields.pieces):
                raise IpcError(f'virtual memory of {len(fields.pieces)} pieces came with {len(fds)} descriptors',
                               'no-file-descriptor')  # fmt: skip
            # The mark of memory that is shared for reading only.
            read_only = fields.read_only or any(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND for fd in fds)
            with locks.mappings:
                key = virtual_key(fields, device, fds, read_only)
                return map_once(key, 0, lambda: map_virtual(self._checked(fields), device, fds, read_only), fds)
        with locks.mappings:
            pool = self._pools.get(fields.pool)
            if pool is None:
                exporter, fd = self._checked(fields).exporter, self._pool_fds.pop(fields.pool, -1)
                try:
                    if fd < 0 or not is_driver_fd(fd):
                        raise IpcError('memory of a pool came without the descriptor of the pool', 'no-file-descriptor')
                    pool = self._pools[fields.pool] = OpenPool(device, fd, exporter)
                finally:
                    close_fds([fd] if fd >= 0 else [])
            if fields.handle is None:
                return None
            # The driver finds memory by its pool and handle; what the sender calls the pool proves nothing.
            found = pool
            return map_once((KIND_POOL, found.handle, fields.handle), fields.generation, lambda: map_pool(self._checked(fields), found))

    def _checked(self, fields: Fields) -> Fields:
        check_exporter(fields, self._allow_other_users)
        return fields

    def _open_own(self, fields: Fields, lease: int) -> Any:
        """Returns what was sent to the other end and came back."""
        for exported in list(self._exports.values()):
            known = _descriptors.decode_known(exported.fields)
            if known.kind in _HOST_KINDS:
                continue
            if KIND_EVENT in (known.kind, fields.kind):
                if known.kind == fields.kind and known.handle == fields.handle:
                    self._release(lease)
                    return CudaEvent._of(exported.keep)
                continue
            inside = known.byte_offset <= fields.byte_offset and (
                fields.byte_offset + fields.byte_length <= known.byte_offset + known.byte_length)
            if known.allocation != fields.allocation or not inside:
                continue
            address = exported.begin + fields.byte_offset - known.byte_offset
            memory = BorrowedMemory(exported.device, address, fields.byte_length, exported.keep)
            self._release(lease)
            return array_of(memory, address, fields.layout, fields.byte_length, fields.read_only, None)
        raise IpcError(f'{self.name} sent a descriptor of memory of this very process that it does not hold', 'same-process')

    def _open_event(self, fields: Fields, device: Device,
                    received: Optional[Tuple['Connection', int, bytes]] = None) -> CudaEvent:  # fmt: skip
        handle = Handle64((ctypes.c_ubyte * 64)(*fields.handle))
        with device, opening(fields.exporter):
            return CudaEvent._of(EventHandle(device, read_number('cuIpcOpenEventHandle', handle), received))

    # ---- Giving back ----

    def _release(self, lease: int) -> None:
        """Tells the other end that nothing here uses what it has sent."""
        with self._cond:
            link = self._links.pop(lease, -1)
            if link >= 0:
                close_fds([link])
            self._revoked.discard(lease)
            self._imports.pop(lease, None)
            if self._is_socket_closed:
                if self._is_read:
                    # Its thread may be over.
                    self._kick()
            else:
                # It goes with the next value, or when somebody reads.
                self._releases.append((lease, True, []))
                if self._is_closing:
                    self._send_releases()
                    self._close_if_unused()
                elif self._is_read or len(self._releases) >= MAX_LIST:
                    self._kick()

    def give_back_later(self, lease: int, mapping: Optional[Mapping], stream: Optional[int]) -> None:
        """As `give_back`, from anywhere: objects may be collected in the middle of any work."""
        self._given_back.append((lease, mapping, stream))
        if self._is_read:
            self._kick()

    def give_back(self, may_wait: bool = False) -> None:
        """Unmaps what nobody refers to any more, and tells the other end: behind the work that may use it.

        :param may_wait: whether this thread may wait for that work, unless it stands behind a wait for another process.
            Whoever reads must not: what is waited for may need a message
        """
        is_free = may_wait and bool(self._given_back) and not waiting_streams()
        while self._given_back:
            try:
                lease, mapping, stream = self._given_back.popleft()
            except IndexError:
                break
            if mapping is None:
                self._finish(lease, None)
                continue
            points: Optional[Points] = None
            try:
                if stream is not None:
                    points = self._points_behind(mapping.device, stream or LEGACY_STREAM)
                elif is_free:
                    mapping.device.synchronize()
                    points = []
            except CuffiError:
                pass  # The context is lost: nothing runs in it.
            if points is None or (not points and not is_free and not mapping.release_unless_last()):
                self._finish_later(lease, mapping)
            elif points:
                with self._cond:
                    self._releases.append((lease, False, points))
                    self._behind_streams.append((points, lease, mapping))
                    self._send_releases()
                    self._kick()
            else:
                self._finish(lease, mapping if is_free else None)
        if self._behind_streams:
            with self._cond:
                pending, self._behind_streams = self._behind_streams, []
            for points, lease, mapping in pending:
                if self._page and not self._page.is_reached(points):
                    self._behind_streams.append((points, lease, mapping))
                elif mapping.release_unless_last():
                    self._finish(lease, None)
                else:
                    self._finish_later(lease, mapping)

    def _finish_later(self, lease: int, mapping: Mapping) -> None:
        releases_of(mapping.device).add(lambda: self._finish(lease, mapping))

    def _finish(self, lease: int, mapping: Optional[Mapping]) -> None:
        try:
            if mapping:
                mapping.release()
        except CuffiError:
            pass  # The context is lost, and the mapping with it.
        self._release(lease)

    def discard(self, arrived: Arrived) -> None:
        """Releases what nobody takes."""
        objects, arrived.objects = arrived.objects, []
        for _, fds, lease in objects:
            close_fds(fds)
            self._release(lease)

    # ---- The end ----

    def close(self, why: str = 'close() was called') -> None:
        with signals, self._cond:
            self._is_closed_here = True
            self._begin_closing(ClosedError(f'this Peer is closed: {why}'))
            for waiting in (self._values, self._requests):
                while waiting:
                    self.discard(waiting.popleft())
            self._close_if_unused()
            self._kick()
            self._cond.notify_all()

    def fail(self, error: Exception) -> None:
        """Ends the connection because of what the other end did."""
        with self._cond:
            self._finish_with(error)
            self._close_socket()

    def _finish_with(self, error: Exception) -> None:
        if self.end is None:
            self.end = error
        for slot in (*self._value_slots, *self._request_slots, *self._asked.values(), *self._unconfirmed):
            slot.settle(self.end)
        self._unconfirmed.clear()
        self._value_slots.clear()
        self._request_slots.clear()
        self._asked.clear()
        for cancel in list(self._cancels.values()):
            cancel()
        self._cond.notify_all()

    def _begin_closing(self, error: ClosedError) -> None:
        self._finish_with(error)
        if not self._is_closing and not self._is_socket_closed:
            self._is_closing = True
            self._send_releases()
            self._post(FRAME_CONTROL, bytes((CONTROL_CLOSING,)))

    def _close_if_unused(self) -> None:
        if not self._is_closing or self._is_socket_closed or self._outgoing:
            return
        if self._exports or self._imports or self._given_back or self._behind_streams:
            return
        self._post(FRAME_CONTROL, bytes((CONTROL_DONE,)))
        self._close_socket()

    def _close_socket(self) -> None:
        if self._is_socket_closed:
            return
        self._is_socket_closed = True
        if self._poll_events:
            self._poll.unregister(self._fd)
        self._poll_events = 0
        self._flush()
        for slot in self._unsent:
            slot.settle(self.end)
        self._socket.close()
        close_fds(self._part_fds)
        close_fds(self._links.values())
        self._part_fds, self._parts, self._links = [], [], {}
        self._cond.notify_all()
        # Whoever polls does so without the socket.
        self._kick()

    def _on_socket_end(self) -> None:
        """The end of a process comes soon after that of its socket, and tells more."""
        if self._is_gone or self._gone_until is not None:
            return
        if self._is_closing or self._pidfd < 0:
            self._on_closed()
        else:
            self._gone_until = time.monotonic() + _MAX_EXIT_S

    def _on_closed(self) -> None:
        """The other end is closed, and its process lives, as far as is known."""
        self._gone_until = None
        self._finish_with(
            ClosedError(f'this Peer is closed: {self.name} has closed the connection')
            if self._has_met else
            IpcError(f'{self.name} has closed the connection without a word: it has refused this process, or needs an earlier '
                     'version of cuffi'))  # fmt: skip
        self._close_socket()
        if self._pidfd < 0:
            self._on_gone()

    def _on_gone(self) -> None:
        """The other process has ended: it holds nothing any more."""
        if self._is_gone:
            return
        self._is_gone, self._gone_until = True, None
        if self._pidfd >= 0:
            self._poll.unregister(self._pidfd)
        while not self._is_socket_closed and self._read():
            pass
        waits = self._abandon_waits()
        after = f'; {waits} waits for its work were abandoned' if waits else ' without closing the connection'
        self._finish_with(PeerGoneError(f'{self.name} has ended{after}', self.pid))
        self._exports.clear()
        self._close_socket()

    def _is_over(self) -> bool:
        """Whether nothing is left to do for the thread of this connection."""
        is_lent = (self._exports and not self._is_gone) or self._forwarded
        is_held = self._imports or self._given_back or self._behind_streams
        return self._is_socket_closed and not self._is_read and not is_lent and not is_held

    def _discard(self) -> None:
        """Ends what needs no other process."""
        connections.discard(self)
        until = time.monotonic() + (REPAIR_S if self._is_gone and self._awaited else 0)
        while time.monotonic() < until:
            # A GPU may still do what the ended process had queued.
            self._abandon_waits()
            time.sleep(0.02)
        with locks.mappings:
            pools, self._pools = list(self._pools.values()), {}
            close_fds(self._pool_fds.values())
            self._pool_fds.clear()
        for one in (*pools, self._page, self._peer_page):
            try:
                if isinstance(one, OpenPool):
                    one.release()
                elif one:
                    one.close()
            except CuffiError:
                pass  # The context is lost.
        self._close_own_fds()

    def abandon(self) -> None:
        """In a child by fork: closes what it has inherited, and says nothing."""
        self._cond, self._wake_lock = threading.Condition(threading.RLock()), threading.RLock()
        self._is_socket_closed = self._is_closing = self._is_closed_here = self._is_gone = True
        self.end = ClosedError('this Peer is closed: it belongs to the process that this one was forked from')
        self._waiting, self._is_read = 0, False
        self._outgoing.clear()
        self._later.clear()
        self._socket.close()
        self._close_own_fds()

    def drain_at_exit(self) -> None:
        """Before this process ends: the other one may wait for work that is still running."""
        if has_failed():
            # As a killed one: its work may itself wait for what never comes.
            return
        page = self._page
        if page and not page.is_reached([(index, count) for index, count in self._counters.values()]):
            for device in {ordinal for ordinal, _ in self._counters}:
                try:
                    all_devices()[device].synchronize()
                except CuffiError:
                    pass  # The context is lost.
        # A closing message would make an orderly end of an exit with any code. A parent sees the end of this
        # process, until which its socket stays open.
        if not self._is_of_parent:
            self.close()


connections: 'set[Connection]' = set()
# How what no device owns is opened.
_HOST_KINDS: Dict[int, Callable[[Fields], Any]] = {
    KIND_TIMELINE: TimelineFields, KIND_SIGNALER: TimelineFields, KIND_PINNED: PinnedFields, KIND_CHANNEL: ChannelFields,
}  # fmt: skip
