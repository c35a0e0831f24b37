"""Memory for arrays: the pool of buffers, pinned memory, and how much the system has left."""
