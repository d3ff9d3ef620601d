"""Descriptors of files: what another process may have sent, and what this one shares."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import select
import socket
import stat
import struct
import threading
from collections.abc import Generator, Iterable
from typing import Any, Optional

from ._errors import IpcError
from ._process import locks, start_thread
from ._protocol import PACKET_FDS, PAGE_BYTE_LENGTH

libc = ctypes.CDLL(None, use_errno=True)
_SCM_PIDFD, _O_PATH, _HUGETLBFS_MAGIC, F_SEAL_FUTURE_WRITE = 4, 0o10000000, 0x958458F6, 0x10
_SYS_KCMP, _SYS_STATX = {'x86_64': (312, 332), 'aarch64': (272, 291)}.get(os.uname().machine, (-1, -1))
_NVIDIA_MAJOR, _NULL_MAJOR = 195, 1
# As int: the flags of `socket` are slow.
SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
FD_SPACE = socket.CMSG_SPACE(4 * PACKET_FDS)


def file_type(fd: int) -> tuple[int, int]:
    """The type bits of a descriptor's mode, 0 for the kernel's own, and the major number of a device."""
    kind, major, _ = _file_facts(fd)
    return kind, major


def _file_facts(fd: int) -> tuple[int, int, tuple[int, int]]:
    """As `file_type`, and the number of the file system, which the kernel assigns.

    `fstat` would ask the file system, which may be another process's (FUSE) and never reply.
    """
    found = ctypes.create_string_buffer(256)
    # AT_EMPTY_PATH, AT_STATX_DONT_SYNC
    if _SYS_STATX < 0 or libc.syscall(_SYS_STATX, fd, b'', 0x5000, 0x7FF, found):
        return -1, 0, (0, 0)
    mode, (major, _, *file_system) = struct.unpack_from('<H', found, 28)[0], struct.unpack_from('<4I', found, 128)
    return stat.S_IFMT(mode), major, (file_system[0], file_system[1])


def is_driver_fd(fd: int) -> bool:
    """Whether a descriptor can be memory of the driver: never hand it a pipe, a file or a terminal."""
    kind, major = file_type(fd)
    if os.environ.get('CUFFI_DRIVER') == 'emulated':
        return os.readlink(f'/proc/self/fd/{fd}').startswith('/memfd:cuffi.')
    if kind == stat.S_IFCHR:
        return not (1 <= major <= 5 or 136 <= major <= 143)
    return kind == 0


def is_same_file(a: int, b: int) -> bool:
    """Whether two descriptors are of one open file. The files of the driver all have the same inode."""
    return _SYS_KCMP >= 0 and libc.syscall(_SYS_KCMP, os.getpid(), os.getpid(), 0, a, b) == 0


def close_fds(fds: Any) -> None:
    """Closes descriptors, of which another process may have made some so that their `close` blocks."""
    for fd in list(fds):
        kind, major = file_type(fd)
        is_simple = kind == stat.S_IFCHR and major in (_NULL_MAJOR, _NVIDIA_MAJOR)
        if is_simple or _closing_thread is None or _is_in_memory(fd):
            os.close(fd)
        elif kind >= 0:
            _closing.put(fd)
    if isinstance(fds, list):
        fds.clear()


def received_fds(controls: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a message."""
    fds: list[int] = []
    for level, kind, part in controls:
        found = struct.unpack(f'{len(part) // 4}i', part[: len(part) // 4 * 4])
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.extend(found)
        elif (level, kind) == (socket.SOL_SOCKET, _SCM_PIDFD):
            # A process that shares the socket can order one for each message (SO_PASSPIDFD).
            close_fds(found)
    return fds


def _is_in_memory(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0
    except OSError:
        return False


# May be filled while objects are collected, when no thread can be started.
_closing: queue.SimpleQueue[int] = queue.SimpleQueue()
_closing_thread: Optional[threading.Thread] = None


def start_closing() -> None:
    """Starts the thread that `close_fds` needs, once. Raises IpcError if no thread is left."""
    global _closing_thread
    with locks.state:
        if _closing_thread is None:
            # The next call tries again if this one raises.
            _closing_thread = start_thread(_close_others, 'closes')


def abandon_closing() -> None:
    """In a child by fork, which has no threads."""
    global _closing_thread
    _closing_thread = None


def _close_others() -> None:
    while True:
        fd = _closing.get()
        try:
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
        except RuntimeError:  # No thread is left.
            os.close(fd)


def duplicates(fds: Iterable[int]) -> list[int]:
    """Copies of descriptors. Raises OSError if one is not to be had; then there is none."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made


@contextlib.contextmanager
def closing_on_error(*fds: int) -> Generator[None, None, None]:
    """Closes descriptors that this process has made if the block raises. After the block, they have another owner."""
    try:
        yield
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def sealed_memory(byte_length: int, name: str = 'cuffi-points') -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with closing_on_error(fd):
        os.ftruncate(fd, byte_length)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def is_sealed(fd: int, byte_length: int) -> bool:
    """Whether a descriptor, from any process, is memory of exactly that size, which is fixed.

    Memory of huge pages is refused: touching it kills the process once the system has no huge page left.
    """
    sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & sealed != sealed or os.fstat(fd).st_size != byte_length:
            return False
    except OSError:
        return False
    status = (ctypes.c_long * 32)()
    return libc.fstatfs(fd, status) == 0 and status[0] != _HUGETLBFS_MAGIC


def seal_against_holes(fd: int) -> bool:
    """Keeps everybody from replacing mapped memory, where a GPU would go on with the old one, and from mapping it.

    Returns False if the kernel (before 5.1) or the memory does not allow that.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    except OSError:
        return False
    return True


def is_pipe_end(fd: int, access: int) -> bool:
    """Whether a descriptor is that end of a pipe without a name. Named pipes have the rights of their file."""
    global _pipe_file_system
    kind, _, file_system = _file_facts(fd)
    if kind != stat.S_IFIFO:
        return False
    if _pipe_file_system is None:
        # `fstatfs` would ask the file system of a named pipe, which may be another process's (FUSE).
        ends = os.pipe()
        _pipe_file_system = _file_facts(ends[0])[2]
        close_fds(ends)
    return file_system == _pipe_file_system and fcntl.fcntl(fd, fcntl.F_GETFL) & (_O_PATH | os.O_ACCMODE) == access


# All pipes without names are on one file system of the kernel.
_pipe_file_system: Optional[tuple[int, int]] = None


def whole_pages(byte_length: int) -> int:
    return -(-byte_length // PAGE_BYTE_LENGTH) * PAGE_BYTE_LENGTH


def has_ended(fd: int) -> bool:
    """Whether a pipe has data, or its last writer has closed it."""
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(0))


def take_fds(fds: list[int], count: int, what: str) -> list[int]:
    """Takes the descriptors that came with an object."""
    if len(fds) != count:
        raise IpcError(f'{what} needs {count} descriptors, but {len(fds)} came with it', 'no-file-descriptor')
    taken = fds[:]
    fds.clear()
    return taken


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Returns the pid, user and group of the process at the other end. Raises IpcError if the system cannot tell."""
    try:
        pid, uid, gid = struct.unpack('=iII', sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError as error:
        raise IpcError(f'the process at the other end is unknown: {error.strerror}') from None
    return pid, uid, gid
