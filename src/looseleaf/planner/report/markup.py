"""Numbers and text as HTML. All text is escaped, but for what is `Html` already."""

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Markup, to be taken as it is."""

    __slots__ = ()


def html(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value))


def seconds(value: float | None) -> str:
    if value is None:
        return "\u2013"
    if value < 1:
        return f"{1000 * value:.1f} ms" if value < 0.1 else f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 60 else f"{value:,.1f} s"


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


def table(
    caption: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    marked: int | None = None,
) -> Html:
    """The first cell of a row is its title; row `marked` is set off from the others."""
    head = "".join(f'<th scope="col">{html(one)}</th>' for one in headers)
    body = []
    for i, (first, *rest) in enumerate(rows):
        cells = "".join(f"<td>{html(one)}</td>" for one in rest)
        kind = ' class="marked"' if i == marked else ""
        body.append(f'<tr{kind}><th scope="row">{html(first)}</th>{cells}</tr>')
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html(caption)}"><table>'
        f"<caption>{html(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def details(title: str, body: str) -> Html:
    return Html(f"<details><summary>{html(title)}</summary>{html(body)}</details>")


def figure(title: str, text: str, *parts: str) -> Html:
    body = "".join(html(part) for part in parts)
    return Html(
        f"<figure><figcaption><h3>{html(title)}</h3><p>{html(text)}</p></figcaption>{body}</figure>"
    )


def pair(*figures: str) -> Html:
    """Side by side where there is room."""
    return Html(f'<div class="pair">{"".join(html(one) for one in figures)}</div>')


def section(name: str, title: str, *parts: str) -> Html:
    body = "".join(html(part) for part in parts)
    return Html(
        f'<section aria-labelledby="{html(name)}"><h2 id="{html(name)}">{html(title)}</h2>'
        f"{body}</section>"
    )


def paragraph(text: str) -> Html:
    return Html(f"<p>{html(text)}</p>")


def items(texts: Iterable[str], kind: str) -> Html:
    return Html(
        f'<ul class="{html(kind)}">' + "".join(f"<li>{html(text)}</li>" for text in texts) + "</ul>"
    )
