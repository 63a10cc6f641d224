"""How a model from outside is read, bounded and checked."""
