"""A seeded shuffle that needs no memory: the i-th element of a permutation, computed on demand.

A Feistel network over Z_a x Z_b with a*b just above the size (Black and Rogaway, Ciphers with
Arbitrary Finite Domains, 2002); a value outside the range is sent through again until it falls
inside, which keeps the map a bijection. Good for shuffling, not a cipher.
"""

from __future__ import annotations

import math

_NUM_ROUNDS = 6  # even, so that the two halves end where they began
_MASK = (1 << 64) - 1


class Permutation:
    """The permutation of ``range(size)`` that belongs to a seed and an epoch."""

    def __init__(self, size: int, *, seed: int, epoch: int = 0) -> None:
        """Derive the round keys; ``size`` is at least 1, any whole ``seed`` and ``epoch`` do."""
        assert size >= 1, size
        self.size = size
        self._a = math.isqrt(size - 1) + 1
        self._b = -(-size // self._a)
        state = _mix(_mix(seed & _MASK) ^ (epoch & _MASK))
        self._keys = tuple(_mix(state + round_ + 1) for round_ in range(_NUM_ROUNDS))

    def __getitem__(self, position: int) -> int:
        """Give the element at ``position``, in ``range(size)``."""
        assert 0 <= position < self.size, position
        value = self._once(position)
        while value >= self.size:
            value = self._once(value)
        return value

    def _once(self, value: int) -> int:
        a, b = self._a, self._b
        left, right = value % a, value // a
        for key in self._keys:
            left, right = right, (left + _mix(key ^ right)) % a
            a, b = b, a
        return right * a + left


def _mix(value: int) -> int:
    """Scramble 64 bits: the finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
