"""A sandbox that is a Docker container.

If its network is `public`, a packet filter in its network namespace blocks private and link-local addresses.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.command import Execution
from pytest_agentbench.sandbox.containers import (
    FILTER_IMAGE,
    KIND,
    PUBLIC,
    WITHOUT_A_FILTER,
    call_engine,
    client,
    create,
    first_process,
    image_of,
    labels,
    make_filter_image,
    make_image,
    remove,
)
from pytest_agentbench.sandbox.sandbox import LARGEST_FILE, TESTS, CommandResult, File, first_file, tar_of, tar_of_tests
from pytest_agentbench.sandbox.tampering import (
    DELETED,
    PRELOAD,
    Change,
    OwnPrograms,
    empty_preload,
    names_in,
    programs_of,
    verifier_changes,
)
from pytest_agentbench.suites.suite import Task

AddressRange = IPv4Network | IPv6Network

#: Blocked addresses. The subnets of the container itself are blocked, too.
CLOSED = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private
    "100.64.0.0/10",  # shared by the customers of a provider
    *("169.254.0.0/16", "fe80::/10"),  # link-local, such as the metadata service of a cloud
    "168.63.129.16/32",  # Azure's services for its virtual machines
    *("224.0.0.0/4", "255.255.255.255/32", "ff00::/8"),  # multicast and broadcast, which the host and other containers receive
)

#: IPv6 does not work without these messages of the kernel. Programs cannot send them, because they lack CAP_NET_RAW.
_NEIGHBOURS = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, mld-listener-report, mld2-listener-report } accept"


def name_servers(resolv_conf: str) -> tuple[str, ...]:
    """Returns the addresses of the name servers in the text of a resolv.conf."""
    words = (line.split() for line in resolv_conf.splitlines())
    return tuple(each[1].partition("%")[0] for each in words if len(each) > 1 and each[0] == "nameserver")


def needs_filter(task: Task) -> bool:
    """Returns whether the sandbox of a task needs a packet filter: it has a network, but may not reach all private addresses."""
    allowed = [ip_network(each) for each in task.private_addresses]
    return task.network == PUBLIC and not all(_is_covered(ip_network(each), allowed) for each in CLOSED)


def close(engine: Any, container: Any, task: Task, servers: Sequence[str]) -> None:
    """Blocks private addresses for a task's container, except DNS at the name servers.

    Call it after each start of the container, because a start creates a new network namespace. Raises InfraError if it fails.
    """
    from docker.errors import ContainerError

    from pytest_agentbench.backends.stack.docker_engine import size_of

    if not needs_filter(task):
        return
    container.reload()
    subnets = _subnets(container.attrs["NetworkSettings"]["Networks"].values())
    if not subnets:
        return
    if size_of(engine, FILTER_IMAGE) is None:
        make_filter_image(lambda _line: None)
    try:
        engine.containers.run(
            FILTER_IMAGE,
            entrypoint=["nft"],
            command=[rules([*map(ip_network, CLOSED), *subnets], map(ip_network, task.private_addresses), servers)],
            user="root",
            network_mode=f"container:{container.id}",
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            security_opt=["no-new-privileges"],
            read_only=True,
            labels=container.labels,
            log_config={"type": "json-file"},
            remove=True,
        )
    except ContainerError as error:
        output = (error.stderr or b"").decode(errors="replace").strip()
        raise InfraError(
            f"private addresses cannot be closed to a sandbox with the network `public`: nft failed: {output}; {WITHOUT_A_FILTER}"
        ) from error


def rules(closed: Iterable[AddressRange], allowed: Iterable[AddressRange], servers: Iterable[str]) -> str:
    """Returns the rules for `nft`, which decide which packets may leave the network namespace."""
    hosts = [ip_network(ip_address(each)) for each in servers]
    lines = [
        'oifname "lo" accept',
        _NEIGHBOURS,
        *_each_family(allowed, "accept"),
        *_each_family(hosts, "meta l4proto { tcp, udp } th dport 53 accept"),
        *_each_family(closed, "reject with icmpx type admin-prohibited"),
    ]
    chain = "; ".join(["type filter hook output priority 0", "policy accept", *lines])
    return f"table inet agentbench {{ chain output {{ {chain}; }}; }}"


def _each_family(networks: Iterable[AddressRange], verdict: str) -> list[str]:
    """Returns one rule for the IPv4 networks and one for the IPv6 networks, if there are any."""
    networks = list(networks)
    lines = []
    for words, version in (("ip", 4), ("ip6", 6)):
        if ours := list(collapse_addresses(each for each in networks if each.version == version)):  # type: ignore[type-var]
            lines.append(f"{words} daddr {{ {', '.join(map(str, ours))} }} {verdict}")
    return lines


def _subnets(networks: Iterable[Mapping[str, Any]]) -> list[AddressRange]:
    """Returns the subnets of a running container's addresses. The list is empty if it has only loopback."""
    pairs = (("IPAddress", "IPPrefixLen"), ("GlobalIPv6Address", "GlobalIPv6PrefixLen"))
    addresses = ((each.get(address), each.get(length)) for each in networks for address, length in pairs)
    return [ip_interface(f"{address}/{length}").network for address, length in addresses if address]


