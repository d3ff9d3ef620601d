"""The Python process of `npx cuffi bench --python`, as bench-child.ts is the one of Node: `python -m cuffi._bench`.

It replies to each buffer with its last word, read from the device. A reply that is a string says what failed.
"""

from __future__ import annotations

import signal
from threading import Thread
from typing import Any, Optional

from ._array import DeviceArray
from ._connect import parent
from ._consumer import ChannelConsumer
from ._errors import ClosedError, PeerGoneError


def _last_word(buffer: DeviceArray) -> int:
    return int.from_bytes(buffer[-4:].copy_to_host(), 'little')


class _Served:
    """What is open for one size."""

    def __init__(self) -> None:
        # Kept, so that it stays mapped.
        self._kept: Optional[DeviceArray] = None
        self._channel: Optional[ChannelConsumer] = None
        self._consuming: Optional[Thread] = None
        self._seen = 0

    def _consume(self, channel: ChannelConsumer) -> None:
        for slot in channel:
            self._seen = _last_word(slot.buffer)
            slot.release()

    def _open(self, buffer: Optional[DeviceArray], channel: Optional[ChannelConsumer]) -> None:
        self._kept, self._channel = buffer, channel
        if channel is not None:
            self._consuming = Thread(target=self._consume, args=(channel,), daemon=True)
            self._consuming.start()

    def _close(self) -> None:
        """The parent has already closed the channel."""
        if self._consuming is not None:
            self._consuming.join()
        if self._channel is not None:
            self._channel.close()
        if self._kept is not None:
            self._kept.close()
        self._kept = self._channel = self._consuming = None

    def serve(self, value: Any) -> Optional[int]:
        if isinstance(value, DeviceArray):
            seen = _last_word(value)
            value.close()
            return seen
        if value['type'] == 'seen':
            return self._seen
        if value['type'] == 'open':
            self._open(value['buffer'], value['channel'])
        else:
            self._close()
        return None


def main() -> None:
    # Ctrl-C and a hang-up reach all processes of a terminal: the parent ends this one, and says why.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    served, peer = _Served(), parent()
    answer: Any = None
    try:
        while True:
            peer.send(answer)
            try:
                answer = served.serve(peer.receive())
            except (ClosedError, PeerGoneError):
                raise
            except Exception as error:  # Whatever fails is the reply.
                answer = str(error)
    except (ClosedError, PeerGoneError):
        return


if __name__ == '__main__':
    main()
