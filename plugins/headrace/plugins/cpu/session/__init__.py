"""ONNX Runtime sessions: opening, running and profiling them."""
