"""What tokens cost."""

from typing import Any, NamedTuple


class Price(NamedTuple):
    """Of a million tokens, in device hours, and in money where a device's hour has a price."""

    device_hours_per_million_tokens: float
    device_hours_per_million_output_tokens: float
    per_million_tokens: float | None
    per_million_output_tokens: float | None

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def price(
    num_devices: int,
    tokens_per_second: float,
    output_tokens_per_second: float,
    per_hour: float | None,
) -> Price:
    """Of devices that do nothing else. `tokens_per_second` are of prompts and outputs together; in
    the figures for output tokens, they bear all of the cost."""

    def hours(rate: float) -> float:
        return num_devices / 3600 / rate * 1e6

    every, output = hours(tokens_per_second), hours(output_tokens_per_second)
    if per_hour is None:
        return Price(every, output, None, None)
    return Price(every, output, per_hour * every, per_hour * output)
