"""Names of places, as the commands print them."""

from __future__ import annotations

from collections.abc import Iterable

PLACES = 3  # that are named; --json and --graph show all


def places(locations: Iterable[str]) -> str:
    """Some of the locations, and the number of others."""
    different = list(dict.fromkeys(location or "?" for location in locations))
    more = len(different) - PLACES
    return ", ".join(different[:PLACES]) + (f" and {more} more" if more > 0 else "")
