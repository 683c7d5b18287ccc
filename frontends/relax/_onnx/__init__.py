"""ONNX graphs with fixed shapes as graphs of Relax."""
