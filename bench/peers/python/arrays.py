"""What arrays cost: making a view of one, and bringing one of a few bytes to the host. The same for
each package, as they all have NumPy's names."""

from itertools import repeat

import numpy

SHAPE = (64, 64)


def array_batches(to_device, to_host, settle):
    """`to_device` makes an array of a NumPy one, `to_host` gives what copies one to the host."""

    def slicing(_):
        array = to_device(numpy.zeros(SHAPE, dtype=numpy.float32))

        def loop(calls):
            for _ in repeat(None, calls):
                array[2:10, 3]

        return loop, settle

    def reshaping(_):
        array = to_device(numpy.zeros(SHAPE, dtype=numpy.float32))

        def loop(calls, reshape=array.reshape):
            for _ in repeat(None, calls):
                reshape(16, 256)

        return loop, settle

    def copying(byte_length):
        expected = numpy.arange(1, byte_length + 1, dtype=numpy.uint8)
        copy = to_host(to_device(expected))
        if not numpy.array_equal(copy(), expected):
            raise RuntimeError("a copy brought other bytes back")

        def loop(calls):
            for _ in repeat(None, calls):
                copy()

        return loop, settle

    return {"array.slice": slicing, "array.reshape": reshaping, "array.toHost": copying}
