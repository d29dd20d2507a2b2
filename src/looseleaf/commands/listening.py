"""Options of `looseleaf serve` about its socket: where it is, and TLS on it. `looseleaf studio` has
an address too."""

import argparse
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from looseleaf.commands.options import memory_size
from looseleaf.core.errors import LooseleafError
from looseleaf.server.limits import (
    DEFAULT_HEADER_BYTES,
    DEFAULT_HEADER_TIMEOUT,
    DEFAULT_KEEP_ALIVE,
    MAX_CONNECTIONS,
    RESERVED_FILES,
)
from looseleaf.server.run import DEFAULT_HOST, bind
from looseleaf.server.tls import CLIENT_CERTIFICATES, TlsFiles, TlsRefresh
from looseleaf.server.unix_socket import DEFAULT_MODE, unix_socket


def add_address(group: argparse._ActionsContainer, port: int) -> None:
    group.add_argument("--host", default=DEFAULT_HOST, help="address to listen on")
    group.add_argument("--port", type=_port, default=port, help="0 picks a free one")


def add_listening(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("unix socket")
    where.add_argument(
        "--uds",
        type=Path,
        metavar="PATH",
        help="listen on a unix socket at this path, instead of --host and --port",
    )
    where.add_argument(
        "--uds-mode",
        type=_mode,
        default=f"{DEFAULT_MODE:o}",
        metavar="MODE",
        help="who may connect, as an octal file mode like 660",
    )
    connections = parser.add_argument_group("connections")
    connections.add_argument(
        "--max-connections",
        type=int,
        metavar="N",
        help="open connections; a further one takes the place of the one that has been idle the "
        f"longest, or gets a 503 (default: {MAX_CONNECTIONS}, or {RESERVED_FILES} fewer than files "
        "may be open)",
    )
    connections.add_argument(
        "--timeout-keep-alive",
        type=int,
        default=DEFAULT_KEEP_ALIVE,
        metavar="SECONDS",
        help="how long a connection stays open between two requests",
    )
    connections.add_argument(
        "--request-header-timeout",
        type=float,
        default=DEFAULT_HEADER_TIMEOUT,
        metavar="SECONDS",
        help="how long a client may take to send a request's line and headers",
    )
    connections.add_argument(
        "--max-header-bytes",
        "--h11-max-incomplete-event-size",
        type=memory_size,
        default=DEFAULT_HEADER_BYTES,
        metavar="SIZE",
        help="largest line and headers of a request together",
    )
    tls = parser.add_argument_group("tls", "Files are in PEM form. TLS is 1.2 or later.")
    tls.add_argument(
        "--ssl-certfile",
        type=Path,
        metavar="FILE",
        help="serve https with this certificate, and the chain that follows it in the file",
    )
    tls.add_argument(
        "--ssl-keyfile",
        type=Path,
        metavar="FILE",
        help="its private key (default: in the certificate's file)",
    )
    tls.add_argument(
        "--ssl-keyfile-password-file",
        type=Path,
        metavar="FILE",
        help="the password of the private key, if it has one",
    )
    tls.add_argument(
        "--ssl-ca-certs",
        type=Path,
        metavar="FILE",
        help="authorities of clients' certificates; needs --ssl-cert-reqs",
    )
    tls.add_argument(
        "--ssl-cert-reqs",
        type=_cert_reqs,
        default="none",
        metavar="|".join(CLIENT_CERTIFICATES),
        help="whether clients must have a certificate; 0, 1 and 2 are the same",
    )
    tls.add_argument(
        "--enable-ssl-refresh",
        action="store_true",
        help="read the files again when they are replaced, for connections from then on",
    )


@contextmanager
def listening(options: argparse.Namespace) -> Iterator[socket.socket]:
    """A socket at the address that was asked for. Raises LooseleafError."""
    if options.uds is None:
        with bind(options.host, options.port) as listener:
            yield listener
    else:
        with unix_socket(options.uds, options.uds_mode) as listener:
            yield listener


class Tls(NamedTuple):
    """`refresh` is to be called from time to time, where the files may be replaced."""

    context: ssl.SSLContext | None = None
    refresh: TlsRefresh | None = None


def tls_of(options: argparse.Namespace) -> Tls:
    """Without a context it is plain HTTP. Raises LooseleafError."""
    if options.ssl_certfile is not None:
        files = TlsFiles(
            certfile=options.ssl_certfile,
            keyfile=options.ssl_keyfile,
            keyfile_password_file=options.ssl_keyfile_password_file,
            ca_certs=options.ssl_ca_certs,
            cert_reqs=options.ssl_cert_reqs,
        )
        context = files.context()
        return Tls(context, TlsRefresh(files, context) if options.enable_ssl_refresh else None)
    for name in ("keyfile", "keyfile_password_file", "ca_certs"):
        if getattr(options, f"ssl_{name}") is not None:
            flag = name.replace("_", "-")
            raise LooseleafError(f"--ssl-{flag} has no use without --ssl-certfile: give that too")
    if options.ssl_cert_reqs is not ssl.CERT_NONE:
        raise LooseleafError("--ssl-cert-reqs has no use without --ssl-certfile: give that too")
    if options.enable_ssl_refresh:
        raise LooseleafError("--enable-ssl-refresh has no use without --ssl-certfile: give that")
    return Tls()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: ports go from 0 to 65535")
    return int(text)


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise argparse.ArgumentTypeError(f"{text!r} is not a file mode: they go from 000 to 777")
    return mode


def _cert_reqs(text: str) -> ssl.VerifyMode:
    """As a word, or as the number that vLLM takes."""
    for number, (word, mode) in enumerate(CLIENT_CERTIFICATES.items()):
        if text in (word, str(number)):
            return mode
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(CLIENT_CERTIFICATES)}")
