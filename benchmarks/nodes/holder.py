"""The process that holds the namespaces of one emulated node, or of the switch between them, while its input is open.

It is started in a separate network and mount namespace::

    python -P -m benchmarks.nodes.holder [IMAGE POINT READAHEAD_KIB]

It mounts the image of the node's disk, prints its device (MAJOR:MINOR; "-" for the switch), and waits for the end of its
input. When it and all processes of the node have ended, for any reason, the kernel unmounts the disk, frees the
loop device, and removes the network with its links.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from storebench.errors import CellFailedError
from storebench.probes.loop_mount import mount_image
from storebench.probes.machine import mount_of
from storebench.system.processes import end_with_parent

_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")


def main(arguments: Sequence[str]) -> int:
    """Set up the namespaces and hold them."""
    end_with_parent(signal.SIGKILL)
    # A terminal also interrupts this process, but it must outlive the commands of its node.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        device = _mounted(*arguments) if arguments else "-"
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, stderr=subprocess.PIPE)
        _without_ipv6()
    except (CellFailedError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(device, flush=True)
    sys.stdin.read()
    return 0


def _without_ipv6() -> None:
    """Let devices added to this network have a single address, and send nothing by themselves."""
    with contextlib.suppress(OSError):  # a kernel without IPv6
        _IPV6.write_text("1")


def _mounted(image: str, point: str, readahead_kib: str) -> str:
    mount_image(Path(image), Path(point), int(readahead_kib), writable=True)
    major, minor = mount_of(Path(point)).device or (0, 0)
    return f"{major}:{minor}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
