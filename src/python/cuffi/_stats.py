"""What connections and channels have done: the results of `stats()`."""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """How many messages went one way, how many bytes they had, and how many GPU objects came with them."""

    messages: int
    byte_length: int
    objects: int


class Unsent(NamedTuple):
    """What waits to be sent, because the other end does not read."""

    messages: int
    byte_length: int


class RequestCounts(NamedTuple):
    """How many requests of this end have no answer, and how many of the other one."""

    asked: int
    serving: int


class LeaseCounts(NamedTuple):
    """How many objects the other end has of this one, and this one of the other."""

    given: int
    held: int


class PeerStats(NamedTuple):
    """The result of `peer.stats()`. Answers and requests count as messages, too."""

    sent: Traffic
    received: Traffic
    unsent: Unsent
    # How many values have arrived that nobody has received.
    waiting: int
    requests: RequestCounts
    leases: LeaseCounts


class ChannelStats(NamedTuple):
    """The result of `channel.stats()`."""

    published: int
    consumers: int
    slots: int
    # How many slots are acquired, published and not released, or being filled by the GPU.
    in_use: int


class ConsumerStats(NamedTuple):
    """The result of `channel.stats()` of a consumer: how many messages it has received, and released."""

    received: int
    released: int
    slots: int
