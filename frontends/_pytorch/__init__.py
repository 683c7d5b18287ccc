"""The PyTorch importer: tracing a model, converting its graph, explaining what cannot be converted."""
