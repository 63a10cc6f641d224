"""The server's settings: their declarations, and the sources of their values."""
