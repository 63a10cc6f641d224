"""tinygrad: its thread, devices, operators and errors, and where its kernels are kept."""
