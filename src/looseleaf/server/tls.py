"""TLS for the server's own socket: a context that is known to work before a model is loaded."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from looseleaf.core.errors import LooseleafError

REFRESH_SECONDS = 10
"""Between two looks at files that may be replaced."""

logger = logging.getLogger(__name__)

CLIENT_CERTIFICATES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""Whether clients are asked for a certificate, and refused without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. The certificate's may have the chain up to its authority, and the key, which is
    otherwise in `keyfile`; the password of an encrypted key is the first line of its file. With
    `cert_reqs`, clients' certificates must be of the authorities in `ca_certs`."""

    certfile: Path
    keyfile: Path | None = None
    keyfile_password_file: Path | None = None
    ca_certs: Path | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_NONE

    def context(self) -> ssl.SSLContext:
        """For TLS 1.2 and later. Raises LooseleafError for files that cannot be used together."""
        if (self.ca_certs is None) != (self.cert_reqs is ssl.CERT_NONE):
            raise LooseleafError(
                "clients' certificates are checked with --ssl-ca-certs and --ssl-cert-reqs "
                "optional or required: give both or neither"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self.load(context)
        context.verify_mode = self.cert_reqs
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Put what is in the files into it. Raises LooseleafError."""
        self._load_certificate(context)
        if self.ca_certs is not None:
            _read(self.ca_certs, "the certificates of authorities")
            try:
                context.load_verify_locations(self.ca_certs)
            except ssl.SSLError:
                raise LooseleafError(
                    f"{self.ca_certs} has no certificates of authorities in PEM form"
                ) from None

    def stamps(self) -> list[tuple[int, int, int]]:
        """Different ones once a file has been replaced or written to. Raises OSError."""
        paths = (self.certfile, self.keyfile, self.keyfile_password_file, self.ca_certs)
        found = [path.stat() for path in paths if path is not None]
        return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in found]

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        _read(self.certfile, "the TLS certificate")
        keyfile = self.certfile if self.keyfile is None else self.keyfile
        _read(keyfile, "the private key")
        try:
            context.load_cert_chain(self.certfile, keyfile, self._password)
        except ssl.SSLError as error:
            raise LooseleafError(self._reason(error, keyfile)) from None

    def _password(self) -> bytes:
        """Called for an encrypted key, for which OpenSSL would otherwise ask the terminal."""
        file = self.keyfile_password_file
        if file is None:
            raise LooseleafError(
                "the private key is encrypted: put its password into a file, and give that with "
                "--ssl-keyfile-password-file"
            )
        return _read(file, "the password of the private key").partition(b"\n")[0].rstrip(b"\r")

    def _reason(self, error: ssl.SSLError, keyfile: Path) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the private key in {keyfile} is not that of the certificate in {self.certfile}"
        if self.keyfile_password_file is not None and b"ENCRYPTED" in _read(keyfile, "the key"):
            return f"the password in {self.keyfile_password_file} does not open {keyfile}"
        return (
            f"{self.certfile} and {keyfile} are not a certificate and its private key in PEM form "
            f"({error.reason or 'no certificate found'})"
        )


class TlsRefresh:
    """Keeps `context`, which `files` have made, at what is in them. Connections that are open go on
    as they are. Authorities are added to those known before, and none is forgotten."""

    def __init__(self, files: TlsFiles, context: ssl.SSLContext) -> None:
        self._files, self._context = files, context
        self._stamps = files.stamps()

    def look(self) -> bool:
        """Whether there is something new that can be used. What cannot be is logged, and the
        certificate stays as it is. For any thread: it waits for the disk and opens keys."""
        try:
            if self._files.stamps() == self._stamps:
                return False
            self._files.context()
        except (LooseleafError, OSError) as error:
            self._refuse(error)
            return False
        return True

    def take(self) -> None:
        """Take what `look` found to be good. For the thread that shakes hands, and no other: the
        new certificate is in the context before its key is."""
        try:
            stamps = self._files.stamps()
            self._files.load(self._context)
        except (LooseleafError, OSError) as error:
            self._refuse(error)
            return
        self._stamps = stamps
        logger.info("the TLS certificate was read again from %s", self._files.certfile)

    @staticmethod
    def _refuse(error: Exception) -> None:
        logger.error("the TLS certificate stays as it was: %s", error)


def _read(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LooseleafError(f"cannot read {what} in {file}: {reason}") from None
