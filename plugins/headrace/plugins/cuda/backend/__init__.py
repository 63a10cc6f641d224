"""What CUDA is on this machine: the driver, the GPUs, their memory."""
