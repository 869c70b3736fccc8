"""The process that holds the namespaces of one emulated node, or of the switch between them, while its input is open.

It mounts the image of the node's disk and prints its device (MAJOR:MINOR; "-" for the switch). When it and all
processes of the node have ended, the kernel unmounts the disk, frees the loop device, and removes the network with
its links.
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
    """Set up the namespaces and hold them; the arguments are those of `mount_image`, none for the switch."""
    end_with_parent(signal.SIGKILL)
    # A terminal also interrupts this process, but it must outlive the commands of its node.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        device = "-"
        if arguments:
            image, point, readahead_kib = arguments
            mount_image(Path(image), Path(point), int(readahead_kib), writable=True)
            major, minor = mount_of(Path(point)).device or (0, 0)
            device = f"{major}:{minor}"
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, stderr=subprocess.PIPE)
        with contextlib.suppress(
            OSError
        ):  # a kernel without IPv6, by which devices send something by themselves
            _IPV6.write_text("1")
    except (CellFailedError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(device, flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
