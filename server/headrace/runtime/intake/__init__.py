"""Reads models from outside, checks them and limits their size."""
