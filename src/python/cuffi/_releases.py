"""Frees and unmaps behind the work that may use it, in the background."""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._background import background
from ._errors import CuffiError, IpcError
from ._process import locks, process_exit, start_thread
from ._signals import signals
from ._waits import is_awaited_by_streams, open_waits, waiting_streams
from ._words import close_page

if TYPE_CHECKING:
    from ._deadlines import Deadline
    from ._devices import Device
    from ._words import SharedWords


class _Releases:
    """Frees and unmaps memory behind the work of a device, in a thread of its own, which the driver may block."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Its methods take no lock of Python: objects may be collected in the middle of any work.
        self._queue: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._pid = 0

    def start(self) -> None:
        """Before there is anything to release: no thread can be started while objects are collected."""
        if self._pid != os.getpid():
            with locks.state:
                if self._pid != os.getpid():
                    self._queue = queue.SimpleQueue()
                    start_thread(self._run, 'releases', self._queue)
                    self._pid = os.getpid()

    def add(self, release: Callable[[], Any]) -> None:
        """Calls it when the work that is queued on the device is done. May be called anywhere."""
        self._queue.put(release)

    def flush(self) -> None:
        """Waits until what was added is released, but not for other processes."""
        done = threading.Event()
        self._queue.put(done.set)
        while not done.wait(0.005) and not open_waits(self._device):
            pass

    def _run(self, added: queue.SimpleQueue[Callable[[], Any]]) -> None:
        while True:
            batch = [added.get()]
            while not added.empty():
                batch.append(added.get())
            # The driver might block other calls for as long as it waits for these.
            waits = open_waits(self._device)
            while not all(words.reached(index, count) for words, index, count in waits):
                time.sleep(0.001)
            waits.clear()
            try:
                self._device.synchronize()
            except CuffiError:
                pass  # The context is lost: nothing runs in it.
            while batch:
                try:
                    batch.pop(0)()
                except CuffiError:
                    pass  # As above: the memory ends with the process.
                except Exception:  # It must not end the thread without a word.
                    if not process_exit.has_begun:
                        traceback.print_exc()


# By the device.
_releases: dict[Device, _Releases] = {}


def releases_of(device: Device) -> _Releases:
    found = _releases.get(device)
    return found or _releases.setdefault(device, _Releases(device))


def release_soon(is_unused: Callable[[], bool], release: Callable[[], None]) -> None:
    """Calls `release` once `is_unused` and no stream of this process waits: then the driver does not block it.

    It may still block until running work is done, so a thread of its own calls it.
    """

    def is_over() -> bool:
        if not is_unused() or waiting_streams():
            return False
        try:
            start_thread(release, 'release')
        except IpcError:
            return False  # No thread is left now.
        return True

    background().poll(is_over)


def release_page(words: SharedWords) -> None:
    """Unmaps words, once no stream waits for them."""
    if words._addresses:
        release_soon(lambda: not is_awaited_by_streams(words), lambda: close_page(words))
    else:
        words.close()


def wait_for_device(device: Device, deadline: Deadline) -> None:
    """Waits until all work of a device is done. Raises TimeoutError, CudaError."""
    if not deadline.is_limited and not waiting_streams():
        device.synchronize()
        return
    # The driver knows no limit, and lets no signal end its waits. What was given up goes on: one thread for all.
    errors: list[Exception] = []

    def synchronize() -> None:
        try:
            device.synchronize()
        except CuffiError as error:
            errors.append(error)

    own: Optional[threading.Thread] = None
    while own is None or own.is_alive():
        with locks.state:
            if own is None and not (device.waiter and device.waiter.is_alive()):
                own = device.waiter = threading.Thread(target=synchronize, name='cuffi waits', daemon=True)
                own.start()
            waiter = device.waiter
        if waiter:
            waiter.join(min(deadline.left('the work of the device'), 0.05))
        signals.check()
    if errors:
        raise errors[0]
