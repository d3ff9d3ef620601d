"""PyTorch's allocations, copies, launches, hand-over, and what the GPU takes for some of it."""

from functools import lru_cache
from itertools import repeat

from serve import serve
from torch_gpu import gpu_batches
from torch_hand_over import hand_over_batches


def start():
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("it finds no GPU")
    device = torch.device("cuda", 0)
    torch.cuda.init()
    synchronize = torch.cuda.current_stream(device).synchronize

    def pattern(byte_length):
        part = torch.arange(65_521, dtype=torch.int64).mul_(31).to(torch.uint8)
        return part.repeat(byte_length // part.numel() + 1)[:byte_length]

    def require_equal(seen, expected):
        if not torch.equal(seen.cpu(), expected):
            raise RuntimeError("a copy brought other bytes")

    def require_round_trip(host, on_device):
        expected = pattern(host.numel())
        host.copy_(expected)
        on_device.copy_(host)
        host.zero_()
        host.copy_(on_device)
        require_equal(host, expected)

    @lru_cache(maxsize=2)
    def memory(byte_length, pinned):
        """Of the last size, for both directions."""
        host = torch.empty(byte_length, dtype=torch.uint8, pin_memory=pinned)
        on_device = torch.empty(byte_length, dtype=torch.uint8, device=device)
        require_round_trip(host, on_device)
        return host, on_device

    def copying(pinned, to_device):
        def open_copy(byte_length):
            host, on_device = memory(byte_length, pinned)
            target, source = (on_device, host) if to_device else (host, on_device)

            def loop(calls, copy=target.copy_):
                for _ in repeat(None, calls):
                    copy(source, non_blocking=pinned)
                    synchronize()

            return loop, synchronize, lambda: verify_copy(target, source, loop)

        return open_copy

    def verify_copy(target, source, loop):
        """One more, to memory that was cleared."""
        expected = pattern(source.numel())
        source.copy_(expected)
        target.zero_()
        synchronize()
        loop(1)
        require_equal(target, expected)

    def copying_on_device(byte_length):
        source = torch.zeros(byte_length, dtype=torch.uint8, device=device)
        target = torch.zeros_like(source)

        def loop(calls, copy=target.copy_):
            for _ in repeat(None, calls):
                copy(source)
            synchronize()

        return loop, synchronize, lambda: verify_copy(target, source, loop)

    def open_pool(byte_length):
        def loop(calls, empty=torch.empty, uint8=torch.uint8):
            for _ in repeat(None, calls):
                tensor = empty(byte_length, dtype=uint8, device=device)
                del tensor

        def verify():
            require_written(torch.empty(byte_length, dtype=torch.uint8, device=device))

        return loop, synchronize, verify

    def require_written(tensor):
        """What is allocated is memory that holds what is written there."""
        expected = pattern(tensor.numel())
        tensor.copy_(expected)
        require_equal(tensor, expected)

    def adding(_):
        """y += 2.5 * x, of a few items: two tensors, a factor and a length, as saxpy has."""
        x = torch.ones(16, device=device)
        y = torch.zeros_like(x)

        def loop(calls, add=y.add_):
            for _ in repeat(None, calls):
                add(x, alpha=2.5)

        def verify():
            y.zero_()
            loop(3)
            require_equal(y, torch.full((16,), 7.5))

        return loop, synchronize, verify

    batches = {
        "add": adding,
        "pool.allocate": open_pool,
        "pageable.toDevice": copying(pinned=False, to_device=True),
        "pageable.toHost": copying(pinned=False, to_device=False),
        "pinned.toDevice": copying(pinned=True, to_device=True),
        "pinned.toHost": copying(pinned=True, to_device=False),
        "onDevice": copying_on_device,
        **gpu_batches(torch, device, memory, pattern),
        **hand_over_batches(torch, device, synchronize),
    }

    # Pinned memory that is freed stays in a cache: without this only the first time allocates.
    empty_cache = getattr(torch._C, "_host_emptyCache", None)
    if empty_cache is not None:

        def open_pinned(byte_length):
            def loop(calls):
                for _ in repeat(None, calls):
                    tensor = torch.empty(byte_length, dtype=torch.uint8, pin_memory=True)
                    del tensor
                    empty_cache()

            def verify():
                require_written(torch.empty(byte_length, dtype=torch.uint8, pin_memory=True))

            return loop, synchronize, verify

        batches["host.allocate"] = open_pinned
    return batches


# The other process of a hand-over loads this file, too.
if __name__ == "__main__":
    serve("torch", start)
