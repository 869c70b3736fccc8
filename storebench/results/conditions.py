"""What the machine did while a replicate ran: load, other processes, steal, throttling; and when it counts as disturbed."""

from dataclasses import dataclass

OTHERS_MOST_FRAC = 0.20
"""Share of its cores that other work may take while a replicate runs; above it, the replicate was disturbed.

On 2 cores this is four tenths of one core. The threads of the kernel that read and reclaim pages on behalf of a cell count
as other work too, and stay below it.
"""

MOST_ATTEMPTS = 2
"""A disturbed replicate is repeated once. The second attempt counts, whatever the machine did."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What else the machine did while the process of a replicate ran, from the start of its job to its end.

    A figure that could not be read is null.

    Attributes
    ----------
    wall_s
        Seconds from the start of the process to its end, preparation and proof included.
    cores
        CPUs that the process may use. The CPU seconds below are of these alone.
    load
        Load average of the last minute when it started.
    others_cpu_s
        CPU seconds of processes and kernel threads that belong neither to the replicate nor to the runner.
    steal_s
        CPU seconds that a hypervisor gave to other machines.
    throttled_s
        Seconds for which a CPU quota stopped the processes of this control group, summed over CPUs.
    clock_throttles
        How often CPUs lowered their clock because of heat or power.
    disturbed
        Why the replicate counts as disturbed; "" if it does not.
    attempt
        1, or 2 if the first attempt was disturbed and the scenario repeats such replicates. The record of the first
        is then in `superseded.jsonl`.
    """

    wall_s: float
    cores: int
    load: float | None = None
    others_cpu_s: float | None = None
    steal_s: float | None = None
    throttled_s: float | None = None
    clock_throttles: int | None = None
    disturbed: str = ""
    attempt: int = 1

    @property
    def others_frac(self) -> float | None:
        """Share of the cores that other processes and other machines took; None if it was not counted."""
        if self.others_cpu_s is None or self.wall_s <= 0 or self.cores < 1:
            return None
        return (self.others_cpu_s + (self.steal_s or 0.0)) / (self.wall_s * self.cores)

    @property
    def repeats(self) -> bool:
        """Whether the rule asks for another attempt."""
        return bool(self.disturbed) and self.attempt < MOST_ATTEMPTS


def disturbance(conditions: Conditions) -> str:
    """Return why a replicate counts as disturbed, or "": other work took more than `OTHERS_MOST_FRAC` of its cores."""
    share = conditions.others_frac
    if share is None or share <= OTHERS_MOST_FRAC:
        return ""
    return f"other work took {share:.0%} of the cores ({OTHERS_MOST_FRAC:.0%} is tolerated)"
