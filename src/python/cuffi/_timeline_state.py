"""What a timeline has beside its object: its word, its pipe, and the duties of this process."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Callable, Optional, Union

from ._background import background, lifelines
from ._bytes import SAFE
from ._devices import is_context_lost
from ._errors import ClosedError, CuffiError, IpcError, PeerGoneError
from ._files import close_fds, closing_on_error, duplicates, has_ended, is_pipe_end
from ._protocol import (
    END_OF_WAITS,
    OUTCOME_ABANDONED,
    OUTCOME_CLOSED,
    PAGE_BYTE_LENGTH,
    TIMELINE_LAST,
    TIMELINE_OUTCOME,
    TIMELINE_PID,
    TIMELINE_VALUE,
)
from ._releases import release_soon
from ._waits import REPAIR_S, enqueue_store, enqueue_wait, is_awaited_by_streams, store_by_host
from ._words import INFINITE, NO_WORDS, SharedWords, close_page

if TYPE_CHECKING:
    from ._connection import Connection
    from ._waits import Stream

# How often is looked whether a value that another process has promised is reached.
_PROMISE_S = 0.02


class TimelineState:
    """A timeline, which outlives its object until its work is done."""

    def __init__(self, memory: int, lifeline: int, write_end: int, last: int, on_released: Callable[[], None],
                 sender: Optional[Connection] = None) -> None:  # fmt: skip
        """Owns the descriptors, also if it raises. `write_end` is -1 for those who only wait.

        :param last: the last value, which another process may still signal
        :param sender: to that process, or to the one that handed over for it
        """
        self.fds, self.write_end, self.last, self.on_released = (memory, lifeline), write_end, last, on_released
        self.last_stream: Optional[Stream] = None
        # The value that another process has promised and did not reach, and the pid of that process, or 0.
        self.lost: Optional[tuple[int, int]] = None
        self.is_ended = self.is_closed = self.is_released = False
        # Its object, and every duty: to store a value, or to watch a process until its last value is reached.
        self.uses = 1
        self.lock = threading.RLock()
        try:
            # Before there is anything to watch: it may have to be started, which needs descriptors and a thread.
            background()
            self.words = SharedWords.accept(memory, PAGE_BYTE_LENGTH, 'timeline')
            if not is_pipe_end(lifeline, os.O_RDONLY) or (write_end >= 0 and not is_pipe_end(write_end, os.O_WRONLY)):
                raise IpcError('received a timeline without its pipe')
            if write_end >= 0 and not self.read() >= last:
                self._watch_predecessor(sender)
            if write_end < 0:
                self.watch()
        except BaseException as error:
            close_fds([fd for fd in (memory, lifeline, write_end) if fd >= 0])
            if isinstance(error, OSError):
                raise IpcError(f'a timeline cannot be mapped: {error}') from None
            raise
        lifelines.add(self)
        if write_end >= 0:
            self.words.sign(TIMELINE_PID)

    def _watch_predecessor(self, sender: Optional[Connection]) -> None:
        """Watches the process that handed over until its last value is reached, also after the close here.

        The next process that the signaler goes to watches only this one. Only the kernel says who the process
        is: every process can write the page.
        """
        last = self.last
        try:
            if sender is None:
                raise OSError(errno.ENOSYS, 'it is unknown')
            pid, pidfd = sender.pid, sender.end_of_process()
        except OSError as error:
            raise IpcError(
                f'received the signaler of a timeline before value {last} was reached, from a process whose end cannot be '
                f'observed here: call timeline.reached({last}) there before you send it: {error.strerror}',
                'not-supported',
            ) from None
        ended = select.poll()
        if pidfd >= 0:
            ended.register(pidfd, select.POLLIN)
        self.uses += 1

        def is_settled() -> Union[bool, float]:
            # First: what was stored before the process ended is then seen.
            is_gone = pidfd < 0 or bool(ended.poll(0))
            is_reached = self.read() >= last
            # That process may have found that another one before it has ended, and have stored that.
            if not is_reached and not is_gone and not self.is_ended:
                return _PROMISE_S
            if not is_reached:
                self.lose(pid if is_gone else 0, last)
            if pidfd >= 0:
                os.close(pidfd)
            self.release()
            return True

        background().poll(is_settled)

    @property
    def is_lost(self) -> bool:
        """Whether a value that was promised never comes, as this process or another one has found."""
        return self.lost is not None or self.words.words[TIMELINE_OUTCOME] == OUTCOME_ABANDONED

    def lose(self, pid: int, value: int) -> None:
        """Ends the timeline, as a value that was promised never comes."""
        with self.lock:
            self.lost = (pid, value)
            self._free_streams(OUTCOME_ABANDONED)
            if self.is_closed:
                return
            write_end, self.write_end = self.write_end, -1
            if write_end >= 0:
                self.uses += 1
                self._end(write_end)

    def watch(self) -> None:
        lifeline = self.fds[1]

        def on_ready() -> None:
            # Also for data: no writer of cuffi writes any.
            if not self.is_released and has_ended(lifeline):
                background().unwatch(lifeline)
                self._free_streams(OUTCOME_CLOSED)

        background().watch(lifeline, on_ready)

    def _free_streams(self, outcome: int) -> None:
        """Ends all waits, until the streams have gone on: a GPU of the ended process, or another process, may still write."""
        is_awaited, until = is_awaited_by_streams(self.words), time.monotonic() + REPAIR_S

        def is_over() -> Union[bool, float]:
            if self.mark_ended(outcome):
                return True
            is_late = time.monotonic() > until
            return is_late and (0.05 if is_awaited else True)

        if not self.mark_ended(outcome):
            background().poll(is_over)

    def mark_ended(self, outcome: int = OUTCOME_CLOSED) -> bool:
        """Ends all waits, and stores the last value beside. Returns whether the memory is gone."""
        self.is_ended = True
        words = self.words.words
        value, last = words[TIMELINE_VALUE], words[TIMELINE_LAST]
        # What a GPU still stores behind a value that never came counts for nobody.
        if value <= SAFE and words[TIMELINE_OUTCOME] != OUTCOME_ABANDONED and not value <= last <= SAFE:
            words[TIMELINE_LAST] = value
        # Before the waits end: who sees a later value must see this, too.
        if words[TIMELINE_OUTCOME] < outcome:
            words[TIMELINE_OUTCOME] = outcome
        if value != END_OF_WAITS:
            words[TIMELINE_VALUE] = END_OF_WAITS
        return words is NO_WORDS

    def read(self) -> Union[int, float]:
        """The value; after the end, the last one. -1 for an invalid value."""
        value = INFINITE if self.is_ended else self.words.read(TIMELINE_VALUE)
        # Read second: a GPU may store over the end.
        if value != INFINITE and not self.words.words[TIMELINE_OUTCOME]:
            return value
        self.is_ended = True
        last = self.words.read(TIMELINE_LAST)
        return last if 0 <= last <= SAFE else 0

    def is_reached(self, value: int) -> bool:
        """Raises PeerGoneError if it cannot be reached any more."""
        if self.is_closed:
            raise ClosedError('this Timeline is closed')
        if self.read() >= value:
            return True
        if self.is_ended:
            raise self.gone(value)
        return False

    def gone(self, value: int = 0) -> PeerGoneError:
        unreached = f': value {value} will not be reached' if value else ''
        after = f'after value {self.read()}'
        if self.is_lost:
            pid = self.lost[0] if self.lost else 0
            return PeerGoneError(
                f'{f"process {pid}" if pid else "a process"} that had handed over the signaler of this timeline has ended '
                f'{after}, before the values that it had signaled were reached{unreached}',
                pid,
            )
        pid = self.words.writer(TIMELINE_PID)
        who = f'process {pid}' if pid else 'the process that signals this timeline'
        return PeerGoneError(f'{who} has ended or closed the timeline {after}{unreached}', pid)

    def signal(self, value: int, stream: Stream) -> None:
        with self.lock:
            if self.is_lost:
                raise self.gone(value)
            if self.write_end < 0:
                raise CuffiError('this process does not signal this timeline: only the process that created it does, or '
                                 'the one that timeline.signaler() was sent to')  # fmt: skip
            if value <= self.last:
                raise ValueError(f'value must be above {self.last}, the last value that was signaled, not {value}')
            # Values are reached in the order of the calls, whatever their streams.
            is_behind_other = self.last_stream is not stream and not self.words.reached(TIMELINE_VALUE, self.last)
            if is_behind_other and not enqueue_wait(self.words, TIMELINE_VALUE, self.last, stream):
                store_by_host(self.words, TIMELINE_VALUE, value, stream, self.last)
            else:
                enqueue_store(self.words, TIMELINE_VALUE, value, stream)
            self.last, self.last_stream = value, stream

    def hand_over(self) -> Signaling:
        with self.lock:
            if self.is_lost:
                raise self.gone()
            if self.write_end < 0:
                raise CuffiError('this process does not signal this timeline: it has no signaler to send')
            copies = duplicates(self.fds)
            with closing_on_error(*copies):
                self.watch()
            fds = [*copies, self.write_end]
            self.write_end = -1
            self.uses += 1
        if self.last_stream and not self.read() >= self.last:
            self._keep_promise()
        return Signaling(self, fds)

    def _keep_promise(self) -> None:
        """Stays until the values that are queued here are stored, or stores that they never come."""
        self.uses += 1

        def is_over() -> Union[bool, float]:
            if not self._is_over():
                return _PROMISE_S
            # As after an error of the context.
            if not self.read() >= self.last:
                self.mark_ended(OUTCOME_ABANDONED)
            self.release()
            return True

        background().poll(is_over, keeps=True)

    def abandon(self) -> None:
        """In a child by fork: it does not signal."""
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end, self.is_closed = -1, True

    def is_last_signaled(self) -> bool:
        return self.words.reached(TIMELINE_VALUE, self.last)

    def _is_over(self) -> bool:
        """Whether the last value is stored, or never will be."""
        return self.is_last_signaled() or self.is_ended or (self.last_stream is not None and is_context_lost(self.last_stream.device))

    def close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            write_end, self.write_end = self.write_end, -1
        if write_end < 0:
            self.release()
        else:
            self._end(write_end)

    def _end(self, write_end: int) -> None:
        """Ends the timeline for all, after the last value."""

        def end() -> bool:
            if not self._is_over():
                return False
            # A process that is blocked cannot end the waits of its streams itself.
            self.mark_ended()
            close_fds([write_end])
            self.release()
            return True

        if not end():
            # Another process may state a last value that is never reached: for it this one does not stay.
            background().poll(end, keeps=self.last_stream is not None)

    def end_unsent(self, fds: list[int]) -> None:
        """Ends the timeline for all, after the last value, as its signaler was closed instead of sent."""
        memory, lifeline, write_end = fds
        close_fds((memory, lifeline))
        self._end(write_end)

    def release(self) -> None:
        """Ends one use. Until no stream waits for it, the end of the signaling process is watched."""
        with self.lock:
            self.uses -= 1
            if self.uses:
                return

        def release() -> None:
            self.is_released = True
            background().unwatch(self.fds[1])
            close_fds(self.fds)
            close_page(self.words)
            self.on_released()

        if self.words._addresses:
            release_soon(lambda: not is_awaited_by_streams(self.words), release)
        else:
            release()


class Signaling:
    """The right to signal a timeline, until it is sent or closed."""

    def __init__(self, state: TimelineState, fds: list[int]) -> None:
        self.state, self.fds = state, fds
        lifelines.add(self)

    def take(self) -> list[int]:
        """The descriptors, to be sent."""
        fds, self.fds = self.fds, []
        self.state.release()
        return fds

    def put_back(self, fds: list[int]) -> bool:
        """Undoes `take`. Returns False if the timeline was released meanwhile, as everything of it was closed."""
        with self.state.lock:
            if not self.state.uses:
                return False
            self.state.uses += 1
            self.fds = fds
            return True

    def close(self) -> None:
        fds, self.fds = self.fds, []
        if fds:
            self.state.end_unsent(fds)

    def abandon(self) -> None:
        """In a child by fork, which has no thread that closes."""
        while self.fds:
            os.close(self.fds.pop())
