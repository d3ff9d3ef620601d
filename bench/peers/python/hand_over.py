"""Handing device memory to another process, which reads a word that changes in each round, and
answers with it. Only the way there and back is timed."""

from itertools import count
from time import perf_counter_ns

# Long enough to load PyTorch from a cold disk.
TIMEOUT_SECONDS = 100

words = count(1)


class Other:
    """The other process, started when it is first asked: `target` is called there with a queue for
    each direction."""

    def __init__(self, context, target):
        self.context = context
        self.target = target
        self.requests = None
        self.kept = None

    def start(self):
        if self.requests is not None:
            return
        self.requests, self.answers = self.context.Queue(), self.context.Queue()
        process = self.context.Process(
            target=self.target, args=(self.requests, self.answers), daemon=True
        )
        process.start()

    def ask(self, kind, thing=None):
        """Sends what is handed over; answers with the word that the other process read."""
        self.start()
        self.requests.put((kind, thing))
        return self.answers.get(timeout=TIMEOUT_SECONDS)

    def keep(self, owner, thing):
        """Has the other process keep it mapped, in place of what it kept; `owner` is its memory."""
        self.ask("keep", thing)
        # What it had before is freed only now.
        self.kept = owner

    def drop(self):
        """Has the other process keep nothing."""
        self.ask("drop")
        self.kept = None


class PipedOther(Other):
    """As `Other`, over a pipe in place of the queues."""

    def start(self):
        if self.requests is not None:
            return
        self.requests, theirs = self.context.Pipe()
        self.context.Process(target=self.target, args=(theirs,), daemon=True).start()

    def ask(self, kind, thing=None):
        self.start()
        self.requests.send((kind, thing))
        if not self.requests.poll(TIMEOUT_SECONDS):
            raise RuntimeError("the other process does not answer")
        return self.requests.recv()


def rounds(prepare, give, finish=lambda thing: None):
    """A loop: `prepare` takes a word, writes it to device memory and waits for that; `give` hands
    the memory over, and answers with the word that was read."""

    def loop(calls):
        taken = 0
        for _ in range(calls):
            word = next(words)
            thing = prepare(word)
            start = perf_counter_ns()
            seen = give(thing)
            taken += perf_counter_ns() - start
            if seen != word:
                raise RuntimeError(f"the other process read {seen}, not {word}")
            finish(thing)
        return taken

    return loop
