"""This process, as others see it, and what all its threads share."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _descriptors
from ._errors import IpcError

if TYPE_CHECKING:
    from ._descriptors import Fields
    from ._devices import Device


def start_time_of(pid: Union[int, str]) -> int:
    """In clock ticks since boot; 0 if the process is gone. Pids are reused, start times are not."""
    try:
        with open(f'/proc/{pid}/stat', 'rb') as file:
            return int(file.read().rpartition(b')')[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def start_thread(target: Callable[..., Any], name: str, *args: Any) -> threading.Thread:
    """Starts a thread that this process does not wait for at its end. Raises IpcError if no thread is left."""
    thread = threading.Thread(target=target, args=args, name=f'cuffi {name}', daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise IpcError(f'cuffi needs a thread: {error}') from None
    return thread


class _Process:
    """This process: the fields of what it exports."""

    def __init__(self) -> None:
        with open('/proc/sys/kernel/random/boot_id') as file:
            self.machine = bytes.fromhex(file.read().strip().replace('-', ''))
        self.pid, self.start_time = os.getpid(), start_time_of('self')
        try:
            self.namespace = os.stat('/proc/self/ns/pid').st_ino
        except OSError:
            self.namespace = 0
        # A pointer's number would tell other processes about this one.
        self.secret = secrets.randbits(48)
        self.identity = (self.machine, self.pid, self.start_time, self.namespace)
        self._exporters: dict[Device, _descriptors.Exporter] = {}

    def exporter(self, device: Device) -> _descriptors.Exporter:
        found = self._exporters.get(device)
        if found is None:
            found = self._exporters[device] = _descriptors.Exporter(device.uuid, *self.identity)
        return found

    def has_made(self, fields: Fields) -> bool:
        """Whether this process has made a descriptor."""
        return fields.exporter[1:] == self.identity


class _Exit:
    """Whether this process ends, or is a child by fork: nothing is freed any more, and no thread is started."""

    has_begun = False


# What runs when objects are collected finds None here if the interpreter has ended.
process_exit = _Exit()


class _Locks:
    """The locks of what all threads share."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a child by fork, which has no thread that would release them."""
        self.state = threading.RLock()
        # Held while memory of other processes is mapped or unmapped, which the driver may block. Taken before `state`.
        self.mappings = threading.RLock()
        # Taken for its order of loads and stores alone.
        self.fence = threading.Lock()


locks = _Locks()
_process: Optional[_Process] = None


def this_process() -> _Process:
    global _process
    if _process is None:
        _process = _Process()
    return _process


def renew_process() -> None:
    """In a child by fork."""
    global _process
    _process = None
    locks.renew()


def has_failed() -> bool:
    """Whether an exception ends this process. An interactive session goes on after one."""
    return getattr(sys, 'last_value', None) is not None and not hasattr(sys, 'ps1')
