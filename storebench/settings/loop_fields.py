"""The settings of the loop, one field with one row each; no other module lists them."""

from dataclasses import dataclass

from storebench.settings.setting import rows_of, setting
from storebench.settings.words import (
    LOCAL,
    REAL,
    CacheState,
    Compute,
    Fill,
    LoaderKind,
    Place,
    Share,
    Sync,
    TrainerData,
)

MOST_SEED = 2**63 - 1
MOST_WORKERS = 256
MOST_THREADS = 1024
MOST_RANKS = 1024
MOST_EPOCHS = 10_000
MOST_STEPS = 2**31 - 1
MOST_BATCH = 2**20

# The network of a loop that computes nothing.
NO_MODEL = "none"


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """The settings of the loop: how it loads and trains."""

    loader: LoaderKind = setting(
        default=LoaderKind.PROCESSES,
        meaning="How batches reach the loop: torch's DataLoader, threads, or a ring in shared memory.",
        axis=2,
        label="loader {}",
        told=False,
    )
    workers: int = setting(
        default=0,
        meaning="Producers beside the loop; 0 loads in the loop's own process.",
        axis=3,
        least=0,
        most=MOST_WORKERS,
        label="{} workers",
    )
    batch_size: int = setting(
        meaning="Samples per step. Default: Caffe's for the network.",
        axis=4,
        least=1,
        most=MOST_BATCH,
        derived=True,
        label="batch {}",
    )
    model: str = setting(
        meaning="The network: lenet, cifar10_quick, caffenet, resnet50, tiny, or none if nothing is computed. "
        "Default: the paper's for the dataset, `caffenet` for class folders.",
        derived=True,
        labels={NO_MODEL: ""},
    )
    compute: Compute = setting(
        default=REAL,
        meaning="What a step computes: real (the network), none, or emulated:MILLISECONDS (a pause).",
        axis=0,
        labels={"real": ""},
    )
    device: str = setting(
        default="cpu",
        meaning='Where the network runs: "cpu", "cuda" or "cuda:NUMBER".',
        labels={"cpu": "on the CPU"},
    )
    seed: int = setting(
        default=0,
        meaning="Seed of the order, the augmentation and the network.",
        axis=13,
        least=0,
        most=MOST_SEED,
        label="seed {}",
        told=False,
    )
    shuffle: bool = setting(
        default=True,
        meaning="Draw the order of the samples anew for each epoch.",
        labels={True: "shuffled", False: "in order"},
        told=False,
        option=False,
    )
    epochs: int = setting(
        default=1,
        meaning='Epochs per process. Default: 1; 2 with `cache = "limited"` or `store_fill = "first-epoch"`.',
        least=1,
        most=MOST_EPOCHS,
        derived=True,
        label="{} epochs",
        told=False,
    )
    max_steps: int | None = setting(
        default=None,
        meaning="Stop each epoch after this many steps. Default: the whole epoch.",
        least=1,
        most=MOST_STEPS,
        label="{} steps at most",
        told=False,
    )
    warmup_steps: int = setting(
        default=0,
        meaning="First steps of each epoch that count in no rate.",
        least=0,
        most=MOST_STEPS,
        label="{} warm-up steps",
        told=False,
        option=False,
    )
    cache: CacheState = setting(
        default=CacheState.ANY,
        meaning="State of the page cache: at the start of each epoch, or `limited` to `memory` throughout.",
        axis=1,
    )
    threads: int = setting(
        default=1,
        meaning="Threads per process that compute: torch's, and those of a reader that decodes in several.",
        least=1,
        most=MOST_THREADS,
        label="{} threads",
        told=False,
    )
    memory_bytes: int | None = setting(
        default=None,
        meaning='Limit of the page cache, such as 400 MiB; with `cache = "limited"` only. Default: none.',
        key="memory",
        text=True,
        metavar="SIZE",
        told=False,
    )
    readahead_kib: int | None = setting(
        default=None,
        meaning="Put the store on a device with this read-ahead in KiB (root). Default: the store's own device.",
        key="readahead",
        axis=5,
        least=0,
        most=MOST_STEPS,
        metavar="KIB",
        label="read-ahead {} KiB",
    )
    tier: str | None = setting(
        default=None,
        meaning="Emulate slower storage (root): gp3, gp3-max, io2, azure-hdd, azure-ssd, or limits of MB/s and "
        "requests/s such as `100:2000`, `100` or `:2000`. "
        "Default: the device as it is.",
        axis=14,
        metavar="TIER",
        label="storage EMULATED as {}",
    )
    passes: int | None = setting(
        default=None,
        meaning="How often an epoch serves every sample; not with `cold` or `limited`. Default: once.",
        least=1,
        most=MOST_EPOCHS,
        label="{} passes",
        told=False,
        option=False,
    )
    ranks: int = setting(
        default=1,
        meaning="Processes that train together, started by torchrun; each serves its own shard of every epoch.",
        axis=6,
        least=1,
        most=MOST_RANKS,
        label="{} ranks",
        labels={1: ""},
    )
    global_batch_size: int | None = setting(
        default=None,
        meaning="Samples per step of all ranks together, of which each serves an equal part; not with `batch_size`. "
        "Default: none, as `batch_size` is that of each rank.",
        least=2,
        most=MOST_BATCH,
        label="global batch {}",
    )
    pad: bool = setting(
        default=False,
        meaning="Repeat samples until all ranks have equally many, as `DistributedSampler` does.",
        labels={True: "padded", False: ""},
    )
    sync: Sync = setting(
        default=Sync.OVERLAPPED,
        meaning="When ranks add up their gradients: during the backward pass, after it, or never.",
        axis=7,
        labels={
            Sync.OVERLAPPED: "gradients overlapped",
            Sync.AFTER: "gradients after backward",
            Sync.NONE: "gradients not synchronised",
        },
    )
    share: Share = setting(
        default=Share.NONE,
        meaning="How the ranks of a job share reading: each rank reads its own samples, one rank per node reads for "
        "all ranks there, or each rank keeps a part of the samples in memory for all ranks.",
        axis=8,
        labels={Share.NONE: "", Share.NODE: "one reader per node", Share.STORE: "data store of the ranks"},
    )
    store_fill: Fill = setting(
        default=Fill.PRELOAD,
        meaning='When the ranks fill their data store: before or during the first epoch. Only with `share = "store"`.',
        axis=9,
        labels={Fill.PRELOAD: "", Fill.FIRST_EPOCH: "filled in the first epoch"},
    )
    store_memory_bytes: int | None = setting(
        default=None,
        meaning='Memory limit per node for the data store; a larger one is refused. Only with `share = "store"`. '
        "Default: the available memory.",
        key="store_memory",
        text=True,
        metavar="SIZE",
        told=False,
    )
    trainers: int = setting(
        default=1,
        meaning="Number of groups of ranks. Each group trains its own network with its own seed.",
        axis=10,
        least=1,
        most=MOST_RANKS,
        label="{} trainers",
        labels={1: ""},
    )
    trainer_data: TrainerData = setting(
        default=TrainerData.PARTITIONED,
        meaning="The samples of each of several trainers: a part that no other trainer has, or all.",
        axis=11,
        labels={TrainerData.PARTITIONED: "", TrainerData.REPLICATED: "all samples per trainer"},
    )
    tournament_steps: int = setting(
        default=0,
        meaning="Steps between two tournaments of the trainers; 0 (the control) for no tournament.",
        axis=12,
        least=0,
        most=MOST_STEPS,
        label="a tournament every {} steps",
        labels={0: "", 1: "a tournament after every step"},
    )

    place: Place = setting(
        default=LOCAL,
        meaning="Where the store is read: local, a folder, s3:http://HOST/BUCKET, or copy: and a folder or bucket to "
        "copy first. Credentials come from the environment.",
        axis=15,
        metavar="PLACE",
        labels={LOCAL: ""},
    )

    def __post_init__(self) -> None:
        for name, kind in _WORDS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))


# The row of every setting of the loop, in order.
SETTINGS = rows_of(LoopSettings)

# The rows of the settings that may be axes of a matrix, the slowest first.
AXES = tuple(sorted((row for row in SETTINGS if row.axis is not None), key=lambda row: row.axis or 0))

_WORDS = {row.name: row.kind for row in SETTINGS if issubclass(row.kind, str) and row.kind is not str}
