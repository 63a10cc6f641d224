"""Variants that are not random: wrong ranks and lengths of every input."""
