"""Emulated nodes on this machine: set up, limited, probed, used for runs of storebench, and torn down completely."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.nodes.limits import Limits, Probed
from benchmarks.nodes.network import connect, limit_links
from benchmarks.nodes.node import (
    PROBE,
    READAHEAD_KIB,
    STORES,
    Node,
    held,
    node_groups,
    sweep_groups,
    variables_of,
    wait_until_free,
)
from benchmarks.nodes.tools import called, require
from storebench.errors import CellFailedError, OutputError
from storebench.filesystem import sync
from storebench.probes.cgroup import find_controller, remove_stale
from storebench.probes.code import cell_environment
from storebench.probes.loop_mount import BLOCK_BYTES, fill_image, make_image
from storebench.record.lines import RECORDS_NAME, read_records
from storebench.record.schema import Record
from storebench.run.cell_process import end
from storebench.run.execute import Silent, prepare
from storebench.run.resources import sweep
from storebench.run.scenario import load_scenario
from storebench.system.interrupts import Held
from storebench.system.processes import end_processes, marked
from storebench.system.scratch import scratch_folder, temporary_place

FEWEST_NODES, MOST_NODES = 2, 4
RUN = "run"
"""Folder of the records, in the folder of a run."""

LIMITS_NAME = "emulated-nodes.json"
"""File beside it: the limits and the rates that were reached."""

TIMEOUT_S = 6 * 3600.0
"""Time limit of a run; each of its replicates has a separate limit."""

_PORT = 29_400
_PORTS = 3  # one for the board, two for jobs in turn
_PROBE_PORT = 29_300
_LOOK_EVERY_S = 0.1
_PROBE_BYTES = 16 << 20
_SLACK_BYTES = 32 << 20
_SPARE_FILES = 1000  # indexes and locks that cells add
_END_S = 15.0


def say(line: str) -> None:
    """Print a line with the prefix "emulated nodes"."""
    print(f"emulated nodes: {line}", flush=True)


def probed(cluster: "Cluster") -> Probed:
    """Measure and print the rates of a cluster's links and disks under their limits."""
    say(f"{len(cluster.nodes)} nodes, {cluster.limits}")
    found = cluster.probe()
    say(str(found))
    for mark in found.marks(cluster.limits):
        say(f"MARKED: {mark}")
    return found


def print_records(records: Iterable[Record]) -> None:
    """Print one line per record."""
    for record in records:
        cell = record.cell
        where = f"{cell.backend.name}, {cell.cache}, {cell.ranks} ranks, round {record.replicate}, epoch {record.epoch}"
        say(
            f"{where}: "
            + (f"FAILED: {record.failure}" if record.failed else f"{record.samples_per_s:,.0f} samples/s")
        )


