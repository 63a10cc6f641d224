"""Requests on their way through the steps of a pipeline."""
