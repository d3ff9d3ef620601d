"""Launches of kernels that do nothing, through cuda.core."""

from itertools import repeat
from pathlib import Path

PTX = Path(__file__).parent.parent / "kernels.ptx"


def launch_batches(device):
    """Made when they are asked for: a program that lacks them still does the others."""
    import numpy
    from cuda import core

    def launching(name):
        stream = device.create_stream()
        buffer = device.allocate(64, stream=stream)
        address = int(buffer.handle)
        arguments = {
            "none": (),
            "four": (numpy.float32(2.5), address, address, numpy.uint32(7)),
            "sixteen": (address, *[numpy.uint32(at) for at in range(1, 16)]),
        }
        values = arguments[name]
        kernel = core.ObjectCode.from_ptx(PTX.read_bytes()).get_kernel(name)
        config = core.LaunchConfig(grid=1, block=32)

        # It holds the buffer, whose address the kernel is given.
        def loop(calls, launch=core.launch, buffer=buffer):
            for _ in repeat(None, calls):
                launch(stream, config, kernel, *values)

        return loop, stream.sync

    names = ("none", "four", "sixteen")
    return {f"launch.{name}": lambda _, name=name: launching(name) for name in names}
