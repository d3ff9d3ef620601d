"""One end of a connection: its socket, who reads it, and how it ends."""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._deadlines import Deadline
from ._errors import ClosedError, CuffiError, IpcError, PeerGoneError
from ._exports import Exports
from ._files import FD_SPACE, RECEIVE_FLAGS, close_fds, received_fds, start_closing
from ._frames import FrameReader, hello
from ._imports import Imports
from ._inbox import Inbox
from ._order import Order
from ._outbox import Outbox
from ._peer_process import PeerProcess
from ._process import has_failed, start_thread
from ._protocol import CONTROL_CLOSING, CONTROL_DONE, FRAME_CONTROL, PACKET_BYTE_LENGTH
from ._readiness import Readiness
from ._signals import signals
from ._waiter import again
from ._waits import REPAIR_S

if TYPE_CHECKING:
    from ._devices import Device
    from ._words import Points

# A thread that has just received probably receives again, faster than the connection's own thread would.
_IDLE_S = 0.005
# The system counts milliseconds in 32 bits.
_MAX_POLL_S = 86_400.0
# How often a wait that has no time left asks another thread that reads to look.
_MAX_LOOKS = 3
# As in Node: only the end of the process tells a crash from a close.
_MAX_EXIT_S = 2.0
_POLLIN, _POLLOUT = select.POLLIN, select.POLLOUT
# As int: the flags of `socket` are slow.
_TRUNCATED, _FDS_TRUNCATED = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)

connections: set[Connection] = set()


