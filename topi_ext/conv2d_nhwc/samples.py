"""Samples of weights, which tell that others are given than those that were packed."""

from __future__ import annotations

import ctypes

import numpy as np

COUNT = 64  # of the bytes


class Samples:
    """Of so many bytes. Weights with the same id are the same, unless a user changed them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.step = max(1, size // COUNT) | 1  # odd: not only the lowest byte of each number
        self.last = (ctypes.c_uint8 * -(-size // self.step))()  # others may hold its address
        self._are_none = True
        self._address = 0
        self._sampled = np.zeros(0, "uint8")

    def are_new(self, address: int) -> bool:
        """Whether the weights at an address are none, or others, than the last time."""
        if address != self._address:
            everything = (ctypes.c_uint8 * self._size).from_address(address)
            self._sampled = np.ctypeslib.as_array(everything)[:: self.step]
            self._address = address
        sample = self._sampled.tobytes()
        if not self._are_none and sample == bytes(self.last):
            return False
        ctypes.memmove(self.last, sample, len(sample))
        self._are_none = False
        return True
