"""Values of the options about node workers, right and wrong ones."""

from __future__ import annotations

import pytest

from pytest_agentbench.runs.node_options import address, certificate, listening_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.5:7100", ("10.0.0.5", 7100)),
        ("gpu-1", ("gpu-1", None)),
        ("[::1]:7100", ("::1", 7100)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int | None]) -> None:
    """The port may be missing, and an IPv6 address with a port has brackets."""
    assert expected == address(text)
    assert (expected[0], expected[1] or 0) == listening_address(text)


@pytest.mark.parametrize("text", ["gpu-1:", "gpu-1:x", "gpu-1:65536", ":7100"])
def test_wrong_addresses(text: str) -> None:
    """A wrong address is refused with a right one."""
    with pytest.raises(ValueError, match=r"HOST:PORT, such as 10\.0\.0\.5:7100"):
        address(text)


def test_a_missing_certificate() -> None:
    """A certificate that is not there is refused."""
    with pytest.raises(ValueError, match="two PEM files, CERT:KEY"):
        certificate("nowhere.pem:nowhere.key")
