"""Launches of kernels that do nothing, through cuda.core."""

from itertools import repeat

from idle_kernels import ASKED, MEMORY_BYTES, PTX, kernel_arguments, require_written


def launch_batches(device, read):
    """Made when they are asked for: a program that lacks them still does the others. `read` gives so many
    bytes of a buffer."""
    import numpy
    from cuda import core

    def launching(name):
        stream = device.create_stream()
        buffer = device.allocate(MEMORY_BYTES, stream=stream)
        address = int(buffer.handle)
        values = kernel_arguments(numpy, address)[name]
        asked = kernel_arguments(numpy, address, ASKED)[name]
        kernel = core.ObjectCode.from_ptx(PTX.read_bytes()).get_kernel(name)
        config = core.LaunchConfig(grid=1, block=32)

        # It holds the buffer, whose address the kernel is given.
        def loop(calls, launch=core.launch, buffer=buffer):
            for _ in repeat(None, calls):
                launch(stream, config, kernel, *values)

        def verify():
            core.launch(stream, config, kernel, *asked)
            stream.sync()
            require_written(name, address, read(buffer, MEMORY_BYTES))

        return loop, stream.sync, verify

    names = ("none", "four", "sixteen")
    return {f"launch.{name}": lambda _, name=name: launching(name) for name in names}
