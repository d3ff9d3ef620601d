"""What arrays cost: making a view of one, and bringing one of a few bytes to the host. The same for
each package, as they all have NumPy's names."""

from itertools import repeat

import numpy

SHAPE = (64, 64)


def require_equal(seen, expected):
    if not numpy.array_equal(seen, expected):
        raise RuntimeError("a copy brought other bytes back")


def array_batches(to_device, to_host, settle):
    """`to_device` makes an array of a NumPy one, `to_host` gives what copies one to the host."""

    def slicing(_):
        items = numpy.arange(SHAPE[0] * SHAPE[1], dtype=numpy.float32).reshape(SHAPE)
        array = to_device(items)

        def loop(calls):
            for _ in repeat(None, calls):
                array[2:10, 3]

        # Copied as it is kept: not every package brings items with gaps between them to the host.
        def verify():
            require_equal(to_host(array)()[2:10, 3], items[2:10, 3])
            if array[2:10, 3].shape != items[2:10, 3].shape:
                raise RuntimeError("a view has another shape")

        return loop, settle, verify

    def reshaping(_):
        array = to_device(numpy.zeros(SHAPE, dtype=numpy.float32))

        def loop(calls, reshape=array.reshape):
            for _ in repeat(None, calls):
                reshape(16, 256)

        return loop, settle

    def copying(byte_length):
        expected = numpy.arange(1, byte_length + 1, dtype=numpy.uint8)
        copy = to_host(to_device(expected))

        def loop(calls):
            for _ in repeat(None, calls):
                copy()

        return loop, settle, lambda: require_equal(copy(), expected)

    return {"array.slice": slicing, "array.reshape": reshaping, "array.toHost": copying}
