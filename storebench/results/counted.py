"""Counters of the kernel during an epoch, and the ceilings and yardsticks of its rates."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counters of the kernel for the training process and its workers over the steps of the epoch.

    A counter that could not be read is null; `reasons` says why, by name.

    Attributes
    ----------
    device_read_bytes
        Bytes that block devices delivered for these processes (/proc/PID/io read_bytes).
    block_device_read_bytes
        Bytes that the block device of the store delivered to all processes in the same time (/sys/block stat); in a job
        on several nodes, the sum over their devices.
    major_faults, minor_faults
        Page faults with I/O, and without.
    read_calls
        System calls that read (/proc/PID/io syscr).
    peak_rss_bytes
        Sum of the largest resident sets of the training process and of its workers.
    read_amplification
        `device_read_bytes` over payload bytes.
    """

    device_read_bytes: int | None = None
    block_device_read_bytes: int | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    read_calls: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    peak_rss_bytes: int | None = None
    read_amplification: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds in user and kernel mode; None if either is unknown."""
        if self.cpu_user_s is None or self.cpu_system_s is None:
            return None
        return self.cpu_user_s + self.cpu_system_s


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Ceilings and yardsticks, measured in the same run; null if not measured.

    A correct reader cannot exceed a ceiling. It can exceed a yardstick, which is one simple way to do the same work.

    Attributes
    ----------
    gather_samples_per_s
        A yardstick: numpy.take(..., out=) in its default mode, which copies each sample twice, from one array
        in memory, in the same process (`storebench.probes.rates`).
    copy_ceiling_samples_per_s
        The ceiling of one copying thread: the fastest way found to gather such samples, shuffled or in order as the cell
        reads them.
    copy_method
        Name of that way.
    memory_bytes_per_s
        `copy_ceiling_samples_per_s` in bytes per second.
    device_random_1_bytes_per_s, device_random_4_bytes_per_s, device_random_16_bytes_per_s, device_random_32_bytes_per_s
        Yardsticks: O_DIRECT reads of one payload's size at random offsets, with that many requests in flight
        (`storebench.probes.rates`). A reader that merges requests can exceed them.
    device_sequential_bytes_per_s
        A yardstick: O_DIRECT reads of 4 MiB in a row.
    device_best_bytes_per_s
        The device's ceiling: the highest of these rates.
    device_method
        How the requests were kept in flight, and the file that was read.
    """

    gather_samples_per_s: float | None = None
    copy_ceiling_samples_per_s: float | None = None
    copy_method: str = ""
    memory_bytes_per_s: float | None = None
    device_random_1_bytes_per_s: float | None = None
    device_random_4_bytes_per_s: float | None = None
    device_random_16_bytes_per_s: float | None = None
    device_random_32_bytes_per_s: float | None = None
    device_sequential_bytes_per_s: float | None = None
    device_best_bytes_per_s: float | None = None
    device_method: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
