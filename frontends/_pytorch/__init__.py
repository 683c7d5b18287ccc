"""The PyTorch importer: tracing a model, converting its graph, saying what stands in the way."""
