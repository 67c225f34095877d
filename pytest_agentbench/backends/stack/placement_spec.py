"""The keys of a service of a stack that runs on other machines: `on: {slurm: ...}` and `kubernetes: ...`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from pytest_agentbench.backends.stack.templates import expand
from pytest_agentbench.lib.config import PositiveSeconds, Spec, base_url
from pytest_agentbench.lib.json_text import read_text


class SlurmPlacement(Spec):
    """The key `on.slurm` of a service: the hosts that Slurm gives it. Its command runs once on each host."""

    hosts: PositiveInt = Field(default=1, description="The number of hosts. The command runs once on each of them.")
    gpus: NonNegativeInt = Field(default=0, description="The number of GPUs on each host (`--gpus-per-node`).")
    partition: str | None = Field(default=None, description="The partition. The default is that of the cluster.")
    time: PositiveSeconds | None = Field(
        default=None,
        description="The time limit of the job, such as `4h`; a number is in seconds. It has to cover boot and run. The default is that of "
        "the partition.",
    )
    account: str | None = Field(default=None, description="The account that the job is charged to. The default is that of the user.")
    qos: str | None = Field(default=None, description="The quality of service. The default is that of the account.")
    options: list[str] = Field(default=[], description="Further options of `sbatch`, for example `[--exclusive, --constraint=h100]`.")

    @field_validator("options")
    @classmethod
    def _are_options(cls, options: list[str]) -> list[str]:
        for each in options:
            if not each.startswith("-") or "\n" in each:
                raise ValueError(f"{each!r} is not an option; write each as one text, such as `--constraint=h100`")
        return options

    def sbatch_options(self) -> Iterator[str]:
        """Yields the options of sbatch for the hosts, their GPUs, and the time."""
        yield from (f"--nodes={self.hosts}", "--ntasks-per-node=1")
        if self.gpus:
            yield f"--gpus-per-node={self.gpus}"
        if self.time is not None:
            yield f"--time={max(1, round(self.time / 60))}"  # in minutes
        yield from (f"--{name}={value}" for name in ("partition", "account", "qos") if (value := getattr(self, name)) is not None)
        yield from self.options


class Placement(Spec):
    """The key `on` of a service: the engine that places it on other machines."""

    slurm: SlurmPlacement = Field(description="[Hosts that Slurm provides](services-on-clusters.md#services-on-hosts-of-slurm).")


class ManifestSpec(Spec):
    """The key `kubernetes` of a service: objects of a cluster, which are created for the session and deleted at its end."""

    manifest: str = Field(description="The file with the objects, relative to the YAML. Its texts may contain templates.")
    url: str | None = Field(
        default=None,
        description="The URL at which the session and its node workers reach the service, without a path. Needed if agents or other "
        "services call it.",
    )
    namespace: str = Field(default="", description="The namespace, which has to exist. The default is that of the context.")
    context: str = Field(
        default="",
        description="The kubeconfig's context. The default is its current one, or the service account of the session's pod.",
    )
    kubeconfig: str = Field(default="", description="The kubeconfig. The default is the value of `KUBECONFIG`, or `~/.kube/config`.")

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        return None if url is None else base_url(url)

    def expanded(self, values: Mapping[str, str], where: str) -> ManifestSpec:
        """Returns a copy with values in place of templates. Raises ConfigError for an unknown template."""
        texts = {name: expand(value, values, where) for name, value in self if value}
        return self.model_copy(update=texts)


def expand_manifest(file: Path, values: Mapping[str, str], where: str) -> str:
    """Returns the text of a manifest with values in place of templates. Variables of a shell, such as `${HOME}`, stay.

    Raises ConfigError if the file cannot be read, or for an unknown template.
    """
    text = read_text(file)
    parts = re.split(r"(\$\{\w+\})", text)
    return "".join(part if part.startswith("${") else expand(part, values, f"{where}: {file}") for part in parts)
