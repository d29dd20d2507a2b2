"""Time that passes only as somebody says."""


class VirtualClock:
    """Seconds since the replay began; called like `time.monotonic`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wait_until(self, time: float) -> None:
        """Never goes back."""
        self.now = max(self.now, time)
