"""The settings of the loop, one field with one row each; no other module lists them."""

from dataclasses import dataclass

from storebench.settings.rows import rows_of, setting
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

NO_MODEL = "none"
"""The network of a loop that computes nothing."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """The settings of the loop: how it loads and trains."""

    loader: LoaderKind = setting(
        default=LoaderKind.PROCESSES,
        meaning='How batches reach the loop: "processes" (the DataLoader), "threads", "ring".',
        asked="How batches reach the loop: torch's DataLoader, threads, or a ring in shared memory.",
        axis=2,
        option="processes, threads or ring.",
        label="loader {}",
    )
    workers: int = setting(
        default=0,
        meaning="Producers beside the loop; 0 loads in the loop's own process.",
        axis=3,
        least=0,
        most=MOST_WORKERS,
        option="Producers of batches beside the loop.",
        label="{} workers",
        labels={1: "1 worker"},
        always=True,
    )
    batch_size: int = setting(
        meaning="Samples per step; the last batch may be smaller.",
        asked="Samples per step. Default: Caffe's for the network.",
        axis=4,
        least=1,
        most=MOST_BATCH,
        derived=True,
        option="Samples per step. [default: Caffe's]",
        label="batch {}",
        always=True,
    )
    model: str = setting(
        meaning='Network, or "none" where nothing is computed.',
        asked="The network. Default: the paper's for the dataset, `caffenet` for class folders.",
        derived=True,
        option="lenet, cifar10_quick, caffenet, resnet50, tiny, or none if nothing is computed. [default: the paper's; none if no compute is real]",
        labels={NO_MODEL: ""},
        always=True,
    )
    compute: Compute = setting(
        default=REAL,
        meaning='"real", "none", or "emulated:MILLISECONDS" (a sleep that stands for an accelerator).',
        asked="What a step computes: the network, nothing, or a pause that stands for an accelerator.",
        axis=0,
        option="real, none (only drain the loader) or emulated:MILLISECONDS.",
        labels={"real": ""},
        always=True,
    )
    device: str = setting(
        default="cpu",
        meaning='Where the network runs: "cpu", "cuda" or "cuda:NUMBER".',
        option="cpu or cuda.",
        labels={"cpu": "on the CPU"},
        always=True,
    )
    seed: int = setting(
        default=0,
        meaning="Of the order, the augmentation and the network.",
        asked="Seed of the order, the augmentation and the network.",
        axis=13,
        least=0,
        most=MOST_SEED,
        option="Seed of order, augmentation and network.",
        label="seed {}",
    )
    shuffle: bool = setting(
        default=True,
        meaning="Whether the order is drawn anew for each epoch, from the seed.",
        asked="Draw the order of the samples anew for each epoch.",
        labels={True: "shuffled", False: "in order"},
    )
    epochs: int = setting(
        default=1,
        meaning="Epochs that one process runs.",
        asked='Epochs per process. Default: 1; 2 with `cache = "limited"` or `store_fill = "first-epoch"`.',
        least=1,
        most=MOST_EPOCHS,
        derived=True,
        option="Epochs in one process. [default: 1; 2 if the first one fills a limited page cache or a data store]",
        label="{} epochs",
    )
    max_steps: int | None = setting(
        default=None,
        meaning="Stop an epoch after so many steps; null runs it whole.",
        asked="Stop each epoch after this many steps. Default: the whole epoch.",
        least=1,
        most=MOST_STEPS,
        option="Most steps per epoch.",
        label="{} steps at most",
        labels={1: "1 step at most"},
    )
    warmup_steps: int = setting(
        default=0,
        meaning="First steps of an epoch that are recorded and flagged, and left out of rates on both sides. "
        "With workers the steps whose batches were begun during them are left out, too.",
        asked="First steps of each epoch that count in no rate.",
        least=0,
        most=MOST_STEPS,
        label="{} warm-up steps",
        labels={1: "1 warm-up step"},
    )
    cache: CacheState = setting(
        default=CacheState.ANY,
        meaning='Requested page-cache state: "cold" or "warm" at the start of each epoch, "limited" (the page '
        "cache may hold at most `memory_bytes`, so a store larger than memory is emulated), or "
        '"any".',
        asked="State of the page cache: at the start of each epoch, or `limited` to `memory` throughout.",
        axis=1,
        option="State of the page cache: cold, warm or any at the start of each epoch, or limited.",
        always=True,
    )
    threads: int = setting(
        default=1,
        meaning="Threads that compute in one process: torch's in the training process, and those of a reader "
        "that decodes in several, unless its own options name a number. Worker processes and loader threads "
        "always compute with one thread of torch.",
        asked="Threads per process that compute: torch's, and those of a reader that decodes in several.",
        least=1,
        most=MOST_THREADS,
        option="Threads that compute: torch's, and those of a reader that decodes in threads.",
        label="{} threads",
        labels={1: "1 thread"},
    )
    memory_bytes: int | None = setting(
        default=None,
        meaning='Limit of the page cache in a "limited" cell; null in every other.',
        asked='Limit of the page cache, with `cache = "limited"` only. Default: none.',
        key="memory",
        text=True,
        option="For limited: size limit of the page cache, such as '400 MiB' (uses a control group).",
        metavar="SIZE",
        added=True,
    )
    readahead_kib: int | None = setting(
        default=None,
        meaning="Read-ahead of the block device that the store is put on for this cell, in KiB; null leaves "
        "the store where it is, with the machine's own setting.",
        asked="Put the store on a separate device with this read-ahead. Default: the store's own device.",
        key="readahead",
        axis=5,
        least=0,
        most=MOST_STEPS,
        option="Read the store from its own loop device with this read-ahead, in KiB (root).",
        metavar="KIB",
        label="read-ahead {} KiB",
        always=True,
        added=True,
    )
    tier: str | None = setting(
        default=None,
        meaning="Emulated tier of storage: control groups limit the bytes and the requests per second that the cell reads from "
        "the store's device; null for none.",
        asked="Emulate slower storage: a named tier, or limits of MB/s and requests/s such as `100:2000`, `100` or `:2000`. "
        "Default: the device as it is.",
        axis=14,
        option="Emulate slower storage: gp3, gp3-max, io2, azure-hdd, azure-ssd, or MB/S:REQUESTS/S (root).",
        metavar="TIER",
        label="storage EMULATED as {}",
        always=True,
        added=True,
    )
    passes: int | None = setting(
        default=None,
        meaning="How often an epoch serves the samples, each time in a new order; null for once. It "
        "makes the timed part of a fast reader long enough to be compared.",
        asked="How often an epoch serves every sample; not with `cold` or `limited`. Default: once.",
        least=1,
        most=MOST_EPOCHS,
        label="{} passes",
        added=True,
    )
    ranks: int = setting(
        default=1,
        meaning="Processes that train together, each on its own shard of every epoch, started by torchrun; 1 is a "
        "plain process without torch.distributed.",
        asked="Processes that train together, started by torchrun; each serves its own shard of every epoch.",
        axis=6,
        least=1,
        most=MOST_RANKS,
        option="Processes that train together, started by torchrun.",
        label="{} ranks",
        labels={1: ""},
        always=True,
        added=True,
    )
    global_batch_size: int | None = setting(
        default=None,
        meaning="Samples per step of all ranks together, in jobs whose `batch_size` followed from it; null elsewhere.",
        asked="Samples per step of all ranks together, of which each serves an equal part; not with `batch_size`. "
        "Default: none, as `batch_size` is that of each rank.",
        least=2,
        most=MOST_BATCH,
        option="Samples per step of all ranks together, instead of --batch-size.",
        label="global batch {}",
        always=True,
        added=True,
    )
    pad: bool = setting(
        default=False,
        meaning="Whether samples are served twice where that gives all ranks equally many.",
        asked="Repeat samples until all ranks have equally many, as `DistributedSampler` does.",
        option="Repeat samples until all ranks have equally many, as DistributedSampler does.",
        labels={True: "padded", False: ""},
        always=True,
        added=True,
    )
    sync: Sync = setting(
        default=Sync.OVERLAPPED,
        meaning='When ranks add up their gradients: "overlapped" (in buckets during the backward pass), "after" '
        '(in one piece after it), or "none".',
        asked="When ranks add up their gradients: during the backward pass, after it, or never.",
        axis=7,
        option="When ranks add up their gradients: overlapped, after or none.",
        labels={
            Sync.OVERLAPPED: "gradients overlapped",
            Sync.AFTER: "gradients after backward",
            Sync.NONE: "gradients not synchronised",
        },
        always=True,
        added=True,
    )
    share: Share = setting(
        default=Share.NONE,
        meaning='How the ranks of a job share reading: "none" (each rank reads its own samples), "node" (one rank per node reads '
        'for all ranks there), or "store" (each rank keeps a part of the samples in memory for all ranks).',
        asked="How the ranks of a job share reading: each rank reads its own samples, one rank per node reads for all ranks "
        "there, or each rank keeps a part of the samples in memory for all ranks.",
        axis=8,
        option="How ranks share reading: none, node (one reader per node) or store (samples kept in memory).",
        labels={
            Share.NONE: "",
            Share.NODE: "one reader per node",
            Share.STORE: "data store of the ranks",
        },
        always=True,
        added=True,
    )
    store_fill: Fill = setting(
        default=Fill.PRELOAD,
        meaning='When the ranks of a job with `share = "store"` fill their data store: "preload" (before the first epoch, '
        'each rank reads a part) or "first-epoch" (each rank keeps the samples that it serves in the first epoch).',
        asked='When the ranks fill their data store: before or during the first epoch. Only with `share = "store"`.',
        axis=9,
        option="When the ranks fill their data store: preload or first-epoch; for --share store.",
        labels={Fill.PRELOAD: "", Fill.FIRST_EPOCH: "filled in the first epoch"},
        always=True,
        added=True,
    )
    store_memory_bytes: int | None = setting(
        default=None,
        meaning="Memory limit per node for the data store of a job; null means the available memory.",
        asked='Memory limit per node for the data store; a larger data store is refused. Only with `share = "store"`. '
        "Default: the available memory.",
        key="store_memory",
        text=True,
        option="Memory limit per node for the data store, such as '2 GiB'; for --share store.",
        metavar="SIZE",
        added=True,
    )
    trainers: int = setting(
        default=1,
        meaning="Groups of ranks of equal size. Each group trains its own network with its own seed. 1 trains one network on "
        "all ranks.",
        asked="Number of groups of ranks. Each group trains its own network with its own seed.",
        axis=10,
        least=1,
        most=MOST_RANKS,
        option="Groups of ranks; each group trains its own network.",
        label="{} trainers",
        labels={1: ""},
        always=True,
        added=True,
    )
    trainer_data: TrainerData = setting(
        default=TrainerData.PARTITIONED,
        meaning='The samples of each trainer: "partitioned" (a part of them) or "replicated" (all).',
        asked="The samples of each of several trainers: a part that no other trainer has, or all.",
        axis=11,
        option="The samples of each trainer: partitioned or replicated.",
        labels={TrainerData.PARTITIONED: "", TrainerData.REPLICATED: "all samples per trainer"},
        always=True,
        added=True,
    )
    tournament_steps: int = setting(
        default=0,
        meaning="Steps between two tournaments of the trainers; 0 for no tournament.",
        asked="Steps between two tournaments of the trainers; 0 (the control) for no tournament.",
        axis=12,
        least=0,
        most=MOST_STEPS,
        option="Steps between two tournaments of the trainers; 0 for none.",
        label="a tournament every {} steps",
        labels={0: "", 1: "a tournament after every step"},
        always=True,
        added=True,
    )

    place: Place = setting(
        default=LOCAL,
        meaning='Where the store is read: "local" (the folder of the stores), an absolute folder of another file system, '
        '"s3:URL" (an object store), or "copy:s3:URL" (copied to this disk by each replicate, then read there).',
        asked="Where the store is read; it is copied there first. Credentials come from the environment.",
        axis=15,
        option="Where the store is read: local, a folder, s3:http://HOST/BUCKET, or copy:s3:... to copy first.",
        metavar="PLACE",
        labels={LOCAL: ""},
        always=True,
        added=True,
    )

    def __post_init__(self) -> None:
        for name, kind in _WORDS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))


SETTINGS = rows_of(LoopSettings)
"""The row of every setting of the loop, in order."""

AXES = tuple(sorted((row for row in SETTINGS if row.axis is not None), key=lambda row: row.axis or 0))
"""The rows of the settings that may be axes of a matrix, the slowest first."""

_WORDS = {row.name: row.kind for row in SETTINGS if issubclass(row.kind, str) and row.kind is not str}
