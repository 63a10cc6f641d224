"""Finds outputs whose values ONNX does not define, or leaves to the arithmetic."""
