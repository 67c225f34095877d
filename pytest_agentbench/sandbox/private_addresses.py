"""Closes private and link-local addresses to a container with the network `public`, by a packet filter in its network namespace.

The filter is set by a container that lives for a moment, shares the network of the sandbox and may administer it. The sandbox may not.
Routes are not enough: a program can bind its socket to a device, and the name server of some clouds is their metadata service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_interface, ip_network
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.sandbox.containers import PUBLIC
from pytest_agentbench.sandbox.images import FILTER_IMAGE, WITHOUT_A_FILTER, make_filter_image
from pytest_agentbench.suites.suite import Task

AddressRange = IPv4Network | IPv6Network

#: Closed, beside the subnets that the container itself is in.
CLOSED = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private
    "100.64.0.0/10",  # shared by the customers of a provider
    *("169.254.0.0/16", "fe80::/10"),  # link-local, such as the metadata service of a cloud
    "168.63.129.16/32",  # Azure's services for its virtual machines
    *("224.0.0.0/4", "255.255.255.255/32", "ff00::/8"),  # multicast and broadcast, which the host and other containers receive
)

#: Without these messages of the kernel there is no IPv6. To send them itself, a program would need CAP_NET_RAW.
_NEIGHBOURS = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, mld-listener-report, mld2-listener-report } accept"


def name_servers(resolv_conf: str) -> tuple[str, ...]:
    """Returns the addresses after `nameserver` in the text of a resolv.conf."""
    words = (line.split() for line in resolv_conf.splitlines())
    return tuple(each[1].partition("%")[0] for each in words if len(each) > 1 and each[0] == "nameserver")


def needs_filter(task: Task) -> bool:
    """Whether any private address is closed to programs in the sandbox of a task that have a network."""
    allowed = [ip_network(each) for each in task.private_addresses]
    return task.network == PUBLIC and not all(_covered(ip_network(each), allowed) for each in CLOSED)


def close(engine: Any, container: Any, task: Task, servers: Sequence[str]) -> None:
    """Closes private addresses to a task's container that has just been started, but for DNS at the name servers.

    To be called after each start, which gives a container a new network namespace. Raises InfraError where it is not possible.
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
        said = (error.stderr or b"").decode(errors="replace").strip()
        raise InfraError(
            f"private addresses cannot be closed to a sandbox with the network `public`: nft says: {said}; {WITHOUT_A_FILTER}"
        ) from error


def rules(closed: Iterable[AddressRange], allowed: Iterable[AddressRange], servers: Iterable[str]) -> str:
    """Returns what `nft` is told: which packets leave the network namespace."""
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
    """Returns a rule for the IPv4 networks and one for those of IPv6, where there are some."""
    networks = list(networks)
    found = []
    for words, version in (("ip", 4), ("ip6", 6)):
        if ours := list(collapse_addresses(each for each in networks if each.version == version)):  # type: ignore[type-var]
            found.append(f"{words} daddr {{ {', '.join(map(str, ours))} }} {verdict}")
    return found


def _subnets(networks: Iterable[Mapping[str, Any]]) -> list[AddressRange]:
    """Returns the subnets of a running container's addresses; none where it has loopback alone."""
    pairs = (("IPAddress", "IPPrefixLen"), ("GlobalIPv6Address", "GlobalIPv6PrefixLen"))
    found = ((each.get(address), each.get(length)) for each in networks for address, length in pairs)
    return [ip_interface(f"{address}/{length}").network for address, length in found if address]


def _covered(network: AddressRange, by: Iterable[AddressRange]) -> bool:
    return any(each.version == network.version and network.subnet_of(each) for each in by)  # type: ignore[arg-type]
