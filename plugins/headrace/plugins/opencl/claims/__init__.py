"""Which layers the device takes, and which it refuses, with the reasons."""
