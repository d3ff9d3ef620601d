"""What numba's device arrays cost."""

from arrays import array_batches
from serve import serve


def start():
    from numba import cuda

    if not cuda.is_available():
        raise RuntimeError("it finds no GPU")

    def to_host(array):
        return array.copy_to_host

    return array_batches(cuda.to_device, to_host, cuda.synchronize)


serve("numba", start)
