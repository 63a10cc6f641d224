"""The wire format of protobuf, for what must not be parsed as a whole."""
