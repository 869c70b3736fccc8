"""A recorded loop, replayed with other costs or another queue."""

from collections.abc import Sequence


def replayed_s(
    makes_s: Sequence[float],
    loops_s: Sequence[float],
    *,
    workers: int,
    ahead: int,
    receive_s: float = 0.0,
    pin_s: float = 0.0,
) -> float:
    """Return the seconds per step of a loop that goes on for long; step i loops so long, and its batch takes so long to make.

    As in torch: worker i % workers makes batch i, which is asked for when the loop takes the one that is `ahead` before
    it, and batches are given in order. Without workers, the loop makes them.
    """
    count = len(makes_s)
    if not workers:
        return (sum(makes_s) + sum(loops_s)) / count + receive_s + pin_s
    now = pinned = lap_s = 0.0
    made = [0.0] * (2 * count)
    given = [0.0] * (2 * count)
    for step in range(2 * count):
        # The queue is empty before the first lap, and as usual before the second.
        if step == count:
            lap_s = now
        asked = given[step - ahead] if step >= ahead else 0.0
        free = made[step - workers] if step >= workers else 0.0
        made[step] = max(asked, free) + makes_s[step % count]
        pinned = max(pinned, made[step]) + pin_s
        given[step] = now = max(now, pinned) + receive_s
        now += loops_s[step % count]
    return (now - lap_s) / count
