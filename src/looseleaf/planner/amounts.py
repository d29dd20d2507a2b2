"""Times, shares and numbers as people read them."""


def seconds(value: float | None) -> str:
    """Within a text or a chart, with no more digits than are read there."""
    if value is None:
        return "\u2013"
    if value < 1:
        return f"{1000 * value:.1f} ms" if value < 0.1 else f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 60 else f"{value:,.1f} s"


def seconds_text(value: float) -> str:
    """In a column of the terminal, at most nine characters up to a day."""
    if value < 1:
        return f"{1000 * value:.1f} ms"
    return f"{value:.2f} s" if value < 600 else f"{value:.0f} s"


def short(value: float) -> str:
    """Seconds at the end of an axis."""
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.4g} s"


def share(value: float | None) -> str:
    return "\u2013" if value is None else f"{100 * value:.1f}%"


def number(value: float) -> str:
    """Whole, or with what can be told of a small one."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def change(value: float | None, base: float | None) -> str:
    """By how much it is more or less, if that can be said."""
    if not value or not base:
        return ""
    if value == base:
        return "same"
    percent = 100 * (value / base - 1)
    if abs(percent) < 0.05:
        return "\u00b10%"
    if abs(percent) >= 1000:
        return f"\u00d7{value / base:.1f}"
    sign = "+" if percent > 0 else "\u2212"
    digits = 0 if abs(percent) >= 10 else 1
    return f"{sign}{abs(percent):.{digits}f}%"
