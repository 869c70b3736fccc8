"""Containers that are read where they are: the same samples, in any order or in their own, and nothing is copied."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from storebench.datasets import DatasetSpec
from storebench.errors import UsageError
from storebench.formats.base import Reader
from storebench.formats.peers.stream import StreamOptions
from storebench.formats.registry import BUILTIN, get_format, open_reader, parse_backend
from storebench.stores.convert import ensure_store
from storebench.stores.find import Store
from tests.support.container_files import WRITERS, Sample, write_tar
from tests.support.dataset_files import pixels
from tests.support.photo_folders import photo_file

Cli = Callable[..., Any]
COUNT, MANY = 30, 120
SAMPLES: list[Sample] = [(photo_file(at, (30 + at, 40)), at % 3) for at in range(COUNT)]


def placed(kind: str, folder: Path, **options: Any) -> Store:
    text = WRITERS[kind](folder / "data", SAMPLES)
    name = text if text.startswith("hf:") else f"container:{text}"
    return ensure_store(DatasetSpec(name=name, **options), parse_backend("container"), folder / "stores")


def served(reader: Reader, batch: list[int]) -> list[Sample]:
    payloads = reader.fetch(np.array(batch, np.int64))
    return list(zip(payloads, reader.labels[batch].tolist(), strict=True))


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_come_in_any_order_and_nothing_is_copied(kind: str, tmp_path: Path) -> None:
    store = placed(kind, tmp_path)
    expected = SAMPLES
    if kind == "LMDB":  # its keys begin with the labels
        expected = sorted(SAMPLES, key=lambda sample: sample[1])
    order = [29, 3, 17, 3, 0, 28, 15, 14]
    with open_reader(store.path) as reader:
        assert served(reader, order) == [expected[index] for index in order]
    assert not any(content in path.read_bytes() for path in store.path.iterdir() for content, _ in SAMPLES)
    in_place = {path.resolve() for path in get_format("container").data_files(store.path)}
    assert in_place
    assert in_place <= {path.resolve() for path in (tmp_path / "data").rglob("*")}


@pytest.mark.parametrize(("kind", "library"), [("tar", "webdataset"), ("TFRecord", "tfrecord")])
@pytest.mark.parametrize(
    ("options", "steps"), [({}, None), ({}, 3), ({"limit": 19}, None), ({"limit": 7}, None)]
)
def test_a_stream_serves_all_shards_in_the_orders_that_it_draws(
    kind: str, library: str, options: dict[str, int], steps: int | None, tmp_path: Path
) -> None:
    for name in BUILTIN[library].libraries:
        pytest.importorskip(name)
    store = placed(kind, tmp_path, **options)
    count = options.get("limit", COUNT)
    stream = get_format("container").readers()["stream"].reader
    drawn = (1, 6), (1, 7)  # the seeds of two passes
    orders = [
        stream.native_order(store.path, store.manifest, StreamOptions(buffer=4), seed).tolist()
        for seed in drawn
    ]
    assert [sorted(order) for order in orders] == [list(range(count))] * 2
    assert orders[0] != orders[1]
    batches = [order[at : at + 4] for order in orders for at in range(0, count, 4)[:steps]]
    with open_reader(store.path, "stream", buffer=4) as reader:
        reader.plan([np.array(batch, np.int64) for batch in batches], drawn[0])
        for batch in batches:
            assert served(reader, batch) == [SAMPLES[index] for index in batch]
        assert "batches outside of the native order" not in reader.notes()


def test_raw_pixels_are_read_where_they_are(cli: Cli, tmp_path: Path) -> None:
    images = pixels(9, 20, 30, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = images, np.arange(9) % 2
    done = cli("convert", "container+raw", "lmdb", "--dataset", "a.h5", "--json")
    assert done.returncode == 0, done.stderr
    assert len({store["samples_digest"] for store in json.loads(done.stdout)}) == 1
    grown = cli("convert", "container+raw", "--dataset", "a.h5", "--size", "20")
    assert grown.returncode == 2
    assert "samples that are derived from others are in no container" in grown.stderr


def test_another_codec_than_that_of_the_container_is_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli("convert", "container+jpeg", "--dataset", WRITERS["tar"](tmp_path / "data", SAMPLES))
    assert done.returncode == 2, done.stderr
    assert "are read as they are, not as jpeg" in done.stderr


@pytest.mark.parametrize("option", [["--size", "10"], ["--skip-unreadable"]])
def test_a_part_that_no_stream_serves_is_refused_at_once(option: list[str], cli: Cli, tmp_path: Path) -> None:
    text = WRITERS["tar"](tmp_path / "data", SAMPLES)
    done = cli("run", "lmdb+original", "container:stream", "--dataset", text, *option, "--stores", "stores")
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "stores").exists()


@pytest.mark.parametrize("kind", ["tar", pytest.param("TFRecord", marks=pytest.mark.full)])
def test_a_container_is_measured_beside_what_it_could_become(kind: str, cli: Cli, tmp_path: Path) -> None:
    for library in ("webdataset", "google_crc32c"):
        pytest.importorskip(library)
    text = WRITERS[kind](tmp_path / "data", SAMPLES)
    backends = ("container", "container:stream", "lmdb+original")
    matrix: dict[str, Any] = {"dataset": f"container:{text}", "backends": backends}
    matrix |= {"compute": ["none"], "model": "none"}
    matrix |= {"workers": [0], "batch_size": [4], "image_size": 32, "passes": 2}
    scenario = "".join(f"{key} = {json.dumps(value)}\n" for key, value in matrix.items())
    (tmp_path / "a.toml").write_text(f'name = "a"\nquestion = "?"\n[[matrix]]\n{scenario}')
    done = cli("bench", "a.toml", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert cli("validate", "run").returncode == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    orders = {record["cell"]["backend"]: record["digests"]["order"] for record in records}
    assert orders["container"] == orders["lmdb+original"] != orders["container:stream"]
    assert len({record["store"]["samples_digest"] for record in records}) == 1


@pytest.mark.parametrize("kind", ["tar", pytest.param("TFRecord", marks=pytest.mark.full)])
def test_shards_are_measured_where_they_are_without_the_library_of_their_stream(
    kind: str, fresh_cli: Cli, tmp_path: Path
) -> None:
    hidden = "import sys\nsys.modules |= dict.fromkeys(('webdataset', 'google_crc32c'))\n"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(hidden)
    text = WRITERS[kind](tmp_path / "data", SAMPLES * 4)
    done = fresh_cli("run", "--dataset", text, "--dry-run", env={"PYTHONPATH": str(tmp_path / "hidden")})
    assert done.returncode == 0, done.stderr
    assert "/container/warm/" in done.stdout.splitlines()[0]


def with_links(path: Path) -> Path:
    """Write a tar file whose last sample is a link to the first one, and a second archive behind it."""
    with tarfile.open(
        write_tar(path, {f"{at}.jpg": SAMPLES[at % COUNT][0] for at in range(MANY)}), "a"
    ) as file:
        info = tarfile.TarInfo("x.jpg")
        info.type, info.linkname = tarfile.LNKTYPE, "0.jpg"
        file.addfile(info)
    other = write_tar(path.with_name("other"), {"0.jpg": SAMPLES[1][0]})
    path.write_bytes(path.read_bytes() + other.read_bytes())
    return path


def test_samples_that_webdataset_passes_over_are_read_where_they_are(cli: Cli, tmp_path: Path) -> None:
    spec = DatasetSpec(name=f"container:{with_links(tmp_path / 'a.tar')}")
    store = ensure_store(spec, parse_backend("container"), tmp_path / "stores")
    with open_reader(store.path) as reader:
        assert served(reader, [MANY + 1, MANY, 2]) == [(SAMPLES[at][0], 0) for at in (1, 0, 2)]
    with pytest.raises(UsageError, match="no links in tar"):
        open_reader(store.path, "stream")
    done = cli("run", "--dataset", "a.tar", "--dry-run")
    assert "/container/warm/" in done.stdout.splitlines()[0], done.stderr
