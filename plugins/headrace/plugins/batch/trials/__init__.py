"""Runs at a load: whether rows are independent, and whether batches pay."""
