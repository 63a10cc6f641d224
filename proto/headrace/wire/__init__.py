"""What client and server say to each other: values, messages, errors and parameters."""
