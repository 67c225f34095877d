"""TLS for connections between machines of a session: the server's certificate, and the client's check of it.

Also explains to users why a server refuses the API key, or why TLS fails, and what to do.
"""

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


#: OpenSSL's codes (X509_V_ERR_...) for a certificate of another host name or address, and for one that is not valid today.
_OTHER_NAME = (62, 64)
_OTHER_TIME = (9, 10)

#: OpenSSL's reasons if a server does not use TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def of_key(variable: str | None, *, sent: bool) -> str:
    """Returns what to do about an answer with the status 401 or 403.

    `variable` is the environment variable of the key, `sent` whether the server got any credentials.
    """
    if variable:
        return f"check that the environment variable {variable}, which `api_key_env` names, has a key of this server"
    if sent:
        return "check the key"
    return "no key was sent: `api_key_env` in a backend's YAML (under `judge`: `api_key`) names the environment variable that holds it"


def of_tls(error: ssl.SSLError, host: str, ca_file: str | None) -> str:
    """Explains a TLS failure and how to fix it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error.verify_code, error.verify_message.rstrip("."), host, ca_file)
    reason = error.reason or str(error)
    return (
        f"the server does not speak TLS ({reason}); check whether the URL should begin with http://"
        if reason in _NO_TLS
        else f"TLS failed: {reason}"
    )


def _of_certificate(code: int, message: str, host: str, ca_file: str | None) -> str:
    if code in _OTHER_NAME:
        return (
            f"the server's certificate is not for {host} ({message}); use a name from the certificate in the URL; a `ca_file` does not help"
        )
    if code in _OTHER_TIME:
        return f"the server's certificate is not valid today ({message}); the server needs a new one; a `ca_file` does not help"
    if ca_file:
        advice = f"`ca_file` {ca_file} does not contain its authority; use that one's PEM file"
        return f"the server's certificate is not trusted ({message}); {advice}"
    return f"the server's certificate is not trusted ({message}); set `ca_file` in the backend's YAML to the PEM file of its authority"


def lasts(error: ssl.SSLError) -> bool:
    """Returns whether a TLS error is permanent, such as a bad certificate. After others, such as a lost connection, a retry may help."""
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason in _NO_TLS
