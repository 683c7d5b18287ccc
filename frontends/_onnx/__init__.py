"""The ONNX importer: loading and checking a file, converting node by node, folding as it goes."""
