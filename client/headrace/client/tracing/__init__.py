"""Traces of a program that uses OpenTelemetry."""
