"""Layers that make a run fail where ONNX Runtime would not survive a value."""
