"""The one spelling both frontends give their graphs."""

from tvm_passes.canonicalize import canonical_pipeline

from tvm import relay


def canonicalize(mod):
    """A typed module with the idioms of both importers in one spelling; the same numbers."""
    return relay.transform.InferType()(canonical_pipeline()(mod))
