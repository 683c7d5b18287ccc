"""Padded rows: tensors whose length is detected, as ones of static length of which some rows are valid."""
