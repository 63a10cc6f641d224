"""What is served, apart from how it is carried."""
