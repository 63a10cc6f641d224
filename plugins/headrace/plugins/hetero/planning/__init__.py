"""Which device computes which layer, and how the network is cut into parts."""
