"""Checks that OpenVINO lacks: conditions that a run computes, and checks of a request's shapes."""
