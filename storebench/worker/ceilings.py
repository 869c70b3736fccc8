"""Measure the ceilings of a cell: the rates of memory and of the device."""

from storebench.codecs import any_size
from storebench.probes.rates import device_rates_once, gather_rate_once, opens_once
from storebench.record.lines import PROBES_DIR
from storebench.record.schema import Ceilings
from storebench.settings.words import ComputeKind
from storebench.worker.setup import Setup

# Duration of the measurement of memory, for all cells of a round with the same batches.
GATHER_S = 0.5

# Memory is measured in each of the first rounds and in every fifth later one.
GATHER_ROUNDS = 5

# Duration of each measurement of the device, for all loader-only cells of a round.
DEVICE_S = 0.5

# The device is measured in the first round and in every twentieth later one: it takes as long as several cells.
DEVICE_ROUNDS = 20


def measure_ceilings(setup: Setup) -> Ceilings:
    """Return the ceilings of a cell that only loads; other cells have none."""
    cell, manifest, store = setup.cell, setup.manifest, setup.job.store
    if not setup.job.ceilings:
        return Ceilings()
    if cell.compute.kind is not ComputeKind.NONE or setup.traits.ready_made:
        return Ceilings()
    shape = manifest.dataset.image_shape
    if any_size(manifest.codec):
        shape = setup.augment.output_shape(shape)
    replicate = setup.job.replicate
    often = replicate < GATHER_ROUNDS
    gather = gather_rate_once(
        shape,
        cell.batch_size,
        count=manifest.count,
        kept=setup.job.run / PROBES_DIR / "gather.json",
        replicate=replicate if often else replicate - replicate % GATHER_ROUNDS,
        limit_s=GATHER_S,
        shuffle=cell.shuffle,
    )
    # Nothing can be written on the mounted image, and small files would pass for a slow disk: read the disk below.
    image = setup.job.image
    device = device_rates_once(
        setup.pages.data_files if image is None else [],
        max(1, manifest.payload_bytes // max(1, manifest.count)),
        kept=setup.job.run / PROBES_DIR / f"device{'' if cell.tier is None else f'-{cell.tier}'}.json",
        replicate=replicate - replicate % DEVICE_ROUNDS,
        limit_s=DEVICE_S,
        scratch=(store if image is None else image).parent,
    )
    opens = opens_once(
        setup.pages.data_files,
        kept=setup.job.run / PROBES_DIR / "opens.json",
        name=f"{store.parent.name}/{store.name} at {cell.place}, replicate {replicate - replicate % DEVICE_ROUNDS}",
        cold=setup.job.drop_caches,
    )
    rates = vars(device) | {"single_requests": device.single_requests | opens}
    return Ceilings(
        gather_samples_per_s=gather.samples_per_s,
        copy_ceiling_samples_per_s=gather.copy_ceiling_samples_per_s,
        copy_method=gather.copy_method,
        memory_bytes_per_s=gather.memory_bytes_per_s,
        **rates,
    )
