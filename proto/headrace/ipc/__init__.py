"""What processes of one machine say to each other: messages, descriptors and shared memory.

Whoever is at the other end may be hostile: what it sends is bounded and checked before it is used.
"""
