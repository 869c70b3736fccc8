"""What the scenarios of emulated nodes have in common: jobs whose limits, endings and bytes are looked at, and nothing else."""


def scenario_text(
    name: str, question: str, matrices: str, *, replicates: int = 1, timeout_s: int = 120, stall_s: int = 60
) -> str:
    """Return the text of a scenario without test accuracy, ceilings and a check of all pixels.

    Parameters
    ----------
    matrices
        Its tables ``[[matrix]]``.
    timeout_s, stall_s
        Seconds that a replicate may take, and that a rank may make no progress.
    """
    return f"""
name = "{name}"
question = "{question}"
replicates = {replicates}
test_limit = 0
ceilings = false
timeout_s = {timeout_s}
stall_s = {stall_s}

{matrices.strip()}
"""