class Connection:
    """One end of a connection. Whoever waits reads it; its own thread does while nobody waits.

    `mutex` is held while any part of it is changed: its parts have no locks of their own.
    """

    def __init__(self, sock: socket.socket, allow_other_users: bool) -> None:
        """Owns the socket, unless it raises IpcError: then the other end has received nothing."""
        self.allow_other_users = allow_other_users
        self._socket, self._fd = sock, sock.fileno()
        sock.setblocking(False)
        self.mutex = threading.RLock()
        # Notified when something has happened that another thread may wait for.
        self.cond = threading.Condition(self.mutex)
        self._wake_lock = threading.RLock()
        self.poll = select.poll()
        self._poll_events = 0
        self._wake_read = self._wake_write = -1
        self._process = process = PeerProcess(sock, self.poll)
        self.pid, self.uid, self.gid, self.name, self.started = process.pid, process.uid, process.gid, process.name, process.started
        # Who reads.
        self.is_read = self._is_read_by_own_thread = self._is_kicked = False
        self._waiting, self._last_wait = 0, 0.0
        # For how long a wait polls before it sleeps.
        self.busy_poll_s = 0.0
        # The end.
        self.end: Optional[Exception] = None
        self.is_closing = self.is_closed_here = self.is_socket_closed = self.is_gone = self.is_dropped = False
        # A parent learns how this process exits.
        self.is_of_parent = False
        # Until when the end of the process may follow that of its socket.
        self._gone_until: Optional[float] = None
        self._frames = FrameReader()
        self.order, self.readiness = Order(), Readiness(self)
        try:
            self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self.poll.register(self._wake_read, _POLLIN)
            self.inbox, self.outbox = Inbox(self), Outbox(self, sock)
        except OSError as error:
            self._close_own_fds()
            raise IpcError(f'a connection cannot be made: {error.strerror}') from None
        self.imports, self.exports = Imports(self), Exports(self)
        # The thread sends nothing without the mutex, so the first frame comes first.
        with self.mutex:
            try:
                start_closing()
                self._thread = start_thread(self._run, self.name)
            except IpcError:
                self._close_own_fds()
                raise
            try:
                sock.send(hello(), socket.MSG_NOSIGNAL)
            except OSError:
                pass  # It is gone. What it has left is still read.
        connections.add(self)

    def end_of_process(self) -> int:
        """A new descriptor that can be read once the other process has ended; -1 if it has. Raises OSError if there is none."""
        return self._process.end(self.is_gone)

    def _close_own_fds(self) -> None:
        self.order.close_page_fd()
        self._process.close()
        with self._wake_lock:
            fds = (self._wake_read, self._wake_write)
            self._wake_read = self._wake_write = -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    # ---- Reading ----

    def wait(self, is_done: Callable[[], bool], deadline: Deadline, what: Any, kind: int = 0) -> None:
        """Waits in this thread, and reads meanwhile. Raises TimeoutError. The caller puts off signals.

        :param kind: FRAME_VALUE or FRAME_REQUEST, if that is what it waits for
        """
        mutex, readiness, looks = self.mutex, self.readiness, 0
        if kind:
            readiness.begin(kind)
        with mutex:
            if is_done():
                return
            self._waiting += 1
            readiness.waiting_for[kind] += 1
            if self.is_read and readiness.is_stuck:
                # The thread that reads must refuse them in time.
                self.kick()
        begun, wake = time.monotonic(), signals.wake_by(self.kick)
        try:
            while True:
                if signals.came:
                    signals.check()
                with mutex:
                    if is_done():
                        return
                    left = deadline.left_or_none()
                    if left is None and looks >= _MAX_LOOKS:
                        deadline.left(what)
                    if self.is_read or self.is_socket_closed:
                        if self._is_read_by_own_thread or left is None:
                            self.kick()
                        looks += left is None
                        self.cond.wait(0.01 if left is None else min(left, 0.05))
                        continue
                    self.is_read = True
                try:
                    # What has arrived is looked at even if no time is left.
                    if not self._step(left or 0, self.busy_poll_s) and left is None:
                        looks = _MAX_LOOKS
                finally:
                    with mutex:
                        self.is_read = False
                        if self._waiting > 1:
                            # It may have come for them.
                            self.cond.notify_all()
        finally:
            signals.wake_by(wake)
            with mutex:
                self._waiting -= 1
                readiness.waiting_for[kind] -= 1
                self._last_wait = time.monotonic()
                if self._waiting or self._last_wait - begun > 0.02:
                    self.cond.notify_all()

    def _run(self) -> None:
        """Reads while nobody waits, so that what the other end gives back is freed."""
        while True:
            with self.mutex:
                if self._is_over():
                    break
                if self.is_dropped and not self.is_closed_here:
                    self.close()
                if (self.imports.given_back or self.is_closing) and not self.is_read:
                    self._last_wait = 0.0
                is_needed = not self.is_read and not self._waiting and self.inbox.is_awaited_by_tasks
                rest = 0.05 if self.is_read or self._waiting else self._last_wait + _IDLE_S - time.monotonic()
                if rest > 0 and not is_needed:
                    self.cond.wait(rest)
                    continue
                self.is_read = self._is_read_by_own_thread = True
            try:
                self._step(math.inf)
            except Exception as error:  # What another process sends must not end this thread without a word.
                self.fail(IpcError(f'the connection to {self.name} was closed: {error}'))
            finally:
                with self.mutex:
                    self.is_read = self._is_read_by_own_thread = False
                    self.cond.notify_all()
        self._discard()

    def kick(self) -> None:
        """Ends the poll of the thread that reads."""
        # Its number may come to be that of another file: nobody closes it meanwhile.
        with self._wake_lock:
            if self._wake_write >= 0 and not self._is_kicked:
                self._is_kicked = True
                os.write(self._wake_write, b'\0')

    def _step(self, timeout: float, busy_poll_s: float = 0.0) -> bool:
        """Waits for one thing to happen, and handles it. Returns whether something has. Only the thread that reads calls this."""
        imports, inbox, readiness = self.imports, self.inbox, self.readiness
        if self.exports.held:
            with self.mutex:
                self.exports.end_hold(self.is_gone)
        if imports.given_back or imports.behind_streams:
            imports.give_back()
        if imports.releases:
            with self.mutex:
                self.outbox.send_releases()
        if readiness.stuck_until is not None or inbox.requests or inbox.values:
            readiness.watch()
        if self._gone_until is not None or readiness.stuck_until is not None:
            until = min(each for each in (self._gone_until, readiness.stuck_until) if each is not None)
            timeout = max(0.0, min(timeout, until - time.monotonic()))
        milliseconds = None if timeout == math.inf else math.ceil(min(timeout, _MAX_POLL_S) * 1000)
        if self.exports.held or imports.behind_streams:
            time.sleep(0.0001)
            milliseconds = 0
        if self._poll_events != _POLLIN or self.outbox.queue or inbox.values or self.exports.held or self._gone_until is not None:
            self._register()
        events = self._poll_busily(min(busy_poll_s, timeout)) if busy_poll_s and milliseconds != 0 else None
        if not events:
            events = self.poll.poll(milliseconds)
        with self.mutex:
            for fd, event in events:
                if fd == self._fd:
                    if event & _POLLOUT:
                        self.outbox.flush()
                    if event & ~_POLLOUT and not self.is_socket_closed:
                        self._read()
                elif fd == self._wake_read:
                    with self._wake_lock:
                        os.read(fd, 4096)
                        self._is_kicked = False
                elif fd == self._process.pidfd:
                    self._on_gone()
                elif fd in self.exports.forwarded:
                    self.poll.unregister(fd)
                    self.exports.end_link(fd)
            if self._gone_until is not None and time.monotonic() >= self._gone_until:
                self._on_closed()
            if readiness.stuck_until is not None and time.monotonic() >= readiness.stuck_until:
                readiness.refuse_stuck()
            if self.is_closing:
                self.close_if_unused()
        if imports.given_back or imports.behind_streams:
            imports.give_back()
        return bool(events)

    def _poll_busily(self, duration: float) -> Any:
        """Looks again and again, without sleeping. Returns nothing if nothing has happened in time."""
        until, poll = time.monotonic() + duration, self.poll.poll
        while True:
            events = poll(0)
            if events or time.monotonic() >= until:
                return events

    def _register(self) -> None:
        if self.is_socket_closed:
            return
        is_held = (self.inbox.is_full and not self.is_closing) or self.exports.held or self._gone_until is not None
        events = (0 if is_held else _POLLIN) | (_POLLOUT if self.outbox.queue else 0)
        if events == self._poll_events:
            return
        # A socket without events would still report its end, over and over.
        if events and self._poll_events:
            self.poll.modify(self._fd, events)
        elif events:
            self.poll.register(self._fd, events)
        else:
            self.poll.unregister(self._fd)
        self._poll_events = events

    def _read(self) -> bool:
        """Reads one frame. Returns False if there is none."""
        try:
            data, controls, flags, _ = self._socket.recvmsg(PACKET_BYTE_LENGTH + 1, FD_SPACE, RECEIVE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            # It is told first that the other end has not read all; then comes what that end has sent.
            return True
        except OSError:
            data, controls, flags = b'', [], 0
        fds = received_fds(controls) if controls else []
        try:
            if flags & _TRUNCATED:
                raise IpcError('received a message that is too long')
            # There is room for as many descriptors as the kernel sends, but this process has none left for them.
            is_cut = flags & _FDS_TRUNCATED != 0
            if is_cut:
                close_fds(fds)
            if data:
                message = self._frames.add(data, fds, is_cut)
                if message is not None:
                    self.inbox.accept(message)
                return True
            self._on_socket_end()
        except BaseException as error:
            close_fds(fds)
            what = error if isinstance(error, CuffiError) else f'it sent an invalid message: {error!r}'
            code = error.code if isinstance(error, IpcError) else 'ipc-failed'
            self.fail(IpcError(f'the connection to {self.name} was closed: {what}', code))
            if not isinstance(error, Exception):
                raise
        return False

    # ---- What its parts tell it ----

    def on_arrival(self) -> None:
        """A value or a request was queued: another thread than the one that reads may wait for it."""
        if self._waiting > 1 or not self.is_read:
            self.cond.notify_all()

    def on_taken(self) -> None:
        """A value was taken: there may be room for more."""
        if self.is_read and not self._poll_events & _POLLIN:
            self.kick()

    def on_full_socket(self) -> None:
        """Something is queued: whoever reads must send it."""
        if self.is_read and not self._poll_events & _POLLOUT:
            self.kick()

    # ---- Order ----

    def points_behind(self, device: Device, stream: int) -> Optional[Points]:
        """As that of its order, from any thread."""
        with self.mutex:
            return self.order.points_behind(device, stream, self.is_socket_closed)

    def let_wait(self, device: Device, stream: int, points: Points) -> bool:
        """As that of its order. Returns False also if the other process has ended."""
        return not self.is_gone and self.order.let_wait(device, stream, points)

    # ---- The end ----

    def check_open(self) -> None:
        """Raises the end of the connection."""
        if self.end is not None:
            raise again(self.end)

    def close(self, why: str = 'close() was called') -> None:
        with signals, self.mutex:
            self.is_closed_here = True
            self.begin_closing(ClosedError(f'this Peer is closed: {why}'))
            self.inbox.discard_queued()
            self.close_if_unused()
            self.kick()
            self.cond.notify_all()

    def fail(self, error: Exception) -> None:
        """Ends the connection because of what the other end did."""
        with self.mutex:
            self._finish_with(error)
            self._close_socket()

    def _finish_with(self, error: Exception) -> None:
        if self.end is None:
            self.end = error
        self.inbox.end(self.end)
        for waiter in self.readiness.unconfirmed:
            waiter.settle(self.end)
        self.readiness.unconfirmed.clear()
        self.cond.notify_all()

    def begin_closing(self, error: ClosedError) -> None:
        """Ends sending and receiving. What is lent is still given back."""
        self._finish_with(error)
        if not self.is_closing and not self.is_socket_closed:
            self.is_closing = True
            self.outbox.send_releases()
            self.outbox.post(FRAME_CONTROL, bytes((CONTROL_CLOSING,)))

    def close_if_unused(self) -> None:
        """Closes the socket if it is closing, and nothing is lent any more."""
        if not self.is_closing or self.is_socket_closed or self.outbox.queue:
            return
        if self.exports.leases or self.imports.is_in_use:
            return
        self.outbox.post(FRAME_CONTROL, bytes((CONTROL_DONE,)))
        self._close_socket()

    def _close_socket(self) -> None:
        if self.is_socket_closed:
            return
        self.is_socket_closed = True
        if self._poll_events:
            self.poll.unregister(self._fd)
        self._poll_events = 0
        self.outbox.end()
        self._socket.close()
        self._frames.close()
        self.cond.notify_all()
        # Whoever polls does so without the socket.
        self.kick()

    def _on_socket_end(self) -> None:
        """The end of a process comes soon after that of its socket, and tells more."""
        if self.is_gone or self._gone_until is not None:
            return
        if self.is_closing or self._process.pidfd < 0:
            self._on_closed()
        else:
            self._gone_until = time.monotonic() + _MAX_EXIT_S

    def _on_closed(self) -> None:
        """The other end is closed, and its process lives, as far as is known."""
        self._gone_until = None
        if self._frames.has_met:
            self._finish_with(ClosedError(f'this Peer is closed: {self.name} has closed the connection'))
        else:
            self._finish_with(
                IpcError(
                    f'{self.name} has closed the connection without a word: it has refused this process, or needs an earlier '
                    'version of cuffi'
                )
            )
        self._close_socket()
        if self._process.pidfd < 0:
            self._on_gone()

    def _on_gone(self) -> None:
        """The other process has ended: it holds nothing any more."""
        if self.is_gone:
            return
        self.is_gone, self._gone_until = True, None
        if self._process.pidfd >= 0:
            self.poll.unregister(self._process.pidfd)
        while not self.is_socket_closed and self._read():
            pass
        waits = self.order.abandon_waits()
        after = f'; {waits} waits for its work were abandoned' if waits else ' without closing the connection'
        self._finish_with(PeerGoneError(f'{self.name} has ended{after}', self.pid))
        self.exports.leases.clear()
        self._close_socket()

    def _is_over(self) -> bool:
        """Whether nothing is left to do for the thread of this connection."""
        is_lent = (self.exports.leases and not self.is_gone) or self.exports.forwarded
        return self.is_socket_closed and not self.is_read and not is_lent and not self.imports.is_in_use

    def _discard(self) -> None:
        """Ends what needs no other process."""
        connections.discard(self)
        until = time.monotonic() + (REPAIR_S if self.is_gone and self.order.awaited else 0)
        while time.monotonic() < until:
            # A GPU may still do what the ended process had queued.
            self.order.abandon_waits()
            time.sleep(0.02)
        ends: list[Callable[[], None]] = [pool.release for pool in self.imports.close()]
        ends += [words.close for words in (self.order.own, self.order.theirs) if words]
        for end in ends:
            try:
                end()
            except CuffiError:
                pass  # The context is lost.
        self._close_own_fds()

    def abandon(self) -> None:
        """In a child by fork: closes what it has inherited, and says nothing."""
        self.mutex, self._wake_lock = threading.RLock(), threading.RLock()
        self.cond = threading.Condition(self.mutex)
        self.is_socket_closed = self.is_closing = self.is_closed_here = self.is_gone = True
        self.end = ClosedError('this Peer is closed: it belongs to the process that this one was forked from')
        self._waiting, self.is_read = 0, False
        self.outbox.abandon()
        self._socket.close()
        self._process.abandon()
        self._close_own_fds()

    def drain_at_exit(self) -> None:
        """Before this process ends: the other one may wait for work that is still running."""
        if has_failed():
            # As a killed one: its work may itself wait for what never comes.
            return
        self.order.drain()
        # A closing message would make an orderly end of an exit with any code. A parent sees the end of this
        # process, until which its socket stays open.
        if not self.is_of_parent:
            self.close()
