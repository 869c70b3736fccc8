"""Sizing: formulas agree with simulations, parameter servers with SGD in one process, and nothing is left of a kill."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.nodes.tools import why_not
from benchmarks.sizing import calculate
from benchmarks.sizing.calculate import accelerators_for, exchange_s, servers_for, speed_up, step_s
from benchmarks.sizing.jobs import here, run
from benchmarks.sizing.servers import MOMENTUM, RATE, UNTIMED, Job, Phase, network
from benchmarks.sizing.sweep import read
from tests.support.harness_tools import wait_for

ROOT = Path(__file__).resolve().parents[3]
BYTES_PER_S = 40e6
COMMAND = (sys.executable, "-m", "benchmarks.sizing")
ON_NODES = (*COMMAND, "--only", "servers", "--steps", "1000")
ON_LOOPBACK = (
    *(sys.executable, "-c"),
    (
        "from benchmarks.sizing.jobs import *; from benchmarks.sizing.servers import *; "
        "run(Job(phases=[Phase(workers=3, servers=3, compute_s=0.2)], steps=1000, batch=48), here(6, 1e8))"
    ),
)


def slots(workers: int, servers: int, pieces: int) -> int:
    """Simulate one direction: each worker sends `pieces` to each server, and each node one piece at a time."""
    left = dict.fromkeys(itertools.product(range(workers), range(servers)), pieces)
    taken = 0
    while any(left.values()):
        width = max(workers, servers)
        for worker in range(workers):
            server = (worker + taken) % width
            if left.get((worker, server), 0):
                left[worker, server] -= 1
        taken += 1
    return taken


@pytest.mark.parametrize(("workers", "servers"), [*itertools.product((1, 2, 3, 5), (1, 2, 3, 4))])
def test_an_exchange_takes_as_long_as_in_a_simulation(workers: int, servers: int) -> None:
    pieces, piece_bytes, bytes_per_s = 12, 100, 1e6
    size = servers * pieces * piece_bytes
    simulated_s = 2 * slots(workers, servers, pieces) * piece_bytes / bytes_per_s
    assert exchange_s(size, workers, servers, bytes_per_s) == pytest.approx(simulated_s)


@pytest.mark.parametrize("compute_s", [0.05, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("workers", [1, 3, 8, 64])
def test_the_fewest_servers_that_hide_the_exchange(workers: int, compute_s: float) -> None:
    size, rate = 1e6, 20e6
    hides = [
        number
        for number in range(1, 2 * workers)
        if step_s(compute_s, exchange_s(size, workers, number, rate), beside=True) == compute_s
    ]
    assert servers_for(size, workers, rate, compute_s) == (hides[0] if hides else None)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("wish", [1.0, 1.5, 2.0, 5.0, 11.0, 20.0])
def test_the_fewest_accelerators_that_reach_a_speed_up(wish: float, ratio: float) -> None:
    def simulated(accelerators: int) -> float:
        """Divide the compute of 1,000 steps; each step has the whole overhead."""
        times = [sum(part / each + ratio for part in [1.0] * 1000) for each in (1, accelerators)]
        return times[0] / times[1]

    assert speed_up(7, ratio) == pytest.approx(simulated(7))
    reached = [number for number in range(1, 2000) if speed_up(number, ratio) >= wish * (1 - 1e-9)]
    assert accelerators_for(wish, ratio) == (reached[0] if reached else None)


def trained(job: Job, phase: Phase) -> torch.Tensor:
    """Return the weights that one process reaches by SGD with the mean gradient of the same images."""
    model, images = network(), read("mnist")
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)
    late = [torch.zeros_like(one) for one in parameters]
    for step in range(UNTIMED + job.steps):
        losses = []
        for worker in range(phase.workers):
            part = slice(step * job.batch + worker, (step + 1) * job.batch, phase.workers)
            losses.append(nn.functional.cross_entropy(model(images.pixels[part]), images.labels[part]))
        gradients = list(torch.autograd.grad(torch.stack(losses).sum() / phase.workers, parameters))
        for parameter, gradient in zip(parameters, late if phase.beside else gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        late = gradients
    return nn.utils.parameters_to_vector(parameters).detach()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch add in the order in which the ranks do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_parameter_servers_train_as_one_process_does_bit_for_bit(tmp_path: Path) -> None:
    phases = [
        Phase(workers=2, servers=2),
        Phase(workers=2, servers=2, beside=True),
        Phase(workers=1, servers=3),
    ]
    job = Job(phases=phases, steps=3, batch=32, weights=str(tmp_path / "weights.npy"))
    taken = run(job, here(job.ranks, BYTES_PER_S))
    first = nn.utils.parameters_to_vector(network().parameters())
    for phase, taken_s, weights in zip(phases, taken, np.load(job.weights), strict=True):
        assert taken_s >= exchange_s(weights.nbytes, phase.workers, phase.servers, BYTES_PER_S)
        assert not torch.allclose(torch.from_numpy(weights), first, atol=1e-3)
        assert torch.equal(torch.from_numpy(weights), trained(job, phase))


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (
            "--compute-ms 250 --workers 64 --speed-up 2",
            ("A speed-up of 2: 6 accelerators.", "64 workers: 42 parameter servers to hide the exchange."),
        ),
        (
            "--compute-ms 100 --overhead-ms 50 --speed-up 3",
            (
                "No number of accelerators is 3 times as fast as one: the limit is 3 times.",
                "No number of servers hides the exchange: a worker's own link takes 163.2 ms.",
            ),
        ),
    ],
)
def test_answers_for_the_figures_of_a_cluster(
    words: str, answers: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--parameters-mb", "102", "--link-mb-per-s", "1250"]
    calculate.main([*given, *words.split()])
    assert tuple(capsys.readouterr().out.splitlines()[-2:]) == answers


@pytest.mark.slow
def test_the_fastest_settings_and_mini_batch_are_chosen(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = [
        "--only",
        "batch",
        "--dataset",
        "mnist",
        "--batch-sizes",
        "32",
        "4096",
        "--seeds",
        "1",
        "--images",
        "8000",
        "--out",
    ]
    variables = {**os.environ, "STOREBENCH_DATA": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, *words, str(out)], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "lenet on mnist (synthetic)" in done.stdout
    found = json.loads(out.read_text())["mnist"]
    times = [settings.pop("step_s") for settings in found["settings"]]
    assert found["chosen"] == found["settings"][times.index(min(times))]
    small, large = found["sweep"]
    assert small["peak_bytes"] < large["peak_bytes"]
    assert small["steps"][0] * 32 <= 8000
    assert large["steps"] == [None]
    assert found["mini_batch"] == 32


def working(temporary: Path) -> list[tuple[str, str]]:
    """Return command and network of each process that was started with this folder for temporary files."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={temporary}".encode() in (folder / "environ").read_bytes():
                found.append(((folder / "cmdline").read_text(), str((folder / "ns/net").readlink())))
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "networks", "number"),
    [
        pytest.param(ON_NODES, 8, signal.SIGTERM, marks=pytest.mark.root, id="nodes-interrupt"),
        pytest.param(ON_NODES, 8, signal.SIGKILL, marks=pytest.mark.root, id="nodes-kill"),
        pytest.param(ON_LOOPBACK, 1, signal.SIGKILL, id="loopback-kill"),
    ],
)
def test_nothing_is_left(command: tuple[str, ...], networks: int, number: signal.Signals) -> None:
    """Six ranks run, in as many networks beside the machine's own and that of the switch, or in the machine's own."""
    with tempfile.TemporaryDirectory(prefix="sb-") as name:
        temporary = Path(name)
        reason = why_not(temporary)
        if networks > 1 and reason:
            pytest.skip(f"emulated nodes cannot be set up here: {reason}")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            wait_for(
                lambda: sum("benchmarks.sizing.servers\0" in words for words, _ in working(temporary)) == 6,
                200,
            )
            assert len({network for _, network in working(temporary)}) == networks
            process.send_signal(number)
            _, error = process.communicate(timeout=60)
            assert process.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL), error
            wait_for(lambda: not working(temporary), 20)
        finally:
            process.kill()
