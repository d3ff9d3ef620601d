"""Connecting: to the parent, by a name, and listening."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import fcntl
import math
import os
import select
import socket
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional

from ._connection import Connection
from ._deadlines import seconds_of, turn_if_due
from ._errors import ClosedError, IpcError, PeerGoneError
from ._files import credentials
from ._owner import Context
from ._peer import Peer
from ._process import locks
from ._protocol import PARENT_VARIABLE

_parent: Optional[Peer] = None


def parent() -> Peer:
    """Returns the process that started this one with `spawnPython` or `spawnPeer`.

    Raises IpcError if none did, or if no descriptor or thread is left; it can then be called again.
    """
    global _parent
    with locks.state:
        if _parent is not None:
            return _parent
        # Children of this process would inherit the variable, but not the descriptor.
        said = os.environ.pop(PARENT_VARIABLE, '')
        fd, _, inode = said.partition(':')
        number = -1
        try:
            found = os.fstat(int(fd))
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == int(inode):
                number = int(fd)
        except (ValueError, OverflowError, OSError):
            pass  # What the variable says is not a socket of this process.
        if number < 0:
            raise IpcError('this process was not started by spawnPython(): it has no parent()', 'no-parent')
        sock = socket.socket(fileno=number)
        sock.set_inheritable(False)
        try:
            connection = Connection(sock, False)
        except BaseException:
            # The next call tries again.
            sock.detach()
            os.environ[PARENT_VARIABLE] = said
            raise
        connection.is_of_parent = True
        _parent = Peer(connection)
        _end_quietly_with(_parent)
    return _parent


# The name in Node.
parent_peer = parent


def _end_quietly_with(parent: Peer) -> None:
    """Makes the end of the parent, if nothing here handles it, end this process without a traceback: one line if it failed."""
    before, connection = sys.excepthook, parent._connection

    def hook(kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        end = connection.end
        is_the_end = type(error) is type(end) and str(error) == str(end) and not connection.is_closed_here
        if before is not sys.__excepthook__ or not is_the_end or os.environ.get('CUFFI_TRACE') == '1':
            before(kind, error, trace)
        elif isinstance(error, PeerGoneError):
            print(f'cuffi: this process ends because its parent has ended: {error}', file=sys.stderr)

    sys.excepthook = hook


def _address_of(name: object) -> tuple[str, bool]:
    """The address of a name for the kernel, and whether it is in the directory of this user alone."""
    if not isinstance(name, str) or name in ('', '.', '..') or '\0' in name:
        raise ValueError(f'{name!r} is not a valid socket name')
    if name.startswith('@'):
        return '\0' + name[1:], False
    if '/' in name:
        return os.path.abspath(name), False
    runtime = os.environ.get('XDG_RUNTIME_DIR', '')
    if runtime.startswith('/') and os.path.exists(runtime):
        directory = os.path.join(runtime, 'cuffi')
    else:
        directory = os.path.join(tempfile.gettempdir(), f'cuffi-{os.geteuid()}')
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise IpcError(f'{directory} is not a directory of user {os.geteuid()} alone (mode 0700): correct its owner and mode, or remove it')
    return os.path.join(directory, name), True


def _trust(sock: socket.socket, allow_other_users: bool) -> None:
    pid, uid, _ = credentials(sock)
    if uid != os.geteuid() and not allow_other_users:
        raise IpcError(f"process {pid} runs as user {uid}, not as the user of this process: allow it with allow_other_users=True",
                       'other-user')  # fmt: skip


def _peer_over(sock: socket.socket, allow_other_users: bool) -> Peer:
    """Owns the socket. Raises IpcError if the other end cannot be trusted, or no descriptor or thread is left."""
    try:
        _trust(sock, allow_other_users)
        return Peer(Connection(sock, allow_other_users))
    except BaseException:
        sock.close()
        raise


def connect(name: str, *, timeout: Optional[float] = None, allow_other_users: bool = False) -> Peer:
    """Connects to a process that listens by this name, in Node or Python. Raises IpcError if none does.

    :param name: a plain name, a path, or `@name` in the abstract namespace
    :param timeout: for how many seconds to wait until somebody listens; then TimeoutError
    """
    address, _ = _address_of(name)
    until = time.monotonic() + (0 if timeout is None else seconds_of(timeout))
    while True:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise IpcError(f'cannot connect to {name}: {error.strerror}') from None
        try:
            # One whose queue is full would block for ever.
            sock.setblocking(False)
            sock.connect(address)
            break
        except OSError as error:
            sock.close()
            if error.errno == errno.EAGAIN and timeout is None:
                raise IpcError(f'cannot connect to {name}: too many processes wait there until it accepts them: '
                               'timeout=SECONDS waits for that') from None  # fmt: skip
            is_nobody = error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)
            if not is_nobody or timeout is None:
                code = 'not-listening' if is_nobody else 'ipc-failed'
                reason = errno.errorcode.get(error.errno or 0, error.errno)
                why = f'nobody listens there ({reason}); timeout=SECONDS waits for one' if is_nobody else error.strerror or error
                raise IpcError(f'cannot connect to {name}: {why}', code) from None
            if time.monotonic() >= until:
                raise TimeoutError(f'connecting to {name} took more than {timeout} s: nobody listens there: start the '
                                   'process that calls listen()') from None  # fmt: skip
            time.sleep(0.01)
    return _peer_over(sock, allow_other_users)


class Listener(Context):
    """Accepts connections by a name. `with listener:` closes it; connections that it accepted stay open."""

    def __init__(self, name: str, allow_other_users: bool) -> None:
        address, _ = _address_of(name)
        self._path = None if address.startswith('\0') else address
        self._allow_other_users = allow_other_users
        self._socket = sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        is_bound = False
        try:
            # The file gets the mode of its descriptor.
            os.fchmod(sock.fileno(), 0o600)
            try:
                sock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or self._path is None or not _remove_dead(self._path):
                    raise
                sock.bind(address)
            is_bound = True
            if self._path:
                self._file = os.lstat(self._path)
                if allow_other_users:
                    os.chmod(self._path, 0o666)
            sock.listen(128)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if is_bound and self._path:
                # Nobody would answer there.
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            is_used = error.errno == errno.EADDRINUSE
            why = 'another process listens there already' if is_used else error.strerror or error
            raise IpcError(f'cannot listen at {name}: {why}', 'address-in-use' if is_used else 'ipc-failed') from None
        atexit.register(self.close)
        listeners.add(self)

    @property
    def closed(self) -> bool:
        """Whether it no longer accepts."""
        return self._socket.fileno() < 0

    def accept(self, *, timeout: Optional[float] = None) -> Peer:
        """Waits for the next process. Those of other users are refused. Raises TimeoutError, ClosedError.

        If this process has no descriptor left for a connection, it raises IpcError, and goes on listening.
        """
        until = None if timeout is None else time.monotonic() + seconds_of(timeout)
        while True:
            peer = self._accept_now()
            if peer is not None:
                return peer
            left = 1.0 if until is None else min(1.0, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f'waiting for a process that connects took more than {timeout} s: start the one that calls connect()')
            waiting = select.poll()
            try:
                waiting.register(self._socket, select.POLLIN)
            except (ValueError, OSError):
                continue  # Another thread has closed it.
            waiting.poll(math.ceil(left * 1000))

    def _accept_now(self) -> Optional[Peer]:
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EBADF):
                raise self._closed_error() from None
            raise IpcError(f'a connection cannot be accepted: {error.strerror}') from None
        try:
            return _peer_over(sock, self._allow_other_users)
        except IpcError as error:
            if error.code == 'other-user':
                return None
            raise

    async def aaccept(self) -> Peer:
        """As `accept`."""
        await turn_if_due()
        loop = asyncio.get_running_loop()
        while True:
            peer = self._accept_now()
            if peer is not None:
                return peer
            # A descriptor of its own: others may wait as well.
            ready: asyncio.Future[None] = loop.create_future()
            try:
                fd = os.dup(self._socket.fileno())
            except OSError as error:
                if error.errno == errno.EBADF:
                    continue  # Another thread has closed it.
                raise IpcError(f'a connection cannot be waited for: {error.strerror}') from None
            loop.add_reader(fd, _settle, ready)
            try:
                await ready
            finally:
                loop.remove_reader(fd)
                os.close(fd)

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> Iterator[Peer]:
        while True:
            try:
                peer = self.accept()
            except ClosedError:
                return
            yield peer

    def close(self) -> None:
        """Stops accepting, and removes the name. The second call does nothing."""
        atexit.unregister(self.close)
        if self._socket.fileno() < 0:
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It wakes up a thread that accepts.
        self._socket.close()
        if self._path:
            try:
                found = os.lstat(self._path)
                if (found.st_dev, found.st_ino) == (self._file.st_dev, self._file.st_ino):
                    os.unlink(self._path)
            except OSError:
                pass  # Somebody else has removed it.


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _remove_dead(path: str) -> bool:
    """Removes the socket that a killed process has left. The lock is that of cuffi in Node."""
    lock = os.path.join(os.path.dirname(path), f'.{os.path.basename(path)}.cuffi-lock')
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            probe.setblocking(False)
            probe.connect(path)
            return False
        except BlockingIOError:
            return False
        except ConnectionRefusedError:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                return False
            os.unlink(path)
            return True
        except FileNotFoundError:
            return True
        finally:
            probe.close()
            os.unlink(lock)
    finally:
        os.close(fd)


def listen(name: str, *, allow_other_users: bool = False) -> Listener:
    """Listens by a name, to which Node and Python connect. Raises IpcError if the name is in use.

    >>> with cuffi.listen('render') as listener:
    ...     for peer in listener: ...
    """
    return Listener(name, allow_other_users)
