"""What runs in the environments of the peers that are Python packages."""
