"""Runs requests on a provider."""
