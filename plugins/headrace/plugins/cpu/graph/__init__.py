"""Changes to the graph that ONNX Runtime gets: versions that it reads, repairs, inserted layers."""
