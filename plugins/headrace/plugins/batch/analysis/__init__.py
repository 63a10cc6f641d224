"""Whether a network computes each row by itself, as its graph tells."""
