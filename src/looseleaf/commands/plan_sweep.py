"""`looseleaf plan --sweep`"""

import argparse
from typing import Any

from looseleaf.bench.progress import progress
from looseleaf.commands.options import print_json
from looseleaf.commands.plan_points import Point, points
from looseleaf.commands.plan_setup import deployment, played, workload
from looseleaf.core.errors import ConfigError, LooseleafError
from looseleaf.planner.summary import as_json
from looseleaf.planner.sweep import as_text
from looseleaf.planner.trials import in_order


def run(options: argparse.Namespace) -> None:
    if options.search:
        raise ConfigError("--sweep and --search try settings each in its way: leave out one")
    found = points(options, options.sweep)
    rows = []
    with progress("settings", len(found)) as advance:
        for row in in_order(_row, found, options.jobs):
            rows.append(row)
            advance()
    if all("error" in row for row in rows):
        raise ConfigError(rows[0]["error"])
    if options.json:
        print_json({"trace": options.trace.name, "points": rows})
    else:
        print(as_text(rows))


def _row(point: Point) -> dict[str, Any]:
    """What cannot be planned is told beside what can: one of the values may be too much."""
    try:
        deployed = deployment(point.options)
        plan = played(point.options, deployed, workload(point.options))
    except LooseleafError as error:
        return {"settings": point.settings, "error": str(error)}
    row: dict[str, Any] = {
        "settings": point.settings,
        "num_blocks": plan.memory.num_blocks,
        "summary": as_json(plan.summary),
        "warnings": list(plan.warnings),
    }
    if point.options.slo is not None:
        row["slo"] = point.options.slo.as_json(plan.result.outcomes)
    return row
