"""What stands between a camera's image and a network: resize, normalise, pad, order and type.

`preprocess` builds the Relay expression; `reference.preprocess` says in NumPy what it answers.
"""

from .op import preprocess

__all__ = ["preprocess"]
