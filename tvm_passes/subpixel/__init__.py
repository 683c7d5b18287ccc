"""Passes for sub-pixel networks: shuffles restored, moved next to convolutions, and folded into them."""
