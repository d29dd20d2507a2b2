"""The report as one page of HTML: nothing is fetched, and all can be read without a script.

Whatever is told in numbers is taken from the report that `--json` prints, which the page holds too.
The same report makes the same page, byte for byte.
"""

import json
from importlib import resources
from typing import Any

from looseleaf.engine.settings import format_bytes
from looseleaf.planner.amounts import change, number, seconds, share
from looseleaf.planner.plan import Plan
from looseleaf.planner.report import curves, series
from looseleaf.planner.report.charts import bar, legend
from looseleaf.planner.report.markup import (
    Html,
    figure,
    html,
    items,
    pair,
    paragraph,
    section,
    table,
)
from looseleaf.planner.report.recorded import Curves
from looseleaf.planner.report.tiers import outside_the_cache

Report = dict[str, Any]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What the page may do: nothing that leaves it."""


def page(report: Report, plan: Plan, recorded: Curves | None = None) -> str:
    """`report` is what `--json` prints of this plan; `recorded` is drawn over the replay."""
    span = series.span_of(plan.result)
    if recorded is not None:
        span = span._replace(end=max(span.end, span.start + recorded.times[-1]))
    time = curves.Time(span)
    parts = [_header(report), _tiles(report), _warnings(report)]
    if plan.result.outcomes:
        over_time = [
            curves.memory_over_time(plan, time),
            curves.requests_over_time(plan, time, recorded),
        ]
        if report["summary"]["prefix_queries"] and report["summary"]["prefix_caching"]:
            over_time.append(curves.hit_rate(plan, time))
        if "against" in report:
            parts.append(_against(report["against"]))
        parts += [
            section("over-time", "Over time", *over_time),
            section("latencies", "How long requests take", pair(*curves.latencies(plan))),
        ]
    parts.append(outside_the_cache(report) or "")
    if "what_if" in report:
        parts.append(_what_if(report["what_if"]))
    if "allocators" in report:
        parts.append(_allocators(report["allocators"]))
    parts += [_rests_on(report), _rows_not_used(report)]
    title = html(f"{report['model']} on {report['hardware']}")
    data = json.dumps(report, ensure_ascii=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Plan: {title}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body>\n"
        f"<main>\n{chr(10).join(part for part in parts if part)}\n</main>\n"
        f'<script type="application/json" id="report">{data}</script>\n'
        f"<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return resources.files("looseleaf.planner.report").joinpath(name).read_text(encoding="utf-8")


def _header(report: Report) -> str:
    cache, trace, parallel = report["kv_cache"], report["trace"], report["tensor_parallel_size"]
    devices = report["hardware_title"]
    if parallel > 1:
        devices = f"{parallel} x {devices}"
    played = [f"{number(trace['requests'])} requests of {trace['file']}"]
    if trace["rate"] is not None:
        played.append(f"{trace['rate']:g} a second at random (seed {trace['seed']})")
    if trace["speed"] != 1:
        played.append(f"{trace['speed']:g} times as fast")
    facts = (
        f"weights {report['weights_dtype']}",
        f"KV {report['kv_cache_dtype']}, {format_bytes(cache['bytes'])}",
        f"blocks of {cache['block_size']} tokens",
        f"at most {report['settings']['max_num_seqs']} sequences",
    )
    return (
        f'<header><p class="kind">Capacity plan</p><h1>{html(report["model"])} '
        f"<span>on {html(devices)}</span></h1><p>{html(', '.join(played))}</p>"
        f"{items(facts, 'facts')}</header>"
    )


def _tiles(report: Report) -> str:
    s, cache, fits = report["summary"], report["kv_cache"], report["fits"]
    speed = Html(f"{number(s['output_tokens_per_second'])} <span>tokens/s</span>")
    hits = share(s["hit_rate"]) if s["prefix_caching"] else "off"
    tokens = number(cache["num_blocks"] * cache["block_size"])
    tiles = [
        (
            "throughput", "Throughput", speed,
            f"generated; {number(s['requests_per_second'])} requests/s, "
            f"{number(s['tokens_per_second'])} tokens/s with the prompts'",
        ),
        ("ttft", "Time to first token", *_percentiles(s["ttft"])),
        ("tpot", "Time per output token", *_percentiles(s["tpot"])),
        (
            "hits", "Prefix hit rate", hits,
            f"of prompt tokens; blocks of {cache['block_size']}, cache of {tokens} tokens, over "
            "the whole replay from empty",
        ),
        (
            "preemptions", "Preemptions", number(s["preemptions"]),
            f"of {number(s['preempted_requests'])} requests; "
            f"{number(s['recomputed_tokens'])} tokens computed again",
        ),
        (
            "fits", "Requests that fit", number(fits["at_mean"]),
            f"at once, of {number(fits['mean_tokens'])} tokens as on average; "
            f"{number(fits['at_p95'])} of {number(fits['p95_tokens'])} (P95)",
        ),
    ]  # fmt: skip
    drawn = "".join(
        f'<div data-tile="{name}"><dt>{html(title)}</dt><dd><strong>{html(value)}</strong>'
        f"<small>{html(text)}</small></dd></div>"
        for name, title, value, text in tiles
    )
    return f'<dl class="tiles">{drawn}</dl>'


def _percentiles(spread: dict[str, float] | None) -> tuple[str, str]:
    if spread is None:
        return "\u2013", "no request has one"
    return seconds(spread["p50"]), (
        f"P50; P95 {seconds(spread['p95'])}, P99 {seconds(spread['p99'])}, "
        f"mean {seconds(spread['mean'])}"
    )


def _warnings(report: Report) -> str:
    if not report["warnings"]:
        return ""
    return section("warnings", "Warnings", items(map(_sentence, report["warnings"]), "warnings"))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _against(against: Report) -> str:
    errors = [
        (e["name"], seconds(e["ours"]), seconds(e["theirs"]), change(e["ours"], e["theirs"]))
        for e in against["errors"]
    ]
    found = [paragraph(f"The recording is {against['file']}. Nothing was fitted to it here.")]
    if errors:
        found.append(
            table("Requests", ["figure", "replayed", "recorded", "off by"], errors),
        )
    curve_rows = []
    for one in against["curves"]:
        text = share if "KV" in one["name"] else number
        cells = (one["difference"], one["ours_peak"], one["theirs_peak"])
        curve_rows.append((one["name"], *map(text, cells)))
    headers = ["curve", "mean absolute difference", "replayed peak", "recorded peak"]
    found.append(table("Curves, at the recorded times", headers, curve_rows))
    return section("against", "Against the recording", *found)


def _what_if(what_if: Report) -> str:
    base = what_if["cases"][0]["summary"]

    def with_change(value: float | None, planned: float | None, text: str) -> Html:
        told = change(value, planned) if value is not planned else ""
        return Html(f"{html(text)}<small>{html(told)}</small>")

    def latency(summary: Report, name: str, percentile: str) -> Html:
        found, planned = summary[name], base[name]
        value = None if found is None else found[percentile]
        return with_change(value, None if planned is None else planned[percentile], seconds(value))

    rows = []
    for case in what_if["cases"]:
        s = case["summary"]
        speed = s["output_tokens_per_second"]
        rows.append(
            (
                case["change"],
                with_change(speed, base["output_tokens_per_second"], number(speed)),
                latency(s, "ttft", "p50"),
                latency(s, "ttft", "p95"),
                latency(s, "tpot", "p50"),
                latency(s, "tpot", "p95"),
                share(s["hit_rate"]) if s["prefix_caching"] else "off",
                number(s["preemptions"]),
                share(s["kv_used_peak"]),
                number(s["refused"]),
            )
        )
    headers = [
        "one change", "output tokens/s", "TTFT P50", "TTFT P95", "TPOT P50", "TPOT P95",
        "hit rate", "preemptions", "KV peak", "can never fit",
    ]  # fmt: skip
    text = (
        f"{_sample(what_if)} Each row is a replay of its own through the same engine. Step times "
        "come from the same cost model: what a block size or a batch limit does to kernels and to "
        "memory besides the KV cache is not in them."
    )
    return section(
        "what-if",
        "What if",
        paragraph(text),
        table("One change at a time", headers, rows, marked=0),
    )


def _sample(part: Report) -> str:
    num, total = part["requests"], part["of"]
    if num == total:
        return f"All {number(total)} requests."
    return f"The first {number(num)} of {number(total)} requests, the planned settings too."


def _allocators(allocators: Report) -> str:
    rows = []
    for case in allocators["cases"]:
        split = case["split"]
        shares = [None] * 4 if split is None else list(split.values())
        drawn = "" if split is None else bar(list(split.items()))
        rows.append(
            (
                case["allocator"],
                Html(drawn),
                *map(share, shares),
                number(case["running_mean"]),
                number(case["running_peak"]),
                number(case["output_tokens_per_second"]),
                seconds(case["ttft_p50"]),
                number(case["refused"]),
            )
        )
    headers = [
        "allocator", "of the memory taken", "token states", "reserved", "internal", "external",
        "running, mean", "at most", "output tokens/s", "TTFT P50", "can never fit",
    ]  # fmt: skip
    reserved = allocators["cases"][-1]["max_model_len"]
    text = (
        f"{_sample(allocators)} What each way to reserve memory does with it: paged blocks, or one "
        "region for each request, as long as it will be (oracle), as the next power of two of its "
        f"output (pow2), or as {number(reserved)} tokens (max: the longest that a request may be "
        "and that a region holds)."
    )
    key = [
        ("stored", "token states"),
        ("reserved", "reserved for tokens to come"),
        ("internal", "internal waste"),
        ("external", "external waste"),
    ]
    body = figure(
        "Where the memory goes", text, Html(legend(key)),
        table("Shares of the memory taken, over time", headers, rows),
    )  # fmt: skip
    return section("allocators", "Waste by allocator", body)


def _rests_on(report: Report) -> str:
    cost, cache = report["cost_model"], report["kv_cache"]
    settings = {
        "num_blocks": cache["num_blocks"],
        "block_size": cache["block_size"],
        "max_model_len": cache["max_model_len"],
        **report["settings"],
    }
    rows = [(name, _setting(value)) for name, value in settings.items()]
    model = Html(
        f"<dl><dt>Step times</dt><dd>{html(cost['name'])}</dd>"
        f"<dt>Known error</dt><dd>{html(cost['known_error'])}</dd></dl>"
    )
    return section(
        "rests-on",
        "What this rests on",
        paragraph(
            "The server's own scheduler and block tables, on a virtual clock. Only the time that "
            "steps take is a model:"
        ),
        model,
        table("Settings", ["setting", "value"], rows),
    )


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "not set"
    return number(value) if isinstance(value, int) else str(value)


def _rows_not_used(report: Report) -> str:
    trace, parts = report["trace"], []
    bad, refused = trace["first_bad_rows"], report["first_refused"]
    if bad:
        title = f"Rows of the trace that could not be used: {number(trace['bad_rows'])}"
        if len(bad) < trace["bad_rows"]:
            title += f", the first {len(bad)}"
        parts.append(table(title, ["line", "why"], [(row["line"], row["reason"]) for row in bad]))
    if refused:
        num = report["summary"]["refused"]
        title = f"Requests that can never fit: {number(num)}"
        if len(refused) < num:
            title += f", the first {len(refused)}"
        rows = [(seconds(row["arrival"]), row["reason"]) for row in refused]
        parts.append(table(title, ["arrival", "why"], rows))
    return section("left-out", "Left out", *parts) if parts else ""
