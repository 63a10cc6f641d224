"""The worker's side: the process that a device lives in."""
