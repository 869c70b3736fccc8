"""One rank of a job of parameter servers on torch.distributed: synchronous SGD on MNIST, workers first, then servers.

Each server holds a part of the weights. A worker sends it that part of the gradient and receives the new weights, after the
compute or beside it; beside it, a gradient is that of the weights one step before.
"""

import itertools
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.sizing.sweep import read
from storebench.system.processes import end_with_starter
from storebench.training.models import MODELS, Network
from storebench.training.sgd import CaffeSgd

RATE, MOMENTUM = 0.01, 0.9
"""Of the servers' SGD."""

UNTIMED = 2
"""First steps of a phase that do not count."""

IMAGES = 1_000
PATIENCE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Some of the ranks, how they exchange, and the least time of a gradient: a faster worker sleeps."""

    workers: int
    servers: int
    beside: bool = False
    compute_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Phases, each from the first weights on; links of a limited bandwidth are emulated by waiting.

    `steps` are timed, after `UNTIMED` others.
    """

    phases: Sequence[Phase]
    steps: int
    batch: int
    link_bytes_per_s: float = math.inf
    weights: str = ""
    """File for the weights at the end of each phase."""

    @property
    def workers(self) -> int:
        return max(phase.workers for phase in self.phases)

    @property
    def ranks(self) -> int:
        return self.workers + max(phase.servers for phase in self.phases)


def network() -> nn.Module:
    """Return the network that every rank begins with."""
    torch.manual_seed(0)
    return Network(MODELS["lenet"], (28, 28, 1), 10)


def work(job: Job, phase: Phase, rank: int, workers: dist.ProcessGroup | None) -> tuple[float, torch.Tensor]:
    """Be a worker, and return the median seconds of a step, and the weights at the end."""
    model, images = network(), read("mnist", limit=IMAGES)
    parameters = list(model.parameters())
    owners = range(job.workers, job.workers + phase.servers)

    def gradient_of(step: int) -> torch.Tensor:
        until = time.perf_counter() + phase.compute_s
        part = torch.arange(step * job.batch + rank, (step + 1) * job.batch, phase.workers)
        part %= len(images.labels)
        loss = nn.functional.cross_entropy(model(images.pixels[part]), images.labels[part])
        found = nn.utils.parameters_to_vector(torch.autograd.grad(loss, parameters))
        time.sleep(max(0.0, until - time.perf_counter()))
        return found

    taken, weights = [], nn.utils.parameters_to_vector(parameters).detach()
    gradient = torch.zeros_like(weights)
    for step in range(UNTIMED + job.steps):
        started = time.perf_counter()
        if not phase.beside:
            gradient = gradient_of(step)
        begun = time.perf_counter()
        parts = zip(
            gradient.tensor_split(phase.servers), weights.tensor_split(phase.servers), owners, strict=True
        )
        pending = [(dist.isend(sent, owner), dist.irecv(new, owner)) for sent, new, owner in parts]
        following = gradient_of(step) if phase.beside else gradient
        for one in itertools.chain(*pending):
            one.wait()
        _wait(begun, 2 * weights.nbytes / job.link_bytes_per_s)
        gradient = following
        nn.utils.vector_to_parameters(weights.clone(), parameters)
        dist.barrier(workers)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[UNTIMED:]), weights


def serve(job: Job, phase: Phase, number: int) -> None:
    """Be a server: update a part of the weights by the mean of the workers' gradients, step by step."""
    first = nn.utils.parameters_to_vector(network().parameters()).detach()
    part = nn.Parameter(first.tensor_split(phase.servers)[number].clone())
    optimizer = CaffeSgd({"weights": part}, momentum=MOMENTUM, weight_decay=0.0)
    gradients = torch.empty(phase.workers, len(part))
    for _ in range(UNTIMED + job.steps):
        receiving = [dist.irecv(row, worker) for worker, row in enumerate(gradients)]
        receiving[0].wait()
        begun = time.perf_counter()
        for one in receiving[1:]:
            one.wait()
        part.grad = gradients.sum(0) / phase.workers
        optimizer.step(RATE)
        _wait(begun, 2 * gradients.nbytes / job.link_bytes_per_s)
        for one in [dist.isend(part.detach(), worker) for worker in range(phase.workers)]:
            one.wait()


def _wait(begun: float, seconds: float) -> None:
    time.sleep(max(0.0, begun + seconds - time.perf_counter()))


def main(text: str) -> None:
    """Run the phases of a job; rank 0 prints the seconds of a step of each."""
    end_with_starter(signal.SIGKILL)
    torch.set_num_threads(1)
    content = json.loads(text)
    job = Job(**content | {"phases": [Phase(**phase) for phase in content["phases"]]})
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE_S))
    rank, worked = dist.get_rank(), list[tuple[float, torch.Tensor]]()
    for phase in job.phases:
        workers = dist.new_group(list(range(phase.workers)))  # every rank makes it
        dist.barrier()
        if rank < phase.workers:
            worked.append(work(job, phase, rank, workers))
        elif 0 <= rank - job.workers < phase.servers:
            serve(job, phase, rank - job.workers)
    dist.barrier()
    dist.destroy_process_group()
    if not rank:
        if job.weights:
            np.save(job.weights, torch.stack([weights for _, weights in worked]).numpy())
        print(json.dumps([seconds for seconds, _ in worked]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
