"""64-bit words that processes and their GPUs share."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Union

from ._bytes import SAFE
from ._devices import Device, all_devices
from ._driver import c_u64, call, cuda_driver, read_number
from ._errors import ClosedError, CuffiError, IpcError
from ._files import is_sealed
from ._process import locks, this_process
from ._protocol import END_OF_WAITS, PAGE_BYTE_LENGTH

if TYPE_CHECKING:
    from ._waits import EventHandle

INFINITE = float('inf')
# Whether the processor keeps the order of the stores and that of the loads of a thread.
_KEEPS_ORDER = os.uname().machine in ('x86_64', 'i686')
Points = list[tuple[int, int]]


class _NoWords:
    """In place of the words of a closed page: all have ended, and none is written."""

    def __getitem__(self, _: int) -> int:
        return END_OF_WAITS

    def __setitem__(self, _: int, __: int) -> None:
        pass


NO_WORDS = _NoWords()


def _fence() -> None:
    """Keeps what was read and written before apart from what comes, for processors that do not.

    What stands before a release stays before it, what stands behind an acquisition stays behind it, and a release and
    an acquisition that follows it keep their order.
    """
    for _ in range(2):
        with locks.fence:
            pass


class FencedWords:
    """Words for processors that change the order of stores or of loads: others see them in the order of the program."""

    def __init__(self, words: Any) -> None:
        self._words = words

    def __getitem__(self, index: int) -> int:
        value: int = self._words[index]
        _fence()
        return value

    def __setitem__(self, index: int, value: int) -> None:
        _fence()
        self._words[index] = value
        _fence()


class SharedWords:
    """64-bit words in memory that several processes and their GPUs share. Each word has one writer."""

    def __init__(self, fd: int, byte_length: int = PAGE_BYTE_LENGTH) -> None:
        self._map, self._byte_length, self.word_count = mmap.mmap(fd, byte_length), byte_length, byte_length // 8
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        words = memoryview(self._map).cast('Q')
        self.words: Any = words if _KEEPS_ORDER else FencedWords(words)
        self._addresses: dict[int, int] = {}
        self.arguments = _Arguments(self)
        # For each word what the host still has to store in it, in order.
        self.host_stores: dict[int, deque[tuple[int, EventHandle, int]]] = {}
        # Whether waits for the words were ended: what is not reached never will be.
        self.is_over = False
        # Whether nobody can replace the memory. Otherwise only hosts may wait for its words.
        self.is_fixed = False

    @property
    def bytes(self) -> memoryview:
        return memoryview(self._map)

    @classmethod
    def accept(cls, fd: int, byte_length: int, what: str) -> SharedWords:
        """Maps memory of another process. Raises IpcError unless nobody can take it away from under this one."""
        if not is_sealed(fd, byte_length):
            raise IpcError(f'received a {what} whose memory is not sealed memory of its size')
        return cls(fd, byte_length)

    def read(self, index: int) -> Union[int, float]:
        """A value; infinity after the end of all waits, -1 for an invalid value."""
        value: int = self.words[index]
        if value <= SAFE:
            return value
        return INFINITE if value == END_OF_WAITS else -1

    def write(self, index: int, value: int) -> None:
        self.words[index] = value

    def reached(self, index: int, count: int) -> bool:
        value = self.words[index]
        # As `read`: an invalid value has not reached anything.
        return (count <= value and (value <= SAFE or value == END_OF_WAITS)) or self.is_over

    def is_reached(self, points: Points) -> bool:
        return all(self.reached(index, count) for index, count in points)

    def writer(self, pid_index: int) -> int:
        """The pid that is stored in a word, behind which its pid namespace is; 0 if it is of another one, or none."""
        pid = self.read(pid_index) if self.read(pid_index + 1) == this_process().namespace else 0
        return int(pid) if 0 < pid < 1 << 32 else 0

    def sign(self, pid_index: int) -> None:
        self.write(pid_index + 1, this_process().namespace)
        self.write(pid_index, this_process().pid)

    def end_waits(self, begin: int, end: int) -> None:
        self.is_over = True
        for index in range(begin, end):
            self.write(index, END_OF_WAITS)

    def _end_host_stores(self) -> None:
        """Stores what the host still has to, when its work is done: others wait for that."""
        for ordinal in self._addresses:
            all_devices()[ordinal].synchronize()
        for index, pending in list(self.host_stores.items()):
            for count, _, _ in list(pending):
                if not self.reached(index, count):
                    self.words[index] = count

    def address(self, device: Device, index: int) -> int:
        """The address of a counter for the streams of a device, whose context is current."""
        base = self._addresses.get(device.ordinal)
        if base is None:
            if self.words is NO_WORDS:
                raise ClosedError('the memory that processes share is closed')
            if not self._addresses:
                # Portable, for all contexts, and mapped.
                call('cuMemHostRegister_v2', self.host, self._byte_length, 3, doing=f'locking {self._byte_length} bytes')
            try:
                base = self._addresses[device.ordinal] = read_number('cuMemHostGetDevicePointer_v2', self.host, 0)
            finally:
                if not self._addresses:
                    cuda_driver().cuMemHostUnregister(self.host)
        return base + 8 * index

    def close(self) -> None:
        if self.host_stores:
            self._end_host_stores()
        self.words = NO_WORDS
        self.arguments.clear()
        addresses, self._addresses = self._addresses, {}
        for ordinal in addresses:
            # Streams may still write these words, or wait for them.
            all_devices()[ordinal].synchronize()
        if addresses:
            with all_devices()[next(iter(addresses))]:
                cuda_driver().cuMemHostUnregister(self.host)
        try:
            self._map.close()
        except BufferError:
            pass  # Another thread reads it; it goes with the last reference.


class _Arguments(dict[Device, list[ctypes.c_uint64]]):
    """For each device the addresses of words, as the driver takes them: to convert them takes longer than a call."""

    def __init__(self, words: SharedWords) -> None:
        self._words = weakref.proxy(words)

    def __missing__(self, device: Device) -> list[ctypes.c_uint64]:
        with device:
            base = self._words.address(device, 0)
        self[device] = [c_u64(base + at) for at in range(0, self._words.word_count * 8, 8)]
        return self[device]


def close_page(page: SharedWords) -> None:
    try:
        page.close()
    except CuffiError:
        pass  # The context is lost.
