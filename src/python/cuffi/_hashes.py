"""Keys that take too long, in Python or in Node: their hashes are the same."""

from __future__ import annotations

import math
from typing import Any, Optional

from ._bytes import SAFE, pack_double
from ._protocol import MAX_COLLISIONS, MAX_COLLISIONS_PER_KEY, MAX_NAME_LENGTH, MAX_STEPS_PER_KEY, MAX_VALUE_PARTS
from ._values import BigInt, utf16_length


class HashTable:
    """Counts the steps of CPython to fill a dict or a set. Hashes of numbers and tuples have no seed: another
    process can choose keys that take the same steps, and each of them passes all others."""

    def __init__(self, is_set: bool) -> None:
        self._is_set = is_set
        # The hash in each slot, and the hashes in order: a set forgets the order when it grows.
        self._slots: list[Optional[int]] = [None] * 8
        self._hashes: list[int] = []
        self._count = self._steps = 0
        # Hashes of strings have a seed. Keys are counted from the first other one on.
        self._strings: Optional[list[str]] = []

    def add(self, key: Any) -> bool:
        """Adds the next key. Returns False if the keys so far take too many steps."""
        strings = self._strings
        if strings is not None:
            if type(key) is str:
                strings.append(key)
                return True
            self._strings = None
            for string in strings:
                self._add(hash(string))
        self._add(hash(key))
        return self._steps <= MAX_COLLISIONS + MAX_STEPS_PER_KEY * self._count

    def _add(self, hashed: int) -> None:
        self._count += 1
        size = len(self._slots)
        if self._is_set:
            self._place(hashed)
            if self._count * 5 >= (size - 1) * 3:
                self._grow(self._count * (2 if self._count > 50000 else 4) + 1, [one for one in self._slots if one is not None])
        else:
            if self._count > size * 2 // 3:
                self._grow(size * 2, self._hashes)
            self._hashes.append(hashed)
            self._place(hashed)

    def _place(self, hashed: int) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        perturb, at = hashed & 0xFFFFFFFFFFFFFFFF, hashed & mask
        steps, most = 0, _TOO_MANY_STEPS - self._steps
        while slots[at] is not None and steps < most:
            if self._is_set and at + 9 <= mask:
                # Nine neighbours follow, which are in one or two lines of the cache.
                near = slots[at : at + 10]
                if None in near:
                    at += near.index(None)
                    break
            steps += 1
            perturb >>= 5
            at = (at * 5 + perturb + 1) & mask
        slots[at] = hashed
        self._steps += steps

    def _grow(self, least: int, hashes: list[int]) -> None:
        self._slots = [None] * (1 << (least - 1).bit_length())
        for hashed in hashes:
            self._place(hashed)


# More than any keys may take that are accepted.
_TOO_MANY_STEPS = MAX_COLLISIONS + MAX_STEPS_PER_KEY * MAX_VALUE_PARTS


def check_collisions_in_node(keys: Any) -> None:
    """Refuses the keys that Node's Maps and Sets take too long for. As `HashCollisions` of Node."""
    hashes: list[int] = []
    buckets, collisions = [0, 0], 0
    for count, key in enumerate(keys):
        if count == 2 * len(buckets):
            buckets = [0] * (2 * len(buckets))
            for hashed in hashes:
                buckets[hashed & len(buckets) - 1] += 1
        found = _hash_in_node(key)
        if found is None:
            continue
        hashes.append(found)
        at = found & len(buckets) - 1
        collisions += buckets[at]
        buckets[at] += 1
        if collisions > MAX_COLLISIONS + MAX_COLLISIONS_PER_KEY * (count + 1):
            raise ValueError(
                'a Map or set has too many keys or members with the same hash in Node, and would be very slow there: '
                'send a list of them, or strings in their place'
            )


def _hash_in_node(key: Any) -> Optional[int]:
    """Returns the hash of V8 for keys whose hash has no seed."""
    if isinstance(key, str):
        length = utf16_length(key)
        return length if length > MAX_NAME_LENGTH else None
    if isinstance(key, bool) or not isinstance(key, (int, float)):
        return None
    if isinstance(key, int) and (isinstance(key, BigInt) or abs(key) > SAFE):
        bits = abs(key) & 0xFFFFFFFFFFFFFFFF
    elif -(2**31) <= key < 2**31 and key == math.floor(key):
        low = int(key) & 0xFFFFFFFF
        low = ((low ^ 0xFFFFFFFF) + (low << 15)) & 0xFFFFFFFF
        low ^= low >> 12
        low = low * 5 & 0xFFFFFFFF
        low ^= low >> 4
        low = low * 2057 & 0xFFFFFFFF
        return (low ^ low >> 16) & 0x3FFFFFFF
    else:
        bits = int.from_bytes(pack_double(key), 'little')
    bits = ((bits ^ 0xFFFFFFFFFFFFFFFF) + (bits << 18)) & 0xFFFFFFFFFFFFFFFF
    bits ^= bits >> 31
    bits = bits * 21 & 0xFFFFFFFFFFFFFFFF
    bits ^= bits >> 11
    bits = bits * 65 & 0xFFFFFFFFFFFFFFFF
    return (bits ^ bits >> 22) & 0x3FFFFFFF
