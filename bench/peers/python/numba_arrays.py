"""What numba's device arrays cost, and its hand-over."""

from arrays import array_batches
from numba_hand_over import hand_over_batches
from serve import serve


def start():
    from numba import cuda

    if not cuda.is_available():
        raise RuntimeError("it finds no GPU")

    def to_host(array):
        return array.copy_to_host

    return {
        **array_batches(cuda.to_device, to_host, cuda.synchronize),
        **hand_over_batches(cuda),
    }


# The other process of a hand-over loads this file, too.
if __name__ == "__main__":
    serve("numba", start)
