"""Measure the ceilings of a cell: the rates of memory and of the device."""

import dataclasses

from storebench.codecs import any_size
from storebench.probes.machine import mount_of
from storebench.probes.page_count import PAGE_BYTES
from storebench.probes.rates import device_rates, gather_rate, once, opens
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
    folder, replicate = setup.job.run / PROBES_DIR, setup.job.replicate
    turn = replicate if replicate < GATHER_ROUNDS else replicate - replicate % GATHER_ROUNDS
    size, order = "x".join(map(str, shape)), "shuffled" if cell.shuffle else "in order"
    gather = once(
        folder / "gather.json",
        f"{size}, batch {cell.batch_size}, {manifest.count} samples {order}, replicate {turn}",
        Ceilings,
        lambda: gather_rate(
            shape, cell.batch_size, count=manifest.count, limit_s=GATHER_S, shuffle=cell.shuffle
        ),
    )
    # Nothing can be written on the mounted image, and small files would pass for a slow disk: read the disk below.
    image = setup.job.image
    files, scratch = setup.pages.data_files if image is None else [], (image or store).parent
    mount = mount_of(files[0] if files else scratch)
    request_bytes = max(1, manifest.payload_bytes // max(1, manifest.count))
    if not cell.place.folder or replicate >= GATHER_ROUNDS:  # a report compares folders round by round
        turn = replicate - replicate % DEVICE_ROUNDS
    device = once(
        folder / f"device{'' if cell.tier is None else f'-{cell.tier}'}.json",
        f"device {mount.device or mount.point}, {-(-request_bytes // PAGE_BYTES)} pages, replicate {turn}",
        Ceilings,
        lambda: device_rates(files, request_bytes, limit_s=DEVICE_S, scratch=scratch),
    )
    opened = once(
        folder / "opens.json",
        f"{store.parent.name}/{store.name} at {cell.place}, replicate {turn}",
        dict,
        lambda: opens(setup.pages.data_files),
    )
    return dataclasses.replace(
        device,
        gather_samples_per_s=gather.gather_samples_per_s,
        copy_ceiling_samples_per_s=gather.copy_ceiling_samples_per_s,
        copy_method=gather.copy_method,
        memory_bytes_per_s=gather.memory_bytes_per_s,
        single_requests=device.single_requests | opened,
    )
