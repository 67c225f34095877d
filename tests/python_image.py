"""A base for the image of this project, for a Docker Engine without a registry: Python and some programs of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.sandbox import image

#: Folders of a Python that neither venv nor this project needs.
LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo"}

#: Libraries that wheels for Linux do not contain (PEP 513).
WHEELS_EXPECT = ("libstdc++.so.6", "libgcc_s.so.1", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libutil.so.1", "libresolv.so.2")

#: The Python of this process, without its virtual environment. It has its path compiled in, so the image has it at the same path.
INTERPRETER = Path(getattr(sys, "_base_executable", sys.executable)).resolve().with_name("python3")

#: The settings of the image, as lines of a Dockerfile.
SETTINGS = (f"ENV PATH={INTERPRETER.parent}:/bin", "CMD python3")


def root() -> bytes:
    """Returns the tar of a file system with INTERPRETER, its standard library, and what wheels expect."""
    return image.root(files=[INTERPRETER, *_standard_library(), *_expected_by_wheels()])


def _standard_library() -> Iterator[Path]:
    """Yields the files of the standard library, and the wheels of pip that Debian's venv installs."""
    bundled = sysconfig.get_config_var("WHEEL_PKG_DIR")
    for top in (sysconfig.get_path("stdlib"), *([bundled] if bundled else [])):
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
            yield from (Path(folder, name) for name in files)


def _expected_by_wheels() -> Iterator[Path]:
    """Yields the libraries that wheels expect on every machine."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for name in WHEELS_EXPECT:
        if found := re.search(rf"\s{re.escape(name)} .* => (\S+)", listed):
            yield Path(found[1])
