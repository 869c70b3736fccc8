"""The board of a run on several nodes: torch's key-value store, held by the first node and reached by the others."""

import json
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from storebench.system.processes import end_with_parent


def main(arguments: Sequence[str]) -> int:
    """Serve commands until standard input ends."""
    end_with_parent(signal.SIGTERM)
    # A terminal also sends it to the runner, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host, port, leads, reach_s = arguments
    import torch.distributed as dist

    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            int(port),
            is_master=leads == "leads",
            wait_for_workers=False,
            timeout=timedelta(seconds=float(reach_s)),
        )
        _say({})
        for line in sys.stdin:
            _say(_answer(store, json.loads(line)))
    except RuntimeError as error:
        _say({"error": " ".join(str(error).split())})
        return 1
    return 0


def _answer(store: Any, command: dict[str, Any]) -> dict[str, str]:
    import torch.distributed as dist

    if "set" in command:
        store.set(*command["set"])
        return {}
    try:
        store.wait([command["get"]], timedelta(seconds=command["timeout_s"]))
    except dist.DistStoreError:  # no node has set it in time
        return {}
    return {"text": store.get(command["get"]).decode()}


def _say(answer: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
