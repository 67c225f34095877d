"""Certificates for servers of the tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the test's certificates, is not installed")


def make(folder: Path) -> Path:
    """Writes ca.pem, and server.pem and server.key that it signs, for 127.0.0.1 only. Returns the folder."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ca = ["-subj", "/CN=Test CA", "-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca.key", "-out", "ca.pem"]
    server = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:false"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "server.key", "-out", "server.pem"]
    for arguments in (ca, [*server, *signed]):
        subprocess.run([*new, *arguments], cwd=folder, check=True, capture_output=True)
    return folder
