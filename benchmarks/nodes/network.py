"""The network of emulated nodes: a bridge in a separate namespace, and a pair of virtual Ethernet devices to each node.

Each link has a limit in both directions: `tc tbf` on the node's traffic to the bridge, and on the bridge's to the node.
"""

from collections.abc import Sequence

from benchmarks.nodes.tools import called, in_network

INTERFACE = "eth0"
"""The device of every node."""

_BRIDGE = "switch"
_NETWORK = "198.18.0"  # for benchmarks of networks, RFC 2544
_LEAST_BURST_BYTES = 96 << 10
"""More than TCP's largest packet (64 KiB), which would otherwise be split into frames."""

_BURST_S = 0.002
_QUEUE = "50ms"


def address_of(node: int) -> str:
    """Return the address of a node."""
    return f"{_NETWORK}.{node + 1}"


def burst_bytes(bytes_per_s: float) -> int:
    """Return the bytes that a link lets through at once after a pause."""
    return max(_LEAST_BURST_BYTES, int(bytes_per_s * _BURST_S))


def connect(switch: int, nodes: Sequence[int]) -> None:
    """Join network namespaces by a bridge."""
    _ip(switch, "link", "add", _BRIDGE, "type", "bridge")
    _ip(switch, "link", "set", _BRIDGE, "up")
    for number, pid in enumerate(nodes):
        port = _port(number)
        peer = ("peer", "name", INTERFACE, "netns", str(pid))
        _ip(switch, "link", "add", port, "type", "veth", *peer)
        _ip(switch, "link", "set", port, "master", _BRIDGE, "up")
        _ip(pid, "address", "add", f"{address_of(number)}/24", "dev", INTERFACE)
        _ip(pid, "link", "set", INTERFACE, "up")


def limit_links(switch: int, nodes: Sequence[int], bytes_per_s: float) -> None:
    """Limit every link, in both directions."""
    for number, pid in enumerate(nodes):
        _limit(switch, _port(number), bytes_per_s)
        _limit(pid, INTERFACE, bytes_per_s)


def _limit(pid: int, device: str, bytes_per_s: float) -> None:
    bucket = ("rate", f"{8 * bytes_per_s:.0f}bit", "burst", str(burst_bytes(bytes_per_s)), "latency", _QUEUE)
    called(*in_network(pid, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *bucket))


def _port(node: int) -> str:
    return f"port{node}"


def _ip(pid: int, *words: str) -> None:
    called(*in_network(pid, "ip", *words))
