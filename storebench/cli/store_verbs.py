"""Verbs of stores: convert, verify and inspect."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.arguments import (
    DatasetOption,
    JsonOption,
    LimitOption,
    ListOption,
    SizeOption,
    SkipUnreadableOption,
    SplitOption,
    SyntheticOption,
    loop_values,
)
from storebench.cli.output import (
    dataset_named,
    exit_codes,
    progress,
    put,
    put_json,
    say,
    stores_dir,
    write_out,
    writes_into,
)
from storebench.cli.results import drawn, listed
from storebench.errors import UsageError
from storebench.settings.words import Split

if TYPE_CHECKING:
    from storebench.analysis.table import Table
    from storebench.stores.find import Store
    from storebench.stores.inspection import Inspection, Reads


def convert(
    backends: Annotated[
        list[str],
        typer.Argument(metavar="BACKEND...", help="FORMAT[+CODEC], such as png, hdf5 or lmdb+jpeg."),
    ],
    dataset: DatasetOption = None,
    listed: ListOption = None,
    split: SplitOption = "train",
    size: SizeOption = None,
    limit: LimitOption = None,
    image_size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the square images, for folders and ImageNet. [default: 256]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of derived and synthetic samples.")] = 0,
    synthetic: SyntheticOption = None,
    skip_unreadable: SkipUnreadableOption = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all stores. [default: STOREBENCH_STORES or ./stores]")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Processes that encode; threads for original. [default: chosen by a short trial]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing store or folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a dataset into stores, and read every sample back.

    There is one store per BACKEND. An existing store of these samples is left unchanged.
    """
    with exit_codes():
        from storebench.datasets import open_dataset
        from storebench.datasets.base import DatasetSpec
        from storebench.datasets.listing import listings_in
        from storebench.formats.registry import parse_backend, store_name_of
        from storebench.stores.convert import BuildOptions, Replace
        from storebench.stores.convert import convert as convert_dataset

        writes_into(out or stores_dir())
        parsed = [parse_backend(name) for name in backends]
        # Several backends may read one store (memory:python, memory:native).
        wanted = list({store_name_of(backend): backend for backend in parsed}.values())
        options = BuildOptions(
            processes=processes, replace=Replace.YES if force else Replace.NEVER, progress=progress, say=say
        )
        spec = DatasetSpec(
            name=dataset_named(dataset, listed),
            split=Split.of(split),
            size=size,
            limit=limit,
            seed=seed,
            synthetic=synthetic,
            image_size=image_size,
            skip_unreadable=skip_unreadable,
        )
        place = out or stores_dir()
        opened = open_dataset(spec, listings=listings_in(place), progress=progress)
        stores = (convert_dataset(opened, spec, backend, place, options=options) for backend in wanted)
        facts = []
        for store in stores:
            facts.append(_facts(store))
            if not as_json:
                put(_line(store))
        if as_json:
            put_json(facts)


_PRINTED = (
    *("count", "format", "codec", "lossless", "psnr_db", "payload_bytes", "file_bytes", "bytes_on_disk"),
    *("build_s", "samples_digest"),
)


def _facts(store: "Store") -> dict[str, Any]:
    manifest = store.manifest
    return {
        "path": str(store.path),
        "built": store.built,
        "dataset": manifest.dataset.name,
        "split": manifest.dataset.split,
        "origin": str(manifest.dataset.provenance.origin),
        "derived_frac": manifest.dataset.provenance.derived_frac,
        "skipped_files": manifest.dataset.provenance.skipped_files,
        "image_shape": list(manifest.dataset.image_shape),
        **{name: getattr(manifest, name) for name in _PRINTED},
    }


def _line(store: "Store") -> str:
    from storebench.codecs import any_size

    manifest = store.manifest
    info = manifest.dataset
    shape = "x".join(map(str, info.image_shape))
    held = "image files as they are" if any_size(manifest.codec) else f"samples of {shape}"
    loss = "" if manifest.psnr_db is None else f"PSNR {manifest.psnr_db:.1f} dB, "
    built = f"built in {manifest.build_s:.1f} s" if store.built else "there already"
    return (
        f"{store.path}: {manifest.count:,} {info.provenance.origin} {held}, "
        f"{manifest.bytes_on_disk / 2**20:,.1f} MiB on disk for {manifest.payload_bytes / 2**20:,.1f} MiB, "
        f"{loss}{built}, digest {manifest.samples_digest}"
    )


