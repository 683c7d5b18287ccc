"""Operators by cuDNN's graph API: how compiled code calls it, its plans, and what they share."""
