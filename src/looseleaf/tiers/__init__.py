"""Memory besides the pool: blocks that were evicted are kept in RAM, on disk, or both."""
