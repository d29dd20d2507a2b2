"""A workload in YAML, as `looseleaf plan` takes it (docs/workloads.md says what each key means).

requests: 2000
arrivals: {process: poisson, rate: 4}
classes:
  - name: chat
    prompt: {lognormal: {median: 150, p95: 900}}
    output: {exponential: 200}
    turns: {uniform: [1, 6]}
    think: {exponential: 20}
    shared_prefix: {length: 512, groups: 4}
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from looseleaf.core.errors import ConfigError
from looseleaf.engine.beams import MAX_WIDTH
from looseleaf.planner.distribution import (
    Bounded,
    Constant,
    Distribution,
    Exponential,
    LogNormal,
    Uniform,
    cdf_of,
    read_cdf,
)
from looseleaf.planner.synthetic import (
    HASHED_TOKENS,
    PROCESSES,
    Arrivals,
    SharedPrefix,
    TrafficClass,
    Workload,
)
from looseleaf.planner.yaml_keys import Keys, read_yaml

MAX_REQUESTS = 1_000_000
MAX_TOKENS = 10_000_000
MAX_SECONDS = 1e7

_CLASS_KEYS = (
    "name",
    "weight",
    "prompt",
    "output",
    "total",
    "output_share",
    "turns",
    "think",
    "shared_prefix",
    "n",
    "beam_width",
    "priority",
    "aborts",
)
_KEYS = ("requests", "duration", "seed", "arrivals", "classes", *_CLASS_KEYS)
_FORMS = ("uniform", "exponential", "lognormal", "cdf")


def read_workload_file(path: Path, seed: int | None = None) -> Workload:
    """A seed wins over the file's. Raises ConfigError, which names the key, its value and what it
    may be."""
    keys = Keys(read_yaml(path), str(path), _KEYS)
    if "classes" in keys:
        for key in _CLASS_KEYS:
            if key in keys:
                raise ConfigError(f"{keys.at(key)} is of one class: put it under classes")
        listed = keys.get("classes")
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"{keys.at('classes')} must be a list of at least one class")
        classes = [
            _class(Keys(one, f"{path}: classes[{i}]", _CLASS_KEYS), path, f"class {i}")
            for i, one in enumerate(listed)
        ]
    else:
        classes = [_class(keys, path, "all")]
    arrivals = _arrivals(keys, path)
    closed = arrivals.users is not None
    if closed and "duration" in keys:
        raise ConfigError(f"{keys.at('duration')} is for a rate: a closed loop needs requests")
    if ("requests" in keys) == ("duration" in keys):
        raise ConfigError(f"{path}: say how much there is: requests, or duration in seconds")
    workload = Workload(
        arrivals=arrivals, classes=tuple(classes), seed=keys.whole("seed", 0, 2**63 - 1, 0)
    )
    if seed is not None:
        workload = replace(workload, seed=seed)
    if "requests" in keys:
        return replace(workload, num_requests=keys.whole("requests", 1, MAX_REQUESTS))
    most = min(MAX_SECONDS, MAX_REQUESTS / arrivals.rate)
    return replace(workload, duration=keys.number("duration", most))


def _arrivals(keys: Keys, path: Path) -> Arrivals:
    found = keys.section("arrivals", ("process", "rate", "cv", "users", "think"))
    if found is None:
        raise ConfigError(f"{path}: arrivals is missing: say {{process: poisson, rate: 4}}")
    process = found.choice("process", PROCESSES, "closed" if "users" in found else "poisson")
    wanted = {"gamma": ("rate", "cv"), "closed": ("users", "think")}.get(process, ("rate",))
    for key in ("rate", "cv", "users", "think"):
        if key in found and key not in wanted:
            raise ConfigError(f"{found.at(key)} means nothing where the process is {process}")
    if process == "closed":
        think = _optional(found, "think", path, MAX_SECONDS)
        return Arrivals(process=process, users=found.whole("users", 1, 100_000), think=think)
    cv = found.number("cv", 100) if process == "gamma" else 1.0
    return Arrivals(process=process, rate=found.number("rate", 1e6), cv=cv)


def _class(keys: Keys, path: Path, name: str) -> TrafficClass:
    beam_width = keys.whole("beam_width", 1, MAX_WIDTH, 0)
    if beam_width:
        for key in ("n", "aborts"):
            if key in keys:
                raise ConfigError(f"{keys.at(key)} is not for a beam search: leave one of them out")
    total = "total" in keys
    for key in ("prompt", "output") if total else ("output_share",):
        if key in keys:
            raise ConfigError(
                f"{keys.where}: say prompt and output, or total and output_share, not {key} too"
            )
    aborts = keys.section("aborts", ("share", "after"))
    weight = keys.number("weight", 1e6) if "weight" in keys else 1.0
    return TrafficClass(
        name=str(keys.get("name") or name),
        weight=weight,
        prompt=_distribution(keys, "total" if total else "prompt", path, MAX_TOKENS),
        output=None if total else _distribution(keys, "output", path, MAX_TOKENS),
        output_share=keys.number("output_share", 0.999) if total else None,
        turns=_optional(keys, "turns", path, 10_000),
        think=_optional(keys, "think", path, MAX_SECONDS),
        shared_prefix=_shared_prefix(keys),
        num_samples=keys.whole("n", 1, 128, 1),
        beam_width=beam_width,
        priority=keys.whole("priority", -(2**31), 2**31, 0),
        abort_share=0.0 if aborts is None else aborts.number("share", 1),
        abort_after=None if aborts is None else _distribution(aborts, "after", path, MAX_TOKENS),
    )


def _shared_prefix(keys: Keys) -> SharedPrefix | None:
    found = keys.section("shared_prefix", ("length", "groups", "share", "zipf"))
    if found is None:
        return None
    length = found.whole("length", 1, MAX_TOKENS)
    return SharedPrefix(
        # Prompts are told apart by so many tokens.
        length=-(-length // HASHED_TOKENS) * HASHED_TOKENS,
        groups=found.whole("groups", 1, 100_000, 1),
        share=found.number("share", 1) if "share" in found else 1.0,
        zipf=found.number("zipf", 10) if "zipf" in found else 0.0,
    )


def _optional(keys: Keys, key: str, path: Path, most: float) -> Distribution | None:
    return _distribution(keys, key, path, most) if key in keys else None


def _distribution(keys: Keys, key: str, path: Path, most: float) -> Distribution:
    """Of numbers from 0 to `most`: a number alone, or a mapping with one form and bounds."""
    value = keys.get(key)
    if type(value) in (int, float):
        return Constant(keys.number(key, most))
    if not isinstance(value, dict):
        raise keys.wrong(key, f"a number, or one of {', '.join(_FORMS)}, like {{uniform: [1, 9]}}")
    found = Keys(value, keys.at(key), (*_FORMS, "min", "max"))
    forms = [form for form in _FORMS if form in found]
    if len(forms) != 1:
        raise ConfigError(f"{found.where} must have one of {', '.join(_FORMS)}")
    inner = _READERS[forms[0]](found, path, most)
    least = found.number("min", most, above=False) if "min" in found else 0.0
    top = found.number("max", most, least=least, above=False) if "max" in found else most
    return Bounded(inner, least, top)


def _uniform(found: Keys, _: Path, most: float) -> Distribution:
    value = found.get("uniform")
    good = isinstance(value, list) and len(value) == 2
    if not good or not all(type(one) in (int, float) and 0 <= one <= most for one in value):
        raise found.wrong("uniform", f"two numbers from 0 to {most:g}, like [1, 9]")
    if value[0] > value[1]:
        raise found.wrong("uniform", "the smaller number first")
    return Uniform(float(value[0]), float(value[1]))


def _exponential(found: Keys, _: Path, most: float) -> Distribution:
    return Exponential(found.number("exponential", most))


def _lognormal(found: Keys, _: Path, most: float) -> Distribution:
    keys = Keys(found.get("lognormal"), found.at("lognormal"), ("median", "p95", "mean", "cv"))
    if "mean" in keys or "cv" in keys:
        for key in ("median", "p95"):
            if key in keys:
                raise ConfigError(f"{keys.where}: say median and p95, or mean and cv")
        return LogNormal.of_mean(keys.number("mean", most), keys.number("cv", 100))
    median = keys.number("median", most)
    return LogNormal.of_p95(median, keys.number("p95", most, least=median))


def _cdf(found: Keys, path: Path, _: float) -> Distribution:
    value = found.get("cdf")
    if isinstance(value, str):
        return read_cdf(path.parent / Path(value).expanduser())
    return cdf_of(value, found.at("cdf"))


_READERS: dict[str, Callable[[Keys, Path, float], Distribution]] = {
    "uniform": _uniform,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "cdf": _cdf,
}
