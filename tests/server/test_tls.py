"""HTTPS, with certificates made here."""

import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.server.limits import Limits
from looseleaf.server.tls import TlsFiles, TlsRefresh

OPENSSL = shutil.which("openssl")

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")


def openssl(*words: str | Path) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *words], check=True, capture_output=True, timeout=60)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """One that vouches for itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
    )
    return certificate, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        make_certificate(folder, name)
    server, key = folder / "server.pem", folder / "server-key.pem"
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:open", "-out", folder / "locked.pem")
    (folder / "both.pem").write_bytes(key.read_bytes() + server.read_bytes())
    (folder / "password").write_text("open\n")
    (folder / "wrong").write_text("shut\n")
    (folder / "text").write_text("no certificate")
    return folder


def files(folder: Path, **names: Any) -> TlsFiles:
    found = {"certfile": "server.pem", "keyfile": "server-key.pem"} | names
    return TlsFiles(**{k: folder / v if isinstance(v, str) else v for k, v in found.items()})


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"certfile": "both.pem", "keyfile": None},
        {"keyfile": "locked.pem", "keyfile_password_file": "password"},
    ],
    ids=["two files", "one file", "a password"],
)
def test_the_official_client_over_https(
    start_server: Any, folder: Path, names: dict[str, Any]
) -> None:
    server = start_server(tls=files(folder, **names).context())
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=folder / "server.pem")
    with (
        httpx.Client(verify=trusted, timeout=30) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http) as client,
    ):
        made = client.completions.create(model="tiny", prompt="x", max_tokens=3)
        assert made.usage is not None
        assert made.usage.completion_tokens == 3
        chunks = client.completions.create(model="tiny", prompt="x", max_tokens=9, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "cdefghijk"
    # Nobody who does not trust the certificate goes on, and plain HTTP is no answer.
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/health", verify=ssl.create_default_context())
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(server.url.replace("https", "http") + "/health")


def test_old_versions_are_refused(start_server: Any, folder: Path) -> None:
    server = start_server(tls=files(folder).context())
    port = int(server.url.rpartition(":")[2])
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        old.wrap_socket(connection)
    assert server.http().get("/health").status_code == 200


def test_clients_may_have_to_have_certificates(start_server: Any, folder: Path) -> None:
    asked = files(folder, ca_certs="client.pem", cert_reqs=ssl.CERT_REQUIRED)
    server = start_server(tls=asked.context())
    known = ssl.create_default_context(cafile=folder / "server.pem")
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        httpx.get(f"{server.url}/health", verify=known)
    stranger = ssl.create_default_context(cafile=folder / "server.pem")
    stranger.load_cert_chain(folder / "server.pem", folder / "server-key.pem")
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        httpx.get(f"{server.url}/health", verify=stranger)
    known.load_cert_chain(folder / "client.pem", folder / "client-key.pem")
    assert httpx.get(f"{server.url}/health", verify=known).status_code == 200
    server.dead = True  # the client that looks whether it is idle has no certificate


def test_a_new_certificate_is_taken_and_a_bad_one_is_not(
    start_server: Any,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("looseleaf.server.run.REFRESH_SECONDS", 1)
    for name in ("server.pem", "server-key.pem"):
        shutil.copy(folder / name, tmp_path)
    served = files(tmp_path)
    context = served.context()
    refresh = TlsRefresh(served, context)
    server = start_server(tls=context, refresh_tls=refresh)
    port = int(server.url.rpartition(":")[2])

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)

    def refused(reason: str) -> None:
        server.eventually(lambda: reason in caplog.text, f"refused: {reason}", seconds=15)
        assert shown() == old

    old = (folder / "server.pem").read_text()
    new = (folder / "client.pem").read_text()
    assert shown() == old
    (tmp_path / "server.pem").write_text(new)  # the key is still the old one's
    refused("stays as it was: the private key in")
    (tmp_path / "server-key.pem").unlink()
    refused("stays as it was: [Errno 2] No such file")
    trusted = ssl.create_default_context(cafile=folder / "server.pem")
    with httpx.Client(verify=trusted) as open_before:
        assert open_before.get(f"{server.url}/health").status_code == 200
        shutil.copy(folder / "client-key.pem", tmp_path / "server-key.pem")
        server.eventually(lambda: shown() == new, "the certificate is new", seconds=15)
        assert open_before.get(f"{server.url}/health").status_code == 200


def test_who_shakes_hands_while_a_certificate_changes_gets_one_of_the_two(
    start_server: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.server.run.REFRESH_SECONDS", 0.1)
    certificates = [(folder / f"{name}.pem").read_text() for name in ("server", "client")]
    keys = [(folder / f"{name}-key.pem").read_text() for name in ("server", "client")]
    both = tmp_path / "both.pem"
    both.write_text(certificates[0] + keys[0])
    served = TlsFiles(certfile=both)
    context = served.context()
    server = start_server(tls=context, refresh_tls=TlsRefresh(served, context))
    port = int(server.url.rpartition(":")[2])
    shown: list[str] = []
    while len(shown) < 400 or set(shown) != set(certificates):
        if len(shown) % 40 == 0:
            turn = len(shown) // 40 % 2
            (tmp_path / "next.pem").write_text(certificates[turn] + keys[turn])
            (tmp_path / "next.pem").replace(both)
        shown.append(ssl.get_server_certificate(("127.0.0.1", port), timeout=10))
        assert len(shown) < 4_000
    assert set(shown) == set(certificates)


def test_who_never_shakes_hands_is_dropped(start_server: Any, folder: Path) -> None:
    server = start_server(tls=files(folder).context(), limits=Limits(header_timeout=0.5))
    port = int(server.url.rpartition(":")[2])
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        assert server.http().get("/health").status_code == 200
        assert silent.recv(100) == b""
    assert 0.4 < time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"certfile": "none.pem"}, r"the TLS certificate in .*none\.pem: no such file"),
        ({"keyfile": "none.pem"}, r"the private key in .*none\.pem: no such file"),
        ({"certfile": "."}, "is a directory"),
        ({"keyfile": "client-key.pem"}, r"client-key\.pem is not that of .*server\.pem"),
        ({"certfile": "text"}, "not a certificate and its private key in PEM form"),
        ({"keyfile": "text"}, "not a certificate and its private key in PEM form"),
        ({"keyfile": None}, "not a certificate and its private key in PEM form"),
        ({"keyfile": "locked.pem"}, "give that with --ssl-keyfile-password-file"),
        (
            {"keyfile": "locked.pem", "keyfile_password_file": "wrong"},
            r"the password in .*wrong does not open .*locked\.pem",
        ),
        ({"keyfile": "locked.pem", "keyfile_password_file": "none"}, "none: no such file"),
        (
            {"ca_certs": "text", "cert_reqs": ssl.CERT_REQUIRED},
            "text has no certificates of authorities",
        ),
        ({"ca_certs": "none", "cert_reqs": ssl.CERT_REQUIRED}, "none: no such file"),
        ({"ca_certs": "client.pem"}, "--ssl-cert-reqs optional or required: give both"),
        ({"cert_reqs": ssl.CERT_OPTIONAL}, "--ssl-ca-certs and --ssl-cert-reqs"),
    ],
)
def test_files_that_cannot_be_used(folder: Path, names: dict[str, Any], message: str) -> None:
    with pytest.raises(LooseleafError, match=message):
        files(folder, **names).context()
