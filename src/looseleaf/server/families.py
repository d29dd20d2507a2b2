"""Numbers in Prometheus' form, all with the labels that vLLM's have."""

from collections.abc import Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from looseleaf.engine.distribution import Distribution

LABELS = ("model_name", "engine")


class Families:
    """Makes families for one model. With a `label`, there is a value for each of what it says."""

    def __init__(self, model_name: str) -> None:
        self.labels = (model_name, "0")

    def gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self.labels, value)
        return family

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            family.add_metric((*self.labels, key), value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """Its name ends in `_total` where it is scraped."""
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self.labels, value)
        return family

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            family.add_metric((*self.labels, key), value)
        return family

    def histogram(self, name: str, text: str, found: Distribution) -> Metric:
        family = HistogramMetricFamily(name, text, labels=LABELS)
        bounds = [*map(floatToGoString, found.bounds), "+Inf"]
        family.add_metric(
            self.labels, list(zip(bounds, found.cumulative(), strict=True)), found.total
        )
        return family

    def info(
        self, name: str, text: str, settings: Mapping[str, object], value: float = 1
    ) -> Metric:
        """A gauge whose labels are what it tells."""
        family = GaugeMetricFamily(name, text, labels=(*LABELS, *settings))
        family.add_metric((*self.labels, *map(str, settings.values())), value)
        return family
