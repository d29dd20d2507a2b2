"""Options of vLLM's server that mean nothing here, or that are called otherwise.

Command lines written for vLLM work where what they ask for is what happens anyway; where it is not,
the error says what to use instead.
"""

import argparse
import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger(__name__)

_MEANINGLESS = (
    "--trust-remote-code",
    "--enforce-eager",
    "--enable-chunked-prefill",
    "--async-scheduling",
    "--disable-log-requests",
    "--enable-prompt-tokens-details",
)
"""Without a value: what they ask for happens anyway, or has no counterpart."""

_ONE = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")

_AUTO = (
    "--dtype",
    "--tokenizer-mode",
    "--load-format",
    "--generation-config",
    "--distributed-executor-backend",
    "--attention-backend",
)

_REFUSED = {
    "--gpu-memory-utilization": "give the KV cache its size with --kv-cache-memory",
    "--num-gpu-blocks-override": "give the KV cache its size with --kv-cache-memory",
    "--kv-cache-memory-bytes": "it is called --kv-cache-memory here, and takes sizes like 2GiB",
    "--kv-offloading-size": "it is called --swap-space here, and takes sizes like 4GiB",
    "--speculative-config": "guess from the text itself with --speculative-ngram",
    "--quantization": "weights have the types of the model file",
    "--tokenizer": "the tokenizer is the model file's",
    "--enable-lora": "adapters are not supported",
    "--kv-transfer-config": "blocks are not sent to other servers",
    "--ssl-ciphers": "they are those of the OpenSSL that Python uses, for TLS 1.2 and later",
    "--h11-max-header-count": "headers are limited by their size, with --max-header-bytes",
}


class _Ignored(argparse.Action):
    """Notes that an option was given. With `takes`, only that value may be."""

    def __init__(self, *args: Any, takes: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._takes = takes

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self._takes is not None and values != self._takes:
            raise argparse.ArgumentError(
                self, f"it is {values!r}, but only {self._takes} is supported: leave it out"
            )
        namespace.ignored = [*getattr(namespace, "ignored", ()), option_string]


class _Refused(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        raise argparse.ArgumentError(self, f"it is not supported: {_REFUSED[str(option_string)]}")


def add_vllm_options(parser: argparse.ArgumentParser) -> None:
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "dest": argparse.SUPPRESS}
    for name in _MEANINGLESS:
        parser.add_argument(name, action=_Ignored, nargs=0, **hidden)
    for name, value in [(name, "1") for name in _ONE] + [(name, "auto") for name in _AUTO]:
        parser.add_argument(name, action=_Ignored, takes=value, **hidden)
    for name in _REFUSED:
        parser.add_argument(name, action=_Refused, nargs="?", **hidden)


def log_ignored(options: Sequence[str]) -> None:
    if options:
        logger.info("these options change nothing here: %s", ", ".join(options))
