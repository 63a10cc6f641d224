"""The store that all replicas reach."""
