"""Variables that processes of a stack get unless their YAML says otherwise: nothing is told to their makers, nothing is left behind."""

from __future__ import annotations

import getpass
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: Engines, the hub's library and Ray report how they are used unless they are told not to.
NO_REPORTS: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

TMP = "tmp"  # in a stack's {run_dir}


def surroundings(run_dir: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Temporary files in the folder of the boot; caches that make the next boot fast where they always are.

    `inherited` is the environment that a process would have without this.
    """
    return {"TMPDIR": str(run_dir / TMP), **_shared_caches(inherited), **NO_REPORTS}


def _shared_caches(inherited: Mapping[str, str]) -> dict[str, str]:
    """Those whose place would follow TMPDIR, or a HOME that a YAML gives."""
    cache = Path(inherited.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return {
        "HF_HOME": str(cache / "huggingface"),
        "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_{user}",
    }
