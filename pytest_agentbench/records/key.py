"""The names of rollouts."""

from __future__ import annotations

from typing import NamedTuple


class RolloutKey(NamedTuple):
    """Names one rollout: one scenario of one suite, under one variant, for the k-th time."""

    suite: str
    scenario: str
    variant: str = "default"
    trial: int = 1  # counted from 1

    @property
    def id(self) -> str:
        """The pytest parameter id; the first trial of the default variant is the bare scenario id."""
        variant = "" if self.variant == "default" else f"-{self.variant}"
        trial = "" if self.trial == 1 else f"-t{self.trial}"
        return f"{self.scenario}{variant}{trial}"

    @property
    def group(self) -> str:
        """What is summarised together: a suite under one variant; the default variant is the bare suite."""
        return self.suite if self.variant == "default" else f"{self.suite}-{self.variant}"

    def __str__(self) -> str:
        return f"{self.suite}[{self.id}]"


def suite_of(group: str, variant: str) -> str:
    """The suite of a `RolloutKey.group`."""
    return group if variant == "default" else group.removesuffix(f"-{variant}")


def arm_of(variant: str) -> str:
    """The arm that a variant is under."""
    return variant.rpartition("-")[2]
