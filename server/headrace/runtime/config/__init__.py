"""Configuration keys, device names, and what hints decide."""
