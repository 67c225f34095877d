"""Files that are there as a whole, or as they were before: nobody reads half of one, and a full disk leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str, errors: str = "strict") -> Path:
    """Writes a UTF-8 file, or replaces it; processes beside this one may do the same. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8", errors=errors)
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
