"""Decides where a request runs: on OpenVINO, or on CPU."""
