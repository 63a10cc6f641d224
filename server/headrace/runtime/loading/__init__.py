"""How networks are loaded, kept, exported and unloaded."""
