"""What OpenVINO accepts, but does not compute as ONNX says."""
