"""Types of arrays, for those who compute with numpy only where there are many numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Counts: TypeAlias = NDArray[np.int64]
    Mask: TypeAlias = NDArray[np.bool_]


def unknown(values: NDArray[Any]) -> Mask:
    """Returns which values are NaN, without an import of numpy."""
    mask: Mask = values != values  # noqa: PLR0124 - NaN is the only value that is not equal to itself
    return mask
