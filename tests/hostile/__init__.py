"""Files that are no models, or models that nobody should trust: what `from_onnx` does with them."""
