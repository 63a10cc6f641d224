"""What the two clients do, as generators of calls that each of them runs in its own way."""
