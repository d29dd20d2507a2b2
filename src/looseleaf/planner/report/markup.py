"""Text as HTML. All text is escaped, but for what is `Html` already."""

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Markup, to be taken as it is."""

    __slots__ = ()


def html(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value))


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
