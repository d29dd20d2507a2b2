"""Short guided scenes on the real bookkeeping: what they show is read from it, or counted by it."""
