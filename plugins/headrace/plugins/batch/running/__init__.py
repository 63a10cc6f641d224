"""Takes requests through a batch: decides when they run together, and joins their rows."""
