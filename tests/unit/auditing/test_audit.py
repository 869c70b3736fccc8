"""The audit of loaders: planted faults are named, and sound loaders are not accused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import storebench
from benchmarks.audit_cases import (
    FAULTY,
    SOUND,
    Images,
    InPlace,
    Make,
    Noisy,
    OwnGenerator,
    Rotated,
    Stream,
    load,
)
from storebench.auditing.audit_report import AuditReport, FaultKind

SCRIPT = """
import sys
from torch.utils.data import DataLoader
from benchmarks.audit_cases import Images, Stream
data = Stream(splits=False) if "faulty" in sys.argv else Stream(noise=True) if "hidden" in sys.argv else Images()
for epoch in range(0 if "none" in sys.argv else 2):
    for batch in DataLoader(data, 32, num_workers=2 if "faulty" in sys.argv else 0, shuffle="shuffle" in sys.argv):
        pass
print("the script's own words")
sys.exit(7 if "fails" in sys.argv else 0)
"""


def _first_of_each_kind() -> Iterator[Any]:
    """Yield all planted faults; those of a kind that another one has run in full only."""
    seen = set[FaultKind]()
    for name, (kind, make) in FAULTY.items():
        yield pytest.param(kind, make, id=name, marks=[pytest.mark.full] if kind in seen else [])
        seen.add(kind)


@pytest.mark.parametrize(("kind", "make"), list(_first_of_each_kind()))
def test_a_planted_fault_is_named_and_no_other(kind: FaultKind, make: Make) -> None:
    report = make()
    assert [fault.kind for fault in report.faults] == [kind]
    assert report.exit_code == 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[pytest.mark.full] if "spawned" in name or "four" in name else [])
        for name, make in SOUND.items()
    ],
)
def test_a_sound_loader_is_not_accused(make: Make) -> None:
    report = make()
    assert (report.faults, report.doubts, report.exit_code) == ((), (), 0)


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("faulty", 1),
        pytest.param("sound", 0, marks=pytest.mark.full),
        pytest.param("fails", 7, marks=pytest.mark.full),
        pytest.param("hidden", 4, marks=pytest.mark.full),
        pytest.param("none", 4, marks=pytest.mark.full),
    ],
)
def test_a_script_keeps_its_words_and_gets_the_exit_code_of_the_audit(
    tmp_path: Path, word: str, code: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = _audit(script, word, options=["--out", str(tmp_path / "out")])
    assert (done.stdout, done.returncode) == ("the script's own words\n", code), done.stderr
    if word != "none":
        (report,) = json.loads((tmp_path / "out" / "audit.json").read_text())
        assert report["name"].startswith("train.py:7, ")
        assert bool(report["faults"]) == (word == "faulty")
        assert [name for name, _ in report["rows"]].count("coverage") == 2


REBUILT = """
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler
class Images(Dataset):
    def __len__(self): return 60
    def __getitem__(self, index): return torch.tensor([index]), index % 3
def train():
    images = Images()
    for batch in DataLoader(images, 6, sampler=DistributedSampler(images, 1, 0)): pass
