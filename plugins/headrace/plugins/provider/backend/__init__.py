"""What ONNX Runtime loads."""
