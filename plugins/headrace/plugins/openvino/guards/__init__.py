"""Checks that OpenVINO lacks: conditions that a run computes, and the shapes of a request."""
