"""`--help` of everything, and what an unknown word gets."""

import pytest

from looseleaf.cli import COMMANDS

ENGINE_FLAGS = (
    "--block-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--max-model-len",
    "--kv-cache-memory",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--kv-allocator",
    "--long-prefill-token-threshold",
    "--scheduling-policy",
    *("--executor", "--threads", "--activations", "--kv-cache-dtype"),
    *("--swap-space", "--preemption-mode", "--kv-disk", "--kv-disk-size", "--pin-budget"),
    "--speculative-ngram",
)
SAMPLING_FLAGS = (
    *("--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--stop"),
    *("--ignore-eos", "--min-tokens", "--presence-penalty", "--frequency-penalty"),
    *("--repetition-penalty", "--logit-bias", "--bad-word", "--allowed-token-ids"),
    *("--json-schema", "--regex", "--choice", "--grammar"),
)
FLAGS = {
    "serve": (
        *("--model", "--host", "--port", "--served-model-name", "--log-level"),
        *("--enable-log-requests", "--max-body-bytes", "--shutdown-timeout", "--pin"),
        *("--studio", "--no-studio", "--studio-show-text", "--studio-record"),
        "--studio-record-limit",
        *("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser", "--timings"),
        *("--log-format", "--kv-cache-metrics", "--legacy-metric-names", "--record"),
        *("--uds", "--uds-mode", "--ssl-certfile", "--ssl-keyfile", "--ssl-keyfile-password-file"),
        *("--ssl-ca-certs", "--ssl-cert-reqs", "--max-connections", "--timeout-keep-alive"),
        *("--request-header-timeout", "--max-header-bytes", "--h11-max-incomplete-event-size"),
        *ENGINE_FLAGS,
    ),
    "chat": ("--model", "--system", "--verbose", *SAMPLING_FLAGS, *ENGINE_FLAGS),
    "generate": (
        *("--model", "--prompt", "--prompt-token-ids", "--json", "--n", "--no-prompt-logprobs"),
        *("--profile", "--beam-width", "--length-penalty"),
        *SAMPLING_FLAGS,
        *ENGINE_FLAGS,
    ),
    "tokenize": ("--model", "--no-parse-special", "--no-add-special", "--messages", "--json"),
    "pull": ("--list", "--json"),
    "plan": (
        *("--model", "--hardware", "--json", "--rate", "--seed", "--speed", "--limit"),
        *("--memory", "--gpu-memory-utilization", "--kv-cache-memory", "--num-blocks"),
        *("--tensor-parallel-size", "--weights-dtype", "--kv-cache-dtype", "--block-size"),
        *("--max-model-len", "--no-enable-prefix-caching", "--kv-allocator", "--max-num-seqs"),
        *("--max-num-batched-tokens", "--long-prefill-token-threshold", "--admission-headroom"),
        *("--scheduling-policy", "--kernel-profile", "--compute-efficiency"),
        *("--bandwidth-efficiency", "--step-overhead", "--replicas", "--routing", "--slo"),
        *("--search", "--price-per-hour", "--sweep", "--jobs"),
        *("--kv-disk", "--kv-disk-size", "--disk-bandwidth"),
        *("--studio-record", "--studio-record-limit"),
    ),
    "fit": (
        *("--memory", "--hardware", "--gpu-memory-utilization", "--tensor-parallel-size"),
        *("--kv-cache-memory", "--overhead", "--weights-dtype", "--kv-cache-dtype"),
        *("--block-size", "--requests", "--shared-prefix", "--max-model-len", "--max-num-seqs"),
        *("--max-num-batched-tokens", "--list", "--json"),
    ),
    "reproduce": (),
    "calibrate": ("--model", "--json", "--output", "--rounds", *ENGINE_FLAGS),
    "demo": ("--model", "--json", "--seeds", "--skip-model", *ENGINE_FLAGS),
    "studio": (
        *("--host", "--port", "--num-blocks", "--max-num-seqs", "--rate", "--seed"),
        *("--export", "--at", "--history"),
    ),
    "bench": (),
    "perplexity": (
        *("--model", "--json", "--context", "--max-tokens", "--compare", "--executor", "--threads"),
        *("--activations", "--kv-cache-dtype"),
    ),
    "cache": (),
    "verify": (
        *("--json", "--prompt-tokens", "--max-tokens", "--soak", "--executor", "--threads"),
        *("--activations", "--kv-cache-dtype"),
    ),
    "doctor": ("--json", "--no-bandwidth"),
    "version": ("--json",),
}


def test_the_top_lists_every_command(call) -> None:
    outcome = call("--help")
    assert (outcome.status, outcome.err) == (0, "")
    width = max(map(len, COMMANDS)) + 2
    for name, summary in COMMANDS.items():
        assert f"{name:{width}}{summary}" in outcome.out
    assert FLAGS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_flags(call, name: str) -> None:
    outcome = call(name, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert f"usage: looseleaf {name} " in outcome.out
    options = outcome.out.partition("\noptions:")[2]
    named = {word.strip(",") for word in options.split() if word.startswith("-")}
    for flag in FLAGS[name]:
        assert flag in named
    for nothing in ("(default: None)", "(default: False)", "(default: [])"):
        assert nothing not in outcome.out


def test_values_that_are_chosen_by_default_are_told(call) -> None:
    out = " ".join(call("serve", "--help").out.split())
    for told in (
        "tokens in a KV block (default: 16)",
        "most sequences in a step (default: 128)",
        "address to listen on (default: 127.0.0.1)",
        "0 picks a free one (default: 8000)",
        "equal beginnings (default: True)",
        "fits into the KV cache)",
        "auto is native where it is installed (default: auto)",
        "auto is int16 (native) or f32 (reference) (default: auto)",
        "(default: the physical cores this process may use)",
    ):
        assert told in out


def test_help_of_a_real_process(spawn) -> None:
    outcome = spawn("--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: looseleaf ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["COMMAND"]),
        (("sing",), ["sing", "serve", "generate"]),
        (("generate", "--sing"), ["--sing"]),
        (("--json",), ["COMMAND"]),
        (("generate", "--n", "some"), ["--n", "'some'"]),
        (("generate", "--executor", "abacus"), ["--executor", "'abacus'", "reference"]),
        (("serve", "--scheduling-policy", "lottery"), ["'lottery'", "fcfs", "priority"]),
        (("serve", "--kv-allocator", "heap"), ["'heap'", "paged", "contiguous-max"]),
        (("serve", "--log-level", "shout"), ["'shout'", "info"]),
        (("generate", "--prompt", "a", "--prompt-token-ids", "[1]"), ["not allowed with"]),
        (("pull", "one", "two"), ["two"]),
        (("version", "extra"), ["extra"]),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_words_that_mean_nothing_are_refused_with_those_that_do(call, arguments, words) -> None:
    outcome = call(*arguments)
    outcome.check_refused(*words)
    assert outcome.out == ""
