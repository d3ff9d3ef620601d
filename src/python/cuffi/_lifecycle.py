"""What the end of this process, and a child by fork, need: in this order."""

from __future__ import annotations

import atexit
import os
import traceback

from ._background import drain_background, lifelines
from ._connect import listeners
from ._connection import connections
from ._dlpack import given_to_libraries, no_deleter
from ._driver import is_driver_open
from ._files import abandon_closing
from ._process import process_exit, renew_process
from ._signals import signals
from ._waits import renew_waits_lock


@atexit.register
def at_exit() -> None:
    """Other processes may wait for what this one still does."""
    drain_background()
    for connection in list(connections):
        try:
            connection.drain_at_exit()
        except Exception:
            traceback.print_exc()
    process_exit.has_begun = True
    # Libraries may delete tensors when the interpreter is gone, such as those in static objects of C++.
    for managed, *_ in list(given_to_libraries.values()):
        managed.deleter = no_deleter()


def _after_fork() -> None:
    """A child by fork has no threads, no driver, and no part in the connections of its parent."""
    renew_process()
    abandon_closing()
    signals.abandon()
    for connection in list(connections):
        connection.abandon()
    connections.clear()
    for listener in list(listeners):
        listener._socket.close()
    # Nothing that the parent has made is the child's to free; nor can it use the driver, if its parent did.
    process_exit.has_begun = is_driver_open()
    renew_waits_lock()
    for each in list(lifelines):
        each.abandon()


os.register_at_fork(after_in_child=_after_fork)