for epoch in range(2): train()
"""


def test_a_dataset_that_is_made_anew_for_each_epoch_is_audited_over_all(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REBUILT)
    done = _audit(tmp_path / "train.py")
    assert (done.returncode, done.stderr.count("storebench audit: ")) == (1, 1), done.stderr


def _audit(script: Path, *words: str, options: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "storebench", "audit", *options, str(script), *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


class Named(Stream):
    """A stream whose second field tells who a sample is."""

    def _sample(self, index: int) -> Any:
        return super()._sample(index), index


def test_a_key_tells_who_augmented_samples_are() -> None:
    hidden = storebench.audit(load(Stream(noise=True)))
    assert (hidden.faults, hidden.exit_code) == ((), 4)
    assert storebench.audit(load(Named(noise=True), num_workers=2), key=1).exit_code == 0
    repeated = storebench.audit(
        load(Named(noise=True, splits=False), num_workers=2), key=lambda sample: sample[1]
    )
    assert [fault.kind for fault in repeated.faults] == [FaultKind.WORKERS_REPEAT]
    # A map-style dataset has indices, and the key counts.
    assert (
        storebench.audit(load([(torch.ones(3), f"{at}") for at in range(70)], shuffle=True), key=1).exit_code
        == 0
    )


def test_drawn_labels_and_equal_contents_are_doubts() -> None:
    torch.manual_seed(0)  # so that samples are replaced in batches in which generators are looked at
    for labels_drawn in (Rotated(), InPlace(next_one=False)):
        report = storebench.audit(load(labels_drawn, shuffle=True))
        assert (report.faults, report.exit_code) == ((), 4)
    alike = load(Stream())
    alike.dataset._sample = lambda index: torch.tensor([max(index, 100)])  # type: ignore[attr-defined]
    assert storebench.audit(alike).exit_code == 4


@pytest.mark.parametrize(("shuffles", "code"), [(True, 4), (False, 0)])
def test_whether_epochs_of_a_shuffle_differ_cannot_be_told_of_one(shuffles: bool, code: int) -> None:
    report = storebench.audit(load(Images(), shuffle=shuffles), epochs=1)
    assert (report.faults, report.exit_code) == ((), code)
    assert report.as_dict()["exit_code"] == code
    with torch.no_grad():
        assert storebench.audit(load(Images(), shuffle=shuffles), epochs=1).exit_code == 0


def test_a_key_tells_which_samples_are_in_both_loaders() -> None:
    noisy = [
        [(torch.rand(3), number) for number in numbers]
        for numbers in (range(40), range(39, 70), range(40, 70))
    ]
    train, leaking, apart = (load(data, num_workers=2, persistent_workers=True) for data in noisy)
    (fault,) = storebench.audit(train, against=leaking, key=1).faults
    assert fault.kind is FaultKind.OVERLAP
    assert storebench.audit(train, against=apart, key=1).faults == ()


def _seeded(*, start: bool = True, draw: bool = True) -> Make:
    """Return a program that seeds its order, its augmentation, or not."""

    def make() -> AuditReport:
        return storebench.audit(start_loader(), epochs=1, repeat=start_loader)

    def start_loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0) if start else None
        rng = np.random.default_rng(0 if draw else None)
        return load(Noisy(rng.random), shuffle=True, generator=generator)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [(_seeded(), ""), (_seeded(start=False), "order"), (_seeded(draw=False), "augmented")],
)
def test_two_starts_are_compared(make: Make, words: str) -> None:
    report = make()
    assert [fault.kind for fault in report.faults] == [FaultKind.STARTS_DIFFER] * bool(words)
    assert all(words in fault.text for fault in report.faults)


@pytest.mark.parametrize(
    ("word", "code", "found"),
    [
        ("sound", 1, "starts that differ"),
        pytest.param("seeded", 0, "two starts serve the same", marks=pytest.mark.full),
        pytest.param("fails", 7, "", marks=pytest.mark.full),
    ],
)
def test_a_script_is_started_twice(tmp_path: Path, word: str, code: int, found: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nif 'seeded' in sys.argv: torch.manual_seed(0)\n" + SCRIPT)
    done = _audit(script, "shuffle", word, options=["--repeat"])
    assert (done.returncode, done.stdout.count("the script's own words")) == (code, 1 if code == 7 else 2), (
        done.stderr
    )
    assert found in done.stderr
    assert done.stderr.count("storebench audit:") == (code != 7)


def test_augmentation_hides_whether_loaders_overlap() -> None:
    report = storebench.audit(load(Noisy(np.random.rand), shuffle=True), against=load(Images()))
    assert (report.faults, report.exit_code) == ((), 4)


def test_the_loop_gets_the_batches_and_errors_of_its_loader() -> None:
    class Failing(Images):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == 100:
                raise OSError("no such image")
            return super().__getitem__(index)

    for workers in (0, 2):
        with pytest.raises(OSError, match="no such image"):
            storebench.audit(load(Failing(), num_workers=workers))


def test_only_methods_that_the_loop_calls_are_called() -> None:
    class Careful(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            return Untouchable()

    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        __len__ = __iter__ = __eq__ = __repr__ = __getattr__  # type: ignore[assignment]
        __hash__ = None  # type: ignore[assignment]

    report = storebench.audit(DataLoader(Careful(), 8, collate_fn=len, shuffle=True))
    assert report.exit_code == 0, str(report)


def test_generators_are_found_among_objects_that_name_each_other() -> None:
    class Node:
        def __init__(self) -> None:
            self.others: list[Node] = []

    nodes = [Node() for _ in range(100)]
    for node in nodes:
        node.others = nodes
    data = OwnGenerator("numpy")
    data.nodes = nodes  # type: ignore[attr-defined]
    (fault,) = storebench.audit(load(data, shuffle=True, num_workers=2)).faults
    assert fault.kind is FaultKind.EQUAL_RANDOM


def test_examples_name_keys_or_indices() -> None:
    (fault,) = storebench.audit(load(Stream(splits=False, keys=True, hides=2), num_workers=2)).faults
    assert fault.kind is FaultKind.WORKERS_REPEAT
    (fault,) = storebench.audit(load(TensorDataset(torch.arange(70)), drop_last=True)).faults
    assert "(64, 65, 66, ...)" in fault.text


def test_loaders_of_libraries_are_audited_by_the_rows_of_their_batches() -> None:
    batches = [
        {"x": torch.arange(start, start + 4)[:, None], "label": torch.zeros(4)} for start in (0, 4, 0, 4)
    ]
    (fault,) = storebench.audit(batches).faults
    assert fault.kind is FaultKind.REPEATED
    assert storebench.audit(batches[:2]).exit_code == 0
