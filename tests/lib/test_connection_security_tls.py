"""Certificates of servers, and how clients check them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.connection_security import Trust, cert_and_key, fingerprint_of, server_context
from tests.certificates import make, needs_openssl


@pytest.mark.parametrize("option", ["cert.pem", "cert.pem:", ":key.pem", "a:b:c", ""])
def test_a_wrong_option(option: str) -> None:
    """A value that does not name two files is an error that shows the right form."""
    with pytest.raises(
        ConfigError, match=r"must be two PEM files, CERT:KEY: the certificate and its private key, such as node\.pem:node\.key"
    ):
        cert_and_key(option)


def test_missing_files(tmp_path: Path) -> None:
    """The error names the file that does not exist, and what it should contain."""
    cert = tmp_path / "cert.pem"
    cert.touch()

    with pytest.raises(ConfigError, match=r"the file no\.pem with the certificate does not exist"):
        cert_and_key("no.pem:key.pem")
    with pytest.raises(ConfigError, match=r"the file no\.key with the private key does not exist"):
        cert_and_key(f"{cert}:no.key")


@needs_openssl
def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """Files of another form, a key of another certificate, and a key with a password are errors; the password is not asked for."""
    make(tmp_path)
    cert, key, other, text = (tmp_path / name for name in ("server.pem", "server.key", "ca.key", "text"))
    text.write_text("hello")
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:hush", "-out", encrypted], check=True, capture_output=True)

    assert (cert, key) == cert_and_key(f"{cert}:{key}")
    assert ssl.TLSVersion.TLSv1_2 == server_context(cert, key).minimum_version
    with pytest.raises(ConfigError, match=r"ca\.key is not the private key of .*server\.pem"):
        server_context(cert, other)
    with pytest.raises(ConfigError, match="cannot be used: both must be PEM files"):
        server_context(text, key)
    with pytest.raises(ConfigError, match=r"encrypted\.key is encrypted; decrypt it"):
        server_context(cert, encrypted)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        server_context(tmp_path / "no.pem", key)


@needs_openssl
def test_the_fingerprint(tmp_path: Path) -> None:
    """The fingerprint of a file is that of openssl, and a client accepts it in both ways of writing."""
    make(tmp_path)
    command = ["openssl", "x509", "-in", str(tmp_path / "server.pem"), "-noout", "-fingerprint", "-sha256"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]
    own = fingerprint_of(tmp_path / "server.pem")

    assert f"sha256:{shown.replace(':', '').lower()}" == own
    assert own == Trust.read(f"sha256:{shown}").pinned == Trust.read(own).pinned
    with pytest.raises(ConfigError, match=r"server\.key contains no certificate"):
        fingerprint_of(tmp_path / "server.key")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("sha256:123", "must have 64 hexadecimal digits"),
        ("no.pem", "must be a PEM file .*: No such file"),
        (__file__, "it contains no cert"),
    ],
)
def test_a_wrong_trust(option: str, why: str) -> None:
    """A value that is neither a fingerprint nor a file with certificates is an error."""
    with pytest.raises(ConfigError, match=why):
        Trust.read(option)


def test_authorities_of_the_system() -> None:
    """The value `system` checks the server's name by the authorities of the system."""
    trust = Trust.read("system")

    assert (True, ssl.CERT_REQUIRED, "") == (trust.context.check_hostname, trust.context.verify_mode, trust.pinned)
