"""PyTorch's hand-over: a CUDA tensor through a queue of torch.multiprocessing."""

from hand_over import Other, rounds


def answer(requests, answers):
    """What the other process does. A tensor stays mapped as long as one of its storage is kept."""
    _kept = None
    while True:
        kind, tensor = requests.get()
        if kind in ("keep", "drop"):
            _kept = tensor
        word = 0 if tensor is None else int(tensor[0])
        del tensor
        answers.put(word)


def hand_over_batches(torch, device, synchronize):
    import torch.multiprocessing

    other = Other(torch.multiprocessing.get_context("spawn"), answer)

    def open_tensor(byte_length):
        tensor = torch.zeros(byte_length // 4, dtype=torch.int32, device=device)

        def prepare(word):
            tensor[0] = word
            synchronize()
            return tensor

        return tensor, prepare

    def mapped(byte_length):
        tensor, prepare = open_tensor(byte_length)
        synchronize()
        other.keep(tensor, tensor)
        return rounds(prepare, lambda it: other.ask("mapped", it)), synchronize

    def legacy(byte_length):
        _, prepare = open_tensor(byte_length)
        other.drop()
        return rounds(prepare, lambda it: other.ask("legacy", it)), synchronize

    return {"handOver.mapped": mapped, "handOver.legacy": legacy}
