"""A format of somebody else's, found through a real entry point and held to the same contract."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.quick_cli import CommandServer

PLUGIN = '''
"""One file with all payloads, one with where they begin: the smallest format there can be."""

import numpy as np

from storebench.errors import CorruptStoreError
from storebench.formats.base import Fetched, Format, FormatInfo, Reader, ReaderInfo, Writer


class PackWriter(Writer):
    def __init__(self, folder, spec):
        super().__init__(folder, spec)
        self.file = (folder / "pack.bin").open("wb")
        self.labels, self.ends = [], [0]

    def append(self, payload, label):
        self.file.write(payload)
        self.labels.append(label)
        self.ends.append(self.file.tell())

    def close(self):
        self.file.close()
        np.save(self.folder / "labels.npy", np.array(self.labels))
        np.save(self.folder / "ends.npy", np.array(self.ends))

    def abort(self):
        self.file.close()


class PackReader(Reader):
    def __init__(self, store, manifest, options):
        super().__init__(store, manifest, options)
        try:
            self.labels = np.load(store / "labels.npy")
            self.ends = np.load(store / "ends.npy")
            if (store / "pack.bin").stat().st_size != self.ends[-1]:
                raise CorruptStoreError("the pack has another size", where=store)
            self.file = (store / "pack.bin").open("rb")
        except (OSError, ValueError, EOFError) as error:
            raise CorruptStoreError(f"the store does not open ({error})", where=store) from error

    def _fetch(self, indices):
        return [self.read(index) for index in self._checked(indices)]

    def _fetch_into(self, indices, out):
        for row, payload in zip(out, self._fetch(indices)):
            row[...] = np.frombuffer(payload, np.uint8).reshape(row.shape)
        return Fetched(out.nbytes)

    def read(self, index):
        self.file.seek(self.ends[index])
        return self.file.read(int(self.ends[index + 1] - self.ends[index]))

    def _close(self):
        self.file.close()


class PackFormat(Format):
    info = FormatInfo(name="pack", summary="one file", default_codec="jpeg", default_reader="seek")

    def readers(self):
        return {"seek": ReaderInfo(reader=PackReader, summary="seek and read")}

    def writer(self, folder, spec):
        return PackWriter(folder, spec)
'''

TESTS = """
from storebench.testing.contract import FormatContract


class TestPack(FormatContract):
    format_name = "pack"
"""


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """Install the plugin as pip would, into a folder of its own; return the environment that finds it."""
    site = tmp_path / "site"
    metadata = site / "storebench_pack-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "storebench_pack.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: storebench-pack\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[storebench.formats]\npack = storebench_pack:PackFormat\n")
    return {**os.environ, "PYTHONPATH": str(site)}


def test_it_is_listed(plugin: dict[str, str], commands: CommandServer, tmp_path: Path) -> None:
    listed = commands.run("formats", "--json", cwd=tmp_path, env=plugin)
    found = {row["name"]: row for row in json.loads(listed.stdout)}
    assert found["pack"]["builtin"] is False
    assert found["pack"]["default_codec"] == "jpeg"
    table = commands.run("formats", cwd=tmp_path, env=plugin)
    assert "installed (storebench_pack)" in table.stdout


@pytest.mark.parametrize("name", ["PackWriter", "PackFromat", "PackFormat.info"])
def test_an_entry_point_without_a_format_is_called_so(
    plugin: dict[str, str], commands: CommandServer, tmp_path: Path, name: str
) -> None:
    points = f"[storebench.formats]\npack = storebench_pack:{name}\n"
    next(tmp_path.rglob("entry_points.txt")).write_text(points)
    listed = commands.run("formats", cwd=tmp_path, env=plugin)
    assert listed.returncode == 0
    assert f"storebench_pack:{name} is no format" in listed.stdout
    refused = commands.run("run", "pack", "-d", "mnist", cwd=tmp_path, env=plugin)
    assert refused.returncode == 2
    assert f"pack: storebench_pack:{name} is no format. The entry point of its package" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_it_is_converted_to_and_verified(
    plugin: dict[str, str], commands: CommandServer, tmp_path: Path
) -> None:
    samples = ("--dataset", "mnist", "--synthetic", "--limit", "40")
    done = commands.run("convert", "pack+png", *samples, "--json", cwd=tmp_path, env=plugin)
    store = json.loads(done.stdout)[0]["path"]
    assert commands.run("verify", store, cwd=tmp_path, env=plugin).returncode == 0


@pytest.mark.full  # so does the plugin of docs/adding-a-format.md, whose tests run by default
def test_it_passes_the_contract(plugin: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_pack.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pack.py"],
        cwd=tmp_path,
        env=plugin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_one_that_breaks_the_contract_is_found_out(plugin: dict[str, str], tmp_path: Path) -> None:
    broken = PLUGIN.replace("self._checked(indices)", "indices.tolist()")
    (tmp_path / "site" / "storebench_pack.py").write_text(broken)
    (tmp_path / "test_pack.py").write_text(TESTS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "test_pack.py",
            "-k",
            "no_sample_has",
        ],
        cwd=tmp_path,
        env=plugin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
