"""TLS for connections between machines of a session: the server's certificate, and the client's check of it."""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError

PINNED = re.compile(r"sha256:([0-9a-fA-F]{2}(?::?[0-9a-fA-F]{2}){31})")
SYSTEM = "system"  # option value: the system's certificate authorities


def cert_and_key(option: str) -> tuple[Path, Path]:
    """Returns the files in an option value CERT:KEY. Raises ConfigError if the value has another form, or if a file does not exist."""
    cert, colon, key = option.partition(":")
    if not cert or not colon or not key or ":" in key:
        raise ConfigError(f"{option!r} must be two PEM files, CERT:KEY: the certificate and its private key, such as node.pem:node.key")
    for what, name in (("certificate", cert), ("private key", key)):
        if not Path(name).is_file():
            raise ConfigError(f"the file {name} with the {what} does not exist")
    return Path(cert), Path(key)


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Returns the TLS context of a server. Raises ConfigError if certificate or key cannot be used."""

    def refuse_password() -> str:
        raise ConfigError(f"the private key {key} is encrypted; decrypt it, for example with `openssl pkey`")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, refuse_password)
    except ssl.SSLError as error:
        reason = {"KEY_VALUES_MISMATCH": f"{key} is not the private key of {cert}"}.get(error.reason or "", "both must be PEM files")
        raise ConfigError(f"the certificate {cert} with the key {key} cannot be used: {reason}") from error
    except OSError as error:
        raise ConfigError(f"the certificate {cert} with the key {key} cannot be read: {error.strerror}") from error
    return context


def fingerprint(certificate: bytes) -> str:
    """Returns the hash of a certificate in DER form, as `Trust.read` accepts it."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def fingerprint_of(cert: Path) -> str:
    """Returns the fingerprint of the first certificate in a PEM file. Raises ConfigError if there is none."""
    try:
        text = cert.read_text()
        end = text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
        return fingerprint(ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : end]))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{cert} contains no certificate: {error}") from error


@dataclass(frozen=True)
class Trust:
    """How a client checks the server's certificate: by an authority and the server's name, or by the hash of the certificate itself."""

    context: ssl.SSLContext
    pinned: str = ""  # fingerprint of the only certificate that is accepted; empty: any that the context accepts

    @classmethod
    def read(cls, option: str) -> Trust:
        """Reads an option value: a PEM file with authorities, `sha256:HEX` for one certificate, or `system`. Raises ConfigError."""
        if match := PINNED.fullmatch(option):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # `check` compares the whole certificate instead.
            return cls(context, f"sha256:{match[1].replace(':', '').lower()}")
        if option.startswith("sha256:"):
            raise ConfigError(f"{option!r} must have 64 hexadecimal digits after `sha256:`")
        try:
            return cls(ssl.create_default_context(cafile=None if option == SYSTEM else option))
        except OSError as error:
            why = "it contains no certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigError(f"{option!r} must be a PEM file with a certificate authority, `sha256:HEX` or `system`: {why}") from error

    def check(self, connection: ssl.SSLSocket) -> None:
        """Raises ConfigError if the server has another certificate than the pinned one. Call it before anything is sent."""
        if self.pinned and (found := fingerprint(connection.getpeercert(binary_form=True) or b"")) != self.pinned:
            raise ConfigError(f"the server has a certificate with the fingerprint {found}, not the expected one, {self.pinned}")
