"""Attacks on a scenario: each asks for a comparison that would not be one, and is refused before anything is built."""

from pathlib import Path

import pytest

from storebench.errors import StorebenchError
from storebench.run.scenario import load_scenario

MATRIX = """
name = "attack"
{top}
[[matrix]]
dataset = "cifar10"
limit = 256
synthetic = true
backends = {backends}
{keys}
"""

ATTACKS: dict[str, tuple[str, str, str, str]] = {
    # name: (keys of the scenario, backends, keys of the matrix, a word of the refusal)
    "a key that is misspelt, so that its default would be measured": ("", '["lmdb"]', "wormup_steps = 2", "warmup_steps"),
    "a cache state that does not exist": ("", '["lmdb"]', 'cache = "lukewarm"', "cache"),
    "every step a warm-up step": ("", '["lmdb"]', "max_steps = 4\nwarmup_steps = 4", "warmup_steps"),
    "a format that does not exist": ("", '["lmbd"]', "", "lmdb"),
    "a codec that does not exist": ("", '["lmdb+tga"]', "", "tga"),
    "a reader that the format does not have": ("", '["png:direct"]', "", "direct"),
    "a negative number of steps": ("", '["lmdb"]', "max_steps = -1", "max_steps"),
    "no replicate": ("replicates = 0", '["lmdb"]', "", "replicates"),
    "an accelerator that computes for a negative time": ("", '["lmdb"]', 'compute = "emulated:-5"', "emulated"),
    "an accelerator that computes for no finite time": ("", '["lmdb"]', 'compute = "emulated:nan"', "emulated"),
    "training without a network": ("", '["lmdb"]', 'model = "none"\ncompute = "real"', "model"),
    "a network that does not exist": ("", '["lmdb"]', 'model = "resnet5"', "resnet50"),
    "a loader that does not exist": ("", '["lmdb"]', 'loader = "magic"', "loader"),
    "a device that does not exist": ("", '["lmdb"]', 'device = "tpu"', "device"),
    "a limited cache without a limit": ("", '["lmdb"]', 'cache = "limited"', "memory"),
    "a limit that no cell has": ("", '["lmdb"]', 'cache = "warm"\nmemory = "64 MiB"', "memory"),
    "a limit that is no size": ("", '["lmdb"]', 'cache = "limited"\nmemory = "much"', "memory"),
    "arrays in memory that do not fit in memory": (
        "", '["memory:python"]', 'cache = "limited"\nmemory = "64 MiB"', "memory",
    ),
    "a read-ahead below zero": ("", '["lmdb"]', "readahead = -1", "readahead"),
    "workers below zero": ("", '["lmdb"]', "workers = -1", "workers"),
    "text where a number belongs": ("", '["lmdb"]', 'batch_size = "64"', "batch_size"),
    "true where a number belongs": ("", '["lmdb"]', "epochs = true", "epochs"),
    "a name that leaves the folder": ('question = "?"', '["lmdb"]', "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_a_scenario_that_would_compare_nothing_is_refused(tmp_path: Path, name: str) -> None:
    top, backends, keys, word = ATTACKS[name]
    text = MATRIX.format(top=top, backends=backends, keys=keys)
    if not word:
        text = text.replace('"attack"', '"../attack"')
    path = tmp_path / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StorebenchError) as caught:
        load_scenario(path)
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value)
    assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
