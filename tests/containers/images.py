"""Images for tests that are made from one static binary, and a registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.web import QuietHandler, serving

BUSYBOX = shutil.which("busybox")

APPLETS = ("sh", "cat", "df", "env", "httpd", "id", "pwd", "sleep", "test", "touch", "true")

#: The answers of a registry to requests of unknown or private images.
ERRORS = {
    401: b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}',
    404: b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}',
}


def root() -> bytes:
    """Returns the tar of a file system with a shell and a web server."""
    assert BUSYBOX is not None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(BUSYBOX, "bin/busybox", filter=_mine)
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for folder in ("tmp", "data"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
    return packed.getvalue()


def _mine(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mode, entry.uid, entry.gid = 0o755, 0, 0
    return entry


def busybox_is_static() -> bool:
    """Returns whether there is a busybox that needs no library of this machine."""
    return BUSYBOX is not None and b"/ld-" not in Path(BUSYBOX).read_bytes()[:4096]  # the part of a binary that names its loader


@contextmanager
def registry(name: str) -> Iterator[str]:
    """Runs a registry on loopback that has one image with this name. It refuses images whose names begin with `private`."""
    files = _files(root())

    class Registry(QuietHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix(f"/v2/{name}/")
            status = 401 if "/private" in self.path else 200 if path in files or self.path == "/v2/" else 404
            kind, body = files.get(path, ("application/json", ERRORS.get(status, b"{}")))
            self.answer(status, body, kind)

        def do_HEAD(self) -> None:
            self.do_GET()

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Registry)) as server:
        yield f"127.0.0.1:{server.server_port}"


def _files(layer: bytes) -> dict[str, tuple[str, bytes]]:
    """Returns the answers of a registry for an image with one layer: path -> media type, body."""
    docker = "application/vnd.docker"
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]}}
    ).encode()
    packed = gzip.compress(layer)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{docker}.distribution.manifest.v2+json",
            "config": _described(f"{docker}.container.image.v1+json", config),
            "layers": [_described(f"{docker}.image.rootfs.diff.tar.gzip", packed)],
        }
    ).encode()
    manifests = {f"manifests/{tag}": (f"{docker}.distribution.manifest.v2+json", manifest) for tag in ("1", _digest(manifest))}
    return manifests | {f"blobs/{_digest(blob)}": ("application/octet-stream", blob) for blob in (config, packed)}


def _described(kind: str, blob: bytes) -> dict[str, str | int]:
    return {"mediaType": kind, "size": len(blob), "digest": _digest(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
