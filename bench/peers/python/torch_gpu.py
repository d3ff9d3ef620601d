"""PyTorch's copies and a kernel of its own by the GPU's clock."""

from itertools import repeat

from gpu_time import GpuTimer

# Of a row, what is copied and what is not.
WIDTH = 256
STRIDE = 512
# x is read, y is read and written: the bytes of a batch are all three.
VECTORS_MOVED = 3
FACTOR = 2.5
# What x holds, again and again: integers, of which all that is computed is exact.
PERIOD = 1024


def require_equal(torch, seen, expected):
    if not torch.equal(seen, expected):
        raise RuntimeError("other values than were sent")


def gpu_batches(torch, device, memory, pattern):
    """`memory` gives host and device memory of a size, `pattern` so many bytes that tell where they
    belong."""
    made = []

    def timer():
        if not made:
            stream = torch.cuda.Stream(device)
            made.append((stream, GpuTimer(stream.cuda_stream)))
        return made[0]

    def timing(queue, verify):
        stream, clock = timer()
        torch.cuda.synchronize(device)

        def queue_in_stream(calls):
            with torch.cuda.stream(stream):
                for _ in repeat(None, calls):
                    queue()

        def look():
            verify(lambda: (torch.cuda.synchronize(device), queue_in_stream(1), clock.settle()))

        return clock.loop(queue_in_stream), clock.settle, look

    def copying(target, source):
        def verify(copy):
            expected = pattern(source.numel()).reshape(source.shape)
            source.copy_(expected)
            target.zero_()
            copy()
            require_equal(torch, target.cpu(), expected)

        return timing(lambda: target.copy_(source, non_blocking=True), verify)

    def to_device(byte_length):
        host, on_device = memory(byte_length, True)
        return copying(on_device, host)

    def to_host(byte_length):
        host, on_device = memory(byte_length, True)
        return copying(host, on_device)

    def on_device(byte_length):
        source = pattern(byte_length).to(device)
        return copying(torch.zeros_like(source), source)

    def rows(byte_length):
        whole = torch.zeros((byte_length // WIDTH, STRIDE), dtype=torch.uint8, device=device)
        source = whole[:, :WIDTH]
        return copying(torch.zeros(source.shape, dtype=torch.uint8, device=device), source)

    def saxpy(byte_length):
        count = byte_length // VECTORS_MOVED // 4
        x = torch.arange(count, device=device).remainder_(PERIOD).to(torch.float32)
        y = torch.zeros_like(x)

        def verify(add):
            y.zero_()
            add()
            require_equal(torch, y, FACTOR * x)

        return timing(lambda: y.add_(x, alpha=FACTOR), verify)

    return {
        "gpu.toDevice": to_device,
        "gpu.toHost": to_host,
        "gpu.onDevice": on_device,
        "gpu.rows": rows,
        "gpu.saxpy": saxpy,
    }
