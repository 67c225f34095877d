"""Pages of Prometheus text that are read repeatedly."""

from __future__ import annotations

import pytest

from pytest_agentbench.backends.telemetry.samples import Changes, Page

FIRST = """\
# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b}\\" c"} 3.0
vllm:num_requests_running{engine="1",model_name="x"} 1
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 3.0517578125e-05
up 1 1700000000000
ratio NaN
"""


def test_what_changed() -> None:
    """The first reading has all series. Later ones have changed, new and disappeared series, by number."""
    page = Page()

    first = page.changes(FIRST)
    assert [
        ("vllm:num_requests_running", {"engine": "0", "model_name": 'a b}" c'}),
        ("vllm:num_requests_running", {"engine": "1", "model_name": "x"}),
        ("vllm:kv_cache_usage_perc", {"engine": "0"}),
        ("up", {}),
        ("ratio", {}),
    ] == first.series
    assert [(0, 3.0), (1, 1.0), (2, 3.0517578125e-05), (3, 1.0)] == first.values[:4]
    assert [] == first.gone
    assert Changes([], [], []) == page.changes(FIRST)

    second = FIRST.replace("3.0\n", "2.0\n").replace("up 1 1700000000000\n", "") + 'late{le="+Inf"} +Inf\n'
    assert Changes([("late", {"le": "+Inf"})], [(0, 2.0), (5, float("inf"))], [3]) == page.changes(second)
    assert Changes([], [], []) == page.changes(second)
    assert Changes([], [(0, 3.0), (3, 1.0)], [5]) == page.changes(FIRST)
    assert Changes([], [], []) == Page().changes("")


@pytest.mark.parametrize("text", ["<html>\n<body>It works!</body>", '{"metrics_enabled": true}', "up", 'up{a="b"}', "up one", "up{a=b} 1"])
def test_other_texts(text: str) -> None:
    """Text that is not in Prometheus format is refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - most of the message comes from the library
        Page().changes(text)


def test_a_value_that_is_lost() -> None:
    """A page that ends within a known line is refused, too."""
    page = Page()
    page.changes('up{a="b"} 1')

    with pytest.raises(ValueError, match="could not convert"):
        page.changes('up{a="b"} ')
