"""Passes that prepare a graph for others, or tidy up after them."""
