"""Notes in the folder of a stack about what a cluster runs for it, so that it can be ended if the stack daemon was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.clusters.kubernetes import Cluster
from pytest_agentbench.clusters.slurm import cancel_named
from pytest_agentbench.errors import AgentbenchError
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.records import Json

NOTES = "placed"  # folder in the folder of a stack, with a file for each instance


def note_placed(home: Path, instance: str, what: Mapping[str, object]) -> None:
    """Notes what is about to be submitted for an instance. `what` has the key `slurm` (the job's name) or `kubernetes`."""
    (home / NOTES).mkdir(exist_ok=True)
    write_whole(home / NOTES / f"{instance}.json", json.dumps(what))


def remove_note(home: Path, instance: str) -> None:
    """Removes the note about an instance, after the cluster has ended it."""
    (home / NOTES / f"{instance}.json").unlink(missing_ok=True)


def has_notes(home: Path) -> bool:
    """Returns whether a cluster may still run something for a stack."""
    return any((home / NOTES).glob("*.json"))


def end_placed(home: Path) -> list[str]:
    """Ends what clusters still run for a stack whose daemon is dead.

    Returns a text for each instance that was ended, or that could not be ended. The notes about the latter stay.
    """
    said = []
    for file in sorted((home / NOTES).glob("*.json")):
        try:
            said += _end(json.loads(file.read_text(encoding="utf-8")))
            file.unlink(missing_ok=True)
        except (AgentbenchError, OSError, ValueError) as error:
            said.append(f"{file.stem}, which could not be ended: {error}")
    return said


def _end(what: Json) -> list[str]:
    if "slurm" in what:
        return [f"Slurm job {job}" for job in cancel_named(what["slurm"])]
    place = what["kubernetes"]
    cluster = Cluster(context=place["context"], kubeconfig=place["kubeconfig"], namespace=place["namespace"])
    deleted = cluster.delete(place["selector"], [(version, kind) for version, kind in place["kinds"]])
    return [f"{name} in namespace {cluster.namespace}" for name in deleted]
