"""Detectors of packages that are not ours: what becomes of each. `python -m tests.zoo` runs them."""
