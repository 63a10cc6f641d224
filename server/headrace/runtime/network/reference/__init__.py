"""onnx's reference evaluator, with its errors corrected."""
