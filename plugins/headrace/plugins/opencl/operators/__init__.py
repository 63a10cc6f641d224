"""The functions that compute operators: tinygrad's, and our own where tinygrad's are wrong."""
