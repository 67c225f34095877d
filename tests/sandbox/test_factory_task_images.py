"""Which images the planned tasks of a session need."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.factory import TaskImages
from pytest_agentbench.suites.suite import Task

TASK = Task(folder="/tasks/one", digest="0" * 16, image="alpine:3.20")


def test_images_that_are_needed() -> None:
    """There is one task for each image of the planned tasks. Tasks that cannot run, or that use no Docker sandbox, need none."""
    tasks = {
        ("bench", "one"): TASK,
        ("bench", "two"): TASK,
        ("bench", "own"): replace(TASK, image="", image_digest="a1"),
        ("bench", "unplanned"): replace(TASK, image="debian:12"),
        ("bench", "broken"): replace(TASK, image="broken", broken="it has no tests"),
        ("bench", "remote"): replace(TASK, image="remote", sandbox="harbor:daytona"),
    }
    images = TaskImages(tasks, "a-run", lambda _: None)
    planned = ("one", "two", "own", "broken", "remote")
    images.planned = [*(RolloutKey("bench", name) for name in planned), RolloutKey("shop", "one")]

    assert ["alpine:3.20", ""] == [task.image for task in images.needed]
