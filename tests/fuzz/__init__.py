"""Random networks through every pipeline: `python -m tests.fuzz --help`."""
