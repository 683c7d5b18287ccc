"""Places in memory: pairs of an address and a size in bytes."""

from collections.abc import Iterable

Place = tuple[int, int]


def overlaps(place: Place, others: Iterable[Place]) -> bool:
    """Whether a place has bytes of the others."""
    address, size = place
    return any(address < other + length and other < address + size for other, length in others)
