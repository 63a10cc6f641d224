"""tinygrad's thread, devices, environment and folder of kernels."""
