"""Changes to OpenVINO's graph of a network before the graph is compiled."""