def verify(
    store: Annotated[Path, typer.Argument(help="The store's folder, as 'convert' printed it.")],
    reader: Annotated[
        str | None, typer.Option(help="Reader, such as get. [default: the format's default]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a store's samples back, and compare their digests.

    Every sample is decoded, and its digest is compared with the one from writing. The first sample that differs is
    named; the exit code is then 5.
    """
    with exit_codes():
        from storebench.stores.verify import verify_store

        verified = verify_store(store, reader, progress=progress)
        if as_json:
            facts = {
                "path": str(verified.store),
                "backend": verified.backend,
                "count": verified.count,
                "samples_digest": verified.manifest.samples_digest,
                "seconds": verified.seconds,
            }
            put_json(facts)
        else:
            put(
                f"{verified.store}: {verified.count:,} samples read back through {verified.backend} in "
                f"{verified.seconds:.1f} s, all as written, digest {verified.manifest.samples_digest}"
            )


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="LMDB, HDF5, Parquet, Arrow, tar, TFRecord or MDS: a file, folder or pattern; the first file is read.",
        ),
    ],
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            metavar="N",
            help="Random samples to read, cold and warm; 0 reads none, and evicts nothing.",
        ),
    ] = 200,
    place: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE[,PLACE...]",
            help="Also compare reads here with those of this file in other folders; copy:FOLDER copies it there first.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report what random reads of a file cost.

    Samples are those that run and convert take from it. Random ones are read through the format's own library, first
    with the file evicted from the page cache, then from it. Other settings of its readers and writers are tried on the
    file or on a copy of its first samples. The last line says what a sample costs. Nothing is written to the file.
    """
    with exit_codes():
        from storebench.analysis.beside import file_tables
        from storebench.record.manifest import MANIFEST_NAME
        from storebench.stores.inspection import inspect as inspected
        from storebench.stores.inspection_places import placed, side_by_side

        if Path(path, MANIFEST_NAME).is_file():
            raise UsageError(
                "a store of storebench", where=str(path), hint="Measure it with 'storebench run'."
            )
        if place is not None and not samples:
            raise UsageError("--place compares reads: leave out --samples 0")
        tables: list[Table] = []
        left_out: list[str] = []
        with placed(path, loop_values({"place": place})["place"] if place is not None else ()) as containers:
            inspection = inspected(path, samples=samples)
            if place and not inspection.unread:
                measured, left_out = side_by_side(containers, inspection, samples)
                tables = file_tables(inspection.kind, measured)
        if as_json:
            facts = {**dataclasses.asdict(inspection), "path": str(inspection.path)}
            put_json(facts | {"places": listed(tables), "left_out": left_out})
            return
        put(*_lines(inspection))
        if inspection.trials:
            write_out(drawn(_trials(inspection)))
        if inspection.sample_bytes is None:
            put(f"a random sample here: not measured ({inspection.unread or 'no samples were to be read'})")
        else:
            costs = f"cold {_cost(inspection.cold)}, warm {_cost(inspection.warm)}"
            put(f"a random sample here: {inspection.sample_bytes[1]:,} bytes; {costs}")
        for table in tables:
            write_out(f"\n{drawn(table)}")
        put(*(tables[-1].notes if tables else ()), *left_out)


def _trials(inspection: "Inspection") -> "Table":
    """Return a row per setting: how many times as fast as the file is stored, cold and warm."""
    from storebench.analysis.labels import number
    from storebench.analysis.table import Table

    def shown(factor: float | None) -> str:
        return "-" if factor is None else f"{number(factor, 2)}x"

    return Table(
        caption="Other settings, and how many times as fast",
        head=("setting", "now", "tried", "cold", "warm"),
        rows=tuple(
            (trial.setting, trial.now, trial.tried, shown(trial.cold), shown(trial.warm))
            for trial in inspection.trials
        ),
    )


def _lines(inspection: "Inspection") -> list[str]:
    frac = inspection.resident_frac
    cached = "residency cannot be counted here" if frac is None else f"{frac:.0%} in the page cache"
    content, sizes = f" ({inspection.content})" if inspection.content else "", ""
    if inspection.sample_bytes is not None:
        shortest, median, longest = inspection.sample_bytes
        spread = f"{shortest:,} to {longest:,} bytes, median {median:,}"
        sizes = f", {median:,} bytes each" if shortest == longest else f", {spread}"
    about = "" if inspection.exact else "about "
    return [
        f"{inspection.path}: {inspection.kind}, {inspection.file_bytes / 1e6:,.1f} MB, {cached}",
        f"  {about}{inspection.samples:,} samples{content}{sizes}; {inspection.layout}",
        *(f"  {line}" for line in (inspection.advice, *inspection.notes) if line),
    ]


def _cost(reads: "Reads | None") -> str:
    if reads is None or reads.median_s is None:
        return f"not measured ({reads.reason})" if reads else "not measured"
    read = f"{reads.read_bytes:,.0f} bytes read in " if reads.read_bytes else ""
    doubt = f" (not verified: {reads.reason})" if reads.reason else ""
    median_s = reads.median_s
    took = f"{median_s * 1e3:.3g} ms" if median_s >= 1e-3 else f"{median_s * 1e6:.3g} µs"
    return f"{read}{took}{doubt}"
