"""The worker's side: the process in which a device lives."""
