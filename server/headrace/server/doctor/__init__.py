"""``headrace doctor``: checks of a machine, of settings and of a running server."""
