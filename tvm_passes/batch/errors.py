"""What goes wrong: with one image, which is recorded, and with a whole job, which ends it."""

from __future__ import annotations

__all__ = ["BadImage", "BatchError"]


class BadImage(Exception):
    """The reason why an image cannot be used; the job records it and goes on."""


class BatchError(RuntimeError):
    """One sentence that says why a job cannot begin or go on, and what to do about it."""
