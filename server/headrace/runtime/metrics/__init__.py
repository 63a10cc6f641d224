"""What devices and networks count."""
