"""Runs during a load that find out whether rows are independent, and whether batches pay."""
