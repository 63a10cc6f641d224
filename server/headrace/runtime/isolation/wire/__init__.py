"""What server and worker send each other."""
