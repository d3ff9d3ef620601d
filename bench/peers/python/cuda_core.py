"""Launches of kernels that do nothing, through cuda.core."""

from itertools import repeat
from pathlib import Path

from serve import serve

PTX = Path(__file__).parent.parent / "kernels.ptx"


def import_core():
    try:
        from cuda import core
    except ImportError:
        # Its name until version 0.5.
        from cuda.core import experimental as core
    if not hasattr(core, "launch"):
        from cuda.core import experimental as core
    return core


def start():
    core = import_core()
    import numpy

    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    code = core.ObjectCode.from_ptx(PTX.read_bytes())
    config = core.LaunchConfig(grid=1, block=32)
    buffer = device.allocate(64, stream=stream)
    address = int(buffer.handle)
    arguments = {
        "none": (),
        "four": (numpy.float32(2.5), address, address, numpy.uint32(7)),
        "sixteen": (address, *[numpy.uint32(at) for at in range(1, 16)]),
    }

    def launching(name):
        kernel, values = code.get_kernel(name), arguments[name]

        def loop(calls, launch=core.launch):
            for _ in repeat(None, calls):
                launch(stream, config, kernel, *values)

        return loop, stream.sync

    return {f"launch.{name}": lambda _, name=name: launching(name) for name in arguments}


serve("cuda.core", start)
