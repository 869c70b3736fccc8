"""A folder in which the documents' Python and the guide's plugin run: small real files, a store and a run."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from storebench.cli.main import app
from tests.support.copies import warm_cells
from tests.support.dataset_files import cifar_binary, labels, pixels, write_class_folders, write_mnist

MNIST, CIFAR10_BATCH, TEST = 96, 16, 24

SMALL = (
    *("--dataset", "mnist", "--limit", "32", "--batch-size", "16", "--model", "tiny", "--threads", "1"),
    *("--compute", "emulated:0.01", "--replicates", "1", "--out", "runs/small"),
)


@dataclass(kw_only=True)
class Sandbox:
    """Where commands run."""

    root: Path
    env: Mapping[str, str]

    def run(self, *words: str) -> None:
        """Run ``storebench WORDS`` in this process."""
        with contextlib.chdir(self.root), warm_cells():
            result = CliRunner(env=self.env).invoke(app, list(words))
        assert result.exit_code == 0, f"storebench {' '.join(words)}\n{result.output}\n{result.exception!r}"


def make_sandbox(root: Path) -> Sandbox:
    """Write the data, and make the store and the run that the documents' code reads."""
    data = root / "data"
    write_mnist(data / "mnist", train=MNIST, test=TEST)
    folder = data / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        planar = pixels(CIFAR10_BATCH, 3, 32, 32)
        (folder / f"{name}.bin").write_bytes(cifar_binary(planar, labels(CIFAR10_BATCH)))
    (folder / "batches.meta.txt").write_text("\n".join(f"class{number}" for number in range(10)))
    for part in ("imagenet/train", "imagenet/val", "photos/train", "photos/val"):
        write_class_folders(data / part, {"n01440764": 3, "n01443537": 3})
    env = {"STOREBENCH_DATA": str(data), "STOREBENCH_STORES": "stores", "STOREBENCH_RUNS": "runs"}
    sandbox = Sandbox(root=root, env=env)
    sandbox.run("run", "lmdb", *SMALL)
    sandbox.run("convert", "lmdb", "--dataset", "mnist")  # the store that docs/loaders.md reads
    return sandbox