def _is_covered(network: AddressRange, by: Iterable[AddressRange]) -> bool:
    return any(each.version == network.version and network.subnet_of(each) for each in by)  # type: ignore[arg-type]


_FOLDER = 1 << 31  # the bit for folders in Go's file modes


def _do_nothing() -> None:
    """The default for `on_end`, which is called at the end of a sandbox."""


class DockerSandbox:
    """A sandbox in a container. `start` creates the container, and `end` removes it."""

    def __init__(self, run: str, key: RolloutKey, task: Task, seconds: float, on_end: Callable[[], None] = _do_nothing) -> None:
        """The container ends by itself `seconds` after its start. `on_end` is called by `end`, even if the container cannot be removed."""
        self._run, self._key, self._task, self._seconds, self._on_end = run, key, task, seconds, on_end
        self._what = f"the sandbox of {key}"
        self.kind = KIND
        self._engine: Any = None
        self._container: Any = None
        self._user = "0"  # default user of the image
        self._workdir = "/"  # working directory of the image
        self._users: Mapping[str, int] = {}  # users of the image: name -> user id
        self._programs: OwnPrograms | None = None
        self._name_servers: tuple[str, ...] = ()  # name servers of the container, read before an agent can change them
        self._changes: list[Change] = []  # differences from the image at `end_processes`
        self._trusted = False  # whether no agent program has run since the harness's own programs were restored

    async def start(self) -> None:
        """Creates and starts the container. It accepts commands afterwards. Raises InfraError."""
        starting = asyncio.ensure_future(call_engine(self._what, self._start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            with suppress(InfraError):
                await starting  # Its thread continues in spite of the cancellation.
            await self.end()
            raise

    def _start(self) -> None:
        self._engine = client()
        make_image(self._task, lambda _line: None)
        image = self._engine.images.get(image_of(self._task))
        self._user = image.attrs["Config"].get("User") or "0"
        self._workdir = image.attrs["Config"].get("WorkingDir") or "/"
        self._programs = programs_of(self._engine, image)
        marks = labels(self._run, self._key, time.time() + self._seconds)
        first = first_process(self._programs, self._seconds)
        self._container, self.kind = create(self._engine, image, self._task, marks, first)
        self._users = self._listed_users()
        self._programs.put(self._container)
        self._container.start()
        self._name_servers = name_servers(self._text("/etc/resolv.conf"))
        close(self._engine, self._container, self._task, self._name_servers)

    def _listed_users(self) -> dict[str, int]:
        fields = (line.split(":") for line in self._text("/etc/passwd").splitlines())
        return {"root": 0, **{each[0]: int(each[2]) for each in fields if len(each) > 2 and each[2].isdecimal()}}

    def _text(self, path: str) -> str:
        """Returns the text of a file in the container, or an empty text if it does not exist."""
        file = self._get(path, LARGEST_FILE)
        return file.content.decode(errors="replace") if isinstance(file, File) else ""

    async def exec(
        self,
        command: str,
        *,
        seconds: float,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        await refuse_abandoned()
        container, workdir = self._running_container(), workdir or self._task.workdir or self._workdir
        shell = self._programs.words("bash") if self._trusted and self._programs else ["bash"]
        execution = Execution(self._engine.api, container.id, user=user or self._user, workdir=workdir, env=env or {}, shell=shell)
        try:
            done: CommandResult = await call_engine(self._what, execution.run, command, seconds)
            return done
        except asyncio.CancelledError:
            execution.abandon()
            raise

    async def put(self, source: Path, target: str) -> None:
        with tar_of(source, target) as tar:
            await call_engine(f"{self._what}: {target}", self._running_container().put_archive, "/", tar)

    async def get(self, source: str, *, most: int = LARGEST_FILE) -> File:
        file: File | str | None = await call_engine(self._what, self._get, source, most)
        if file is None:
            raise FileNotFoundError(f"there is no {source} in the sandbox")
        if isinstance(file, str):
            raise OSError(f"{source} in the sandbox cannot be read: {file}")
        return file

    def _get(self, source: str, most: int) -> File | str | None:
        from docker.errors import NotFound

        try:
            pieces, _ = self._running_container().get_archive(source)
        except NotFound as error:
            if "No such container" in str(error):
                raise
            return None
        return first_file(pieces, most)

    async def end_processes(self) -> None:
        await call_engine(f"{self._what} cannot be started again", self._start_again)
        self._trusted = True

    def _start_again(self) -> None:
        """Restarts the container. While it is stopped, no process of the agent can interfere.

        Meanwhile, the agent's changes are listed, and the harness's own copies of bash, sh and sleep, which were made before the agent ran,
        are put back. The agent's changes to the image's own bash, sh and sleep stay.
        """
        assert self._programs is not None
        container = self._running_container()
        container.stop(timeout=60)  # seconds that the engine waits until all processes have ended
        self._changes = [Change(each["Path"], each["Kind"]) for each in container.diff() or ()]
        self._programs.put(container)
        if any(each.path == PRELOAD and each.kind != DELETED for each in self._changes):
            empty_preload(container)
        container.start()
        close(self._engine, container, self._task, self._name_servers)

    async def halt(self) -> None:
        await call_engine(f"{self._what} cannot be stopped", self._running_container().stop, timeout=60)

    async def changed_files(self, tests: Path) -> tuple[str, ...]:
        names = await in_thread(names_in, tests)
        return await call_engine(self._what, self._list_changed_files, names)

    def _list_changed_files(self, names: frozenset[str]) -> tuple[str, ...]:
        return verifier_changes(self._changes, names, self._is_folder)

    def _is_folder(self, path: str) -> bool:
        """Returns whether an existing path is a folder. The Docker Engine reports it in a header, without sending the content."""
        api = self._engine.api
        answer = api.head(f"{api.base_url}/v{api.api_version}/containers/{self._running_container().id}/archive", params={"path": path})
        facts = json.loads(base64.b64decode(answer.headers.get("X-Docker-Container-Path-Stat", "e30=")))
        return bool(facts.get("mode", 0) & _FOLDER)

    async def bring_tests(self, tests: Path, user: str | None) -> int:
        number = self._number_of(user or self._user)
        with tar_of_tests(tests, number) as tar:
            await call_engine(f"{self._what}: {TESTS}", self._running_container().put_archive, "/", tar)
        return number

    def _number_of(self, user: str) -> int:
        name = user.partition(":")[0]
        if name.isdecimal():
            return int(name)
        if name not in self._users:
            raise InfraError(
                f"{self._what}: the verifier's user {name!r} is not in the image; set a user from its /etc/passwd in task.toml"
            )
        return self._users[name]

    def interpreter(self, name: str) -> str:
        return shlex.join(self._programs.words(name)) if self._programs and self._trusted else name

    async def fresh(self) -> DockerSandbox:
        other = DockerSandbox(self._run, self._key, self._task, self._seconds)
        await other.start()
        return other

    def _running_container(self) -> Any:
        if self._container is None:
            raise InfraError(f"{self._what} has ended")
        return self._container

    async def end(self) -> None:
        container, engine = self._container, self._engine
        self._container = self._engine = None
        try:
            if container is not None:
                await asyncio.shield(call_engine(f"{self._what} cannot be removed", remove, container))
        finally:
            if engine is not None:
                engine.close()
            self._on_end()
