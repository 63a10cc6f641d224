"""``headrace benchmark``: load, figures and pictures."""
