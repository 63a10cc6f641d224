"""What sizes a network's values have in a request, told by its inputs' shapes without a run."""
