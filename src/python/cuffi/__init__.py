"""cuffi for Python: shares GPU memory with Node's cuffi, without copying it.

    import cuffi, torch

    parent = cuffi.parent()                  # started by spawnPython; or cuffi.connect('render')
    for array in parent:                     # what the other end sends
        with array:
            parent.send(model(torch.from_dlpack(array)))

`pip install "$(npx cuffi python)"` installs it from the npm package. It needs Linux, Python 3.9 or later and
the CUDA driver, and no package. Without a GPU, CUFFI_DRIVER=emulated selects the emulated driver. What it
speaks is described in docs/protocol.md of cuffi. The protocol's version must be the same on both sides;
otherwise both ends raise an IpcError with the code `version-mismatch`.

Order. Without `stream`, `send` waits on the host until all work of the device is done, `receive` until
the sender's work on what was sent is done, and `close` until all work of the device is done. With
`stream`, nothing waits on the host: `send` tells the other end to wait for that stream, `receive` makes
that stream wait, and `close` gives the memory back behind that stream. A stream is an int, or an object
with `cuda_stream` (torch), `ptr` (cupy) or `handle` (numba, cuda.core).

Limits. `timeout` is a number of seconds. Without it a call waits for as long as it takes; with it, it raises
TimeoutError. `device` is an ordinal, by default that of the current context. Sizes and strides are in bytes.

Frames, again and again, go through a `Channel`, whose slots the other end maps once. A `Timeline` orders
streams and hosts of several processes. `pinned` is host memory that processes share.

Ownership. What is sent is kept alive until the other end has closed it. What is received is closed with
`close()`, a `with` block, or the last reference, and stays mapped while a tensor made of it lives.
"""

from __future__ import annotations

from . import _platform as _platform  # First: it says what this system lacks, where other imports would fail.

# isort: split
from ._array import DeviceArray, DeviceBuffer, ImportedPool, empty
from ._channel import Channel
from ._connect import Listener, connect, listen, parent, parent_peer
from ._consumer import ChannelConsumer, ConsumerSlot
from ._driver import CudaError
from ._errors import ClosedError, CuffiError, DriverNotFoundError, IpcError, NotSupportedError, PeerGoneError, RemoteError
from ._event import CudaEvent
from ._leases import LeasesStats, LeaseStats, leases
from ._peer import Peer
from ._pinned import PinnedBuffer, pinned
from ._producer import ProducerSlot
from ._stats import ChannelStats, ConsumerStats, PeerStats
from ._timeline import Timeline, TimelineSignaler
from ._values import BigInt, Map
from ._version import __version__

# isort: split
from . import _lifecycle as _lifecycle  # Last: it ends what the others began.

# The names of before 0.3, for one version.
GpuArray = DeviceArray
GpuBuffer = DeviceBuffer
GpuPool = ImportedPool
Event = CudaEvent

__all__ = [
    'BigInt',
    'Channel',
    'ChannelConsumer',
    'ChannelStats',
    'ClosedError',
    'ConsumerSlot',
    'ConsumerStats',
    'CudaError',
    'CudaEvent',
    'CuffiError',
    'DeviceArray',
    'DeviceBuffer',
    'DriverNotFoundError',
    'Event',
    'GpuArray',
    'GpuBuffer',
    'GpuPool',
    'ImportedPool',
    'IpcError',
    'LeaseStats',
    'LeasesStats',
    'Listener',
    'Map',
    'NotSupportedError',
    'Peer',
    'PeerGoneError',
    'PeerStats',
    'PinnedBuffer',
    'ProducerSlot',
    'RemoteError',
    'Timeline',
    'TimelineSignaler',
    '__version__',
    'connect',
    'empty',
    'leases',
    'listen',
    'parent',
    'parent_peer',
    'pinned',
]
