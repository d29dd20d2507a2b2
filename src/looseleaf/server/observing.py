"""What a server tells about itself."""

from dataclasses import dataclass

from looseleaf.core.errors import ConfigError

DEFAULT_KV_SAMPLE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Observing:
    """With `legacy_metric_names`, metrics are also told under names that vLLM had before.
    `kv_sample` is the share of the KV blocks whose stay is measured; None is none."""

    legacy_metric_names: bool = False
    kv_sample: float | None = None

    def __post_init__(self) -> None:
        if self.kv_sample is not None and not 0 < self.kv_sample <= 1:
            raise ConfigError(
                f"kv_cache_metrics_sample is {self.kv_sample:g}, but it must be a share of the "
                f"blocks, above 0 and at most 1"
            )


DEFAULT_OBSERVING = Observing()
