"""How many filters may be added to those of a convolution, in either TVM."""

MAX_WASTE = 0.25  # of the filters that are computed
