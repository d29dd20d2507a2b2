"""`looseleaf serve` on a unix socket and with TLS: real processes, and what is refused."""

import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.timeout(90)

SECONDS = 30


def until_it_says(process: Any, log: Path, words: str) -> str:
    deadline = time.monotonic() + SECONDS
    while words not in (text := log.read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.02)
    return text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_at_a_unix_socket(
    start: Any, spawn: Any, tiny_model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    path, log = tmp_path / "sock", tmp_path / "log"
    words = ("serve", str(tiny_model), "--uds", str(path), "--uds-mode", "660")
    for _ in range(2):  # the second finds what the first has left
        with log.open("wb") as file:
            process = start(*words, stderr=file)
        until_it_says(process, log, f"http://unix:{path}:/v1; ")
        assert path.stat().st_mode & 0o777 == 0o660
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=SECONDS) as client:
            assert client.get("http://any/health").status_code == 200
            spawn(*words).check_refused(str(path), "somebody listens there")
            assert client.get("http://any/health").status_code == 200
        process.send_signal(number)
        process.wait(SECONDS)
        assert path.exists() == (number is signal.SIGKILL)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "server.pem", tmp_path / "key.pem"
    words = (
        *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=server"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
    )
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return certificate, key


def test_a_process_with_tls(
    start: Any, tiny_model: Path, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    log = tmp_path / "log"
    words = ("--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1]))
    with log.open("wb") as file:
        process = start("serve", str(tiny_model), "--port", "0", *words, stderr=file)
    text = until_it_says(process, log, "/v1; KV cache")
    url = next(word for word in text.split() if word.startswith("https://")).removesuffix("/v1;")
    trusted = ssl.create_default_context(cafile=certificate[0])
    assert httpx.get(f"{url}/health", verify=trusted, timeout=SECONDS).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ssl-certfile", "/nowhere/c.pem"), "/nowhere/c.pem: no such file"),
        (("--ssl-keyfile", "k.pem"), "--ssl-keyfile has no use without --ssl-certfile"),
        (("--ssl-keyfile-password-file", "p"), "--ssl-keyfile-password-file has no use"),
        (("--ssl-cert-reqs", "2"), "--ssl-cert-reqs has no use without --ssl-certfile"),
        (("--uds", "/nowhere/s"), "/nowhere/s: no such file"),
    ],
)
def test_what_cannot_be_had_is_said_before_a_model_is_loaded(
    call: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr("looseleaf.commands.serve.build", None)
    call("serve", "anything", *words).check_refused(told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ssl-cert-reqs", "maybe"), "none of none, optional, required"),
        (("--uds-mode", "9"), "'9' is not a file mode"),
        (("--uds-mode", "7777"), "'7777' is not a file mode"),
    ],
)
def test_values_that_make_no_sense(call: Any, words: tuple[str, ...], told: str) -> None:
    call("serve", *words).check_refused(told)
