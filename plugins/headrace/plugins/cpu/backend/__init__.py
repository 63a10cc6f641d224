"""ONNX Runtime: what is changed in a graph before it, its sessions, tensors and errors."""
