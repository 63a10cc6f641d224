"""The server's settings: each declared once, and where their values come from."""
