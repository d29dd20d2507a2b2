"""How long requests took and how large they were, under vLLM's names and with its buckets."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from looseleaf.engine.distribution import Distribution
from looseleaf.server.families import Families

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SAMPLES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


class RequestHistograms(Collector):
    """Belongs to the event loop's thread. Times are in seconds; those of what is sampled count
    each sample, the others each request."""

    def __init__(
        self, families: Families, max_model_len: int, *, legacy_names: bool = False
    ) -> None:
        self._families = families
        self._found: list[tuple[str, str, Distribution]] = []
        tokens = round_buckets(max_model_len)
        new = self._new
        self.ttft = new(
            "time_to_first_token_seconds", "From arrival to the first token", TTFT_BUCKETS
        )
        self.itl = new("inter_token_latency_seconds", "Between two tokens of a sample", ITL_BUCKETS)
        self.tpot = new(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first, by sample",
            ITL_BUCKETS,
        )
        self.e2e = new("e2e_request_latency_seconds", "From arrival to the end", LATENCY_BUCKETS)
        self.queue = new(
            "request_queue_time_seconds", "From arrival to the first step", LATENCY_BUCKETS
        )
        self.prefill = new(
            "request_prefill_time_seconds",
            "From the first step to the first token",
            LATENCY_BUCKETS,
        )
        self.decode = new(
            "request_decode_time_seconds", "From the first token to the last", LATENCY_BUCKETS
        )
        self.inference = new(
            "request_inference_time_seconds",
            "From the first step to the last token",
            LATENCY_BUCKETS,
        )
        self.prompt_tokens = new("request_prompt_tokens", "Prompt tokens, by request", tokens)
        self.computed_tokens = new(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens that were computed and not found, by request",
            tokens,
        )
        self.output_tokens = new("request_generation_tokens", "Tokens generated, by sample", tokens)
        self.longest_output = new(
            "request_max_num_generation_tokens", "Tokens of the longest sample, by request", tokens
        )
        self.num_samples = new("request_params_n", "Samples asked for, by request", SAMPLES)
        self.max_tokens = new(
            "request_params_max_tokens", "Most tokens that a sample may have, by request", tokens
        )
        self.preemptions = new(
            "request_num_preemptions", "Preemptions of all samples, by request", PREEMPTIONS
        )
        if legacy_names:
            name, text = "vllm:time_per_output_token_seconds", "Now inter_token_latency_seconds"
            self._found.append((name, text, self.itl))

    def collect(self) -> Iterator[Metric]:
        for name, text, found in self._found:
            yield self._families.histogram(name, text, found)

    def _new(self, name: str, text: str, bounds: Sequence[float]) -> Distribution:
        found = Distribution(bounds)
        self._found.append((f"vllm:{name}", text, found))
        return found


def round_buckets(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to `most`."""
    buckets = [
        mantissa * 10**exponent for exponent in range(len(str(most))) for mantissa in (1, 2, 5)
    ]
    return tuple(float(bucket) for bucket in buckets if bucket <= most)
