"""``headrace status`` and ``headrace top``: the server's status document, once and live."""