class Cluster:
    """Emulated nodes with their limits."""

    def __init__(self, nodes: Sequence[Node], switch: int, limits: Limits) -> None:
        self.nodes = nodes
        self._runs = 0
        self.limits = limits
        limit_links(switch, [node.pid for node in nodes], limits.link_bytes_per_s)
        for node, rate in zip(nodes, limits.device_bytes_per_s, strict=True):
            node.limit_reads(rate)

    def probe(self) -> Probed:
        """Measure the rates of links and disks, one after the other."""
        sent, read = [], []
        for sender, receiver in zip(self.nodes, (*self.nodes[1:], self.nodes[0]), strict=True):
            place = (receiver.address, str(_PROBE_PORT))
            with _started(receiver, "receive", *place) as listening:
                _line_of(listening)
                with _started(sender, "send", *place):
                    sent.append(float(_line_of(listening)))
        for node in self.nodes:
            with _started(node, "read", str(node.disk / PROBE)) as process:
                read.append(float(_line_of(process)))
        return Probed(sent_bytes_per_s=tuple(sent), device_bytes_per_s=tuple(read))

    @contextlib.contextmanager
    def holding(self, node: int, folder: Path) -> Iterator[None]:
        """Let a process on one node map all files below a folder, so their pages cannot be evicted."""
        with _started(self.nodes[node], "hold", str(folder)) as process:
            _line_of(process)
            yield

    def run(self, scenario: Path, folder: Path, probed: Probed | None = None) -> list[Record]:
        """Run a scenario on all nodes, each with the ordinary command line; write the limits beside the run."""
        if (folder / RUN).exists():
            raise OutputError("there is a run already", where=folder, hint="Name another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        codes = self._commands(scenario.resolve(), folder.resolve())
        if not (folder / RUN / RECORDS_NAME).is_file():
            raise CellFailedError(_last_lines(folder, codes))
        for node in self.nodes:
            if node.groups.memory.usage().oom_kills:
                say(f"MARKED: the kernel killed a process of {node.name} for lack of memory")
        about = {
            "what": f"{len(self.nodes)} emulated nodes on one machine",
            "limits": asdict(self.limits),
            "probed": None if probed is None else asdict(probed),
        }
        (folder / LIMITS_NAME).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        return read_records(folder / RUN)

    def _commands(self, scenario: Path, folder: Path) -> list[int]:
        """Run the command of each node and return their exit codes."""
        place = f"{self.nodes[0].address}:{_PORT + _PORTS * self._runs}"
        self._runs += 1
        with contextlib.ExitStack() as stack:
            processes: list[subprocess.Popen[bytes]] = []
            stack.callback(_end_all, processes)
            for node in self.nodes:
                words = ("bench", str(scenario), "--nodes", str(len(self.nodes)), "--node", str(node.number))
                out = folder / (RUN if not node.number else f"node{node.number}")
                places = ("--rendezvous", place, "--out", str(out), "--stores", str(node.stores))
                log = stack.enter_context((folder / f"node{node.number}.log").open("wb"))
                process = subprocess.Popen(
                    node.python("-m", "storebench", *words, *places),
                    env=dict(node.variables),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                processes.append(process)
            deadline = time.monotonic() + TIMEOUT_S
            while any(process.poll() is None for process in processes):
                if time.monotonic() > deadline:
                    raise CellFailedError(f"the commands of the nodes have not ended after {TIMEOUT_S:g} s")
                time.sleep(_LOOK_EVERY_S)
            return [process.returncode for process in processes]


@contextlib.contextmanager
def emulated(limits: Limits, scenarios: Sequence[Path] = (), folder: Path | None = None) -> Iterator[Cluster]:
    """Set up one node per disk limit, and tear all of them down at the end, also after an interrupt."""
    place = folder or temporary_place()
    require(place)
    # Leftovers of an earlier start that was killed: processes, namespaces, disks and groups.
    sweep()
    for group in find_controller().parent.glob("storebench-*"):
        remove_stale(group)
    sweep()
    sweep_groups()
    stack = contextlib.ExitStack()
    try:
        scratch = stack.enter_context(scratch_folder("nodes", folder))
        stack.callback(sweep)
        image = disk_image(scratch, scenarios)
        cluster = _set_up(stack, scratch, image, limits)
        stack.callback(end_processes, [scratch])
        yield cluster
    finally:
        with Held():
            stack.close()


def _set_up(stack: contextlib.ExitStack, scratch: Path, image: Path, limits: Limits) -> Cluster:
    variables = variables_of(marked(scratch, cell_environment()))
    nodes: list[Node] = []
    for number in range(len(limits.device_bytes_per_s)):
        own = scratch / f"node{number}"
        disk = own / "disk"
        disk.mkdir(parents=True)
        copied = own / image.name
        called("cp", "--sparse=never", str(image), str(copied))  # with all its blocks
        sync(copied)
        groups = stack.enter_context(node_groups(number, limits.memory_bytes))
        arguments = (str(copied), str(disk), str(READAHEAD_KIB))
        pid, device = _holding(stack, arguments, variables, f"node {number}")
        nodes.append(
            Node(number=number, pid=pid, disk=disk, device=device, groups=groups, variables=variables)
        )
    image.unlink()
    switch, _ = _holding(stack, (), variables, "the switch")
    connect(switch, [node.pid for node in nodes])
    return Cluster(nodes, switch, limits)


def _holding(
    stack: contextlib.ExitStack, arguments: Sequence[str], variables: dict[str, str], name: str
) -> tuple[int, str]:
    """Hold namespaces until the stack closes; return their process and their device, which is then freed."""
    freed: list[str] = []
    stack.callback(wait_until_free, freed)
    pid, device = stack.enter_context(held(arguments, variables, name))
    freed.append(device)
    return pid, device


def disk_image(scratch: Path, scenarios: Sequence[Path]) -> Path:
    """Return the image of a disk, made in `scratch`, with the stores of all cells and a file to measure its rate."""
    content = scratch / "content"
    (content / STORES).mkdir(parents=True)
    (content / PROBE).write_bytes(os.urandom(_PROBE_BYTES))
    for path in scenarios:
        scenario = load_scenario(path)
        prepare(dict.fromkeys(scenario.cells()), scenario, content / STORES, Silent())
    image, point = scratch / "disk.img", scratch / "mount"
    point.mkdir()
    paths = list(content.rglob("*"))
    size = int(1.05 * sum(path.stat().st_size + BLOCK_BYTES for path in paths)) + _SLACK_BYTES
    make_image(image, -(-size // BLOCK_BYTES) * BLOCK_BYTES, files=len(paths) + _SPARE_FILES)
    fill_image(image, point, content)
    shutil.rmtree(content)
    return image


@contextlib.contextmanager
def _started(node: Node, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a command of `benchmarks.nodes.probes` on a node while a with statement lasts."""
    with subprocess.Popen(
        node.python("-m", "benchmarks.nodes.probes", *words),
        env=dict(node.variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            end(process)


def _line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate()
        last = (errors.strip().splitlines() or ["its process has ended"])[-1]
        raise CellFailedError(f"a probe failed ({last})")
    return line


def _end_all(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End the commands of all nodes that still run; each ends its own processes."""
    running = [process for process in processes if process.poll() is None]
    with Held():
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _last_lines(folder: Path, codes: Sequence[int]) -> str:
    """Return why a run has no records: the last line of each failed node."""
    found = []
    for number, code in enumerate(codes):
        text = (folder / f"node{number}.log").read_text(encoding="utf-8", errors="replace").strip()
        last = re.sub(r"^storebench: ", "", (text.splitlines() or [f"exit code {code}"])[-1])
        found += [f"node {number}: {last}"] if code else []
    return "; ".join(found) or "the run has no records"
