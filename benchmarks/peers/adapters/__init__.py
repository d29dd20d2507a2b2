"""How each peer is installed, started and asked."""
