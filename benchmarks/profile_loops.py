"""Is the verdict on ordinary training scripts right? ``python -m benchmarks.profile_loops``.

Each script runs under ``storebench profile`` twice: with samples that are there at once, so that the loop itself is the
limit, and with samples that take longer than the loop. Exit code 1 if a verdict is wrong.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from storebench.settings.words import Limit

SAMPLES = r"""
import itertools, queue, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
torch.set_num_threads(1)
is_slow = sys.argv[1] == "slow"
SAMPLE_S, STEP_S = (0.006, 0.004) if is_slow else (0.0002, 0.03)
class Images(Dataset):
    def __init__(self, count=240, sample_s=SAMPLE_S):
        self.count, self.sample_s = count, sample_s
    def __len__(self): return self.count
    def __getitem__(self, index):
        if index >= self.count: raise IndexError
        time.sleep(self.sample_s)
        return torch.full((3, 16, 16), float(index)), index % 10
class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        images = Images()
        for index in range(info.id if info else 0, 240, info.num_workers if info else 1):
            yield images[index]
def loader(workers=0, dataset=None, **options):
    return DataLoader(dataset or Images(), 4, num_workers=workers, **options)
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10))
optimizer = torch.optim.SGD(network.parameters(), 1e-3)
def step(batch, seconds=STEP_S):
    images, labels = batch
    loss = torch.nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(seconds)
    return loss
"""
THREAD = r"""
def ahead(batches):
    given = queue.Queue(4)
    def fill():
        for batch in batches: given.put(batch)
        given.put(None)
    threading.Thread(target=fill, daemon=True).start()
    return iter(given.get, None)
"""


class Script(NamedTuple):
    """A training script, and the packages that it needs."""

    text: str
    needs: str = ""


SCRIPTS = {
    "plain": Script("for batch in loader(): step(batch)"),
    "workers": Script("for batch in loader(1): step(batch)"),
    "persistent workers, 3 epochs": Script(
        "train = loader(1, persistent_workers=True)\nfor _ in range(3):\n    for batch in train: step(batch)"
    ),
    "a loader for each epoch": Script("for _ in range(3):\n    for batch in loader(): step(batch)"),
    "gradient accumulation": Script(
        "for place, batch in enumerate(loader()):\n"
        "    loss = torch.nn.functional.cross_entropy(network(batch[0]), batch[1]) / 4\n    loss.backward()\n"
        "    if place % 4 == 3:\n        optimizer.step(); optimizer.zero_grad(); time.sleep(4 * STEP_S)"
    ),
    "validation every 20 steps": Script(
        "val = loader(0, Images(20))\nfor place, batch in enumerate(loader()):\n    step(batch)\n"
        "    if place % 20 == 19:\n        with torch.no_grad():\n            for images, _ in val: network(images); time.sleep(STEP_S)"
    ),
    "checkpoints every 20 steps": Script(
        "import io\nfor place, batch in enumerate(loader()):\n    step(batch)\n"
        "    if place % 20 == 19: torch.save(network.state_dict(), io.BytesIO()); time.sleep(0.02)"
    ),
    "two loaders zipped": Script(
        "for one, two in zip(loader(), loader(0, Images(240, 0.0))): step(one); step(two, 0)"
    ),
    "two loaders in turn": Script(
        "for _ in range(2):\n    for batch in itertools.chain(loader(), loader(0, Images(120))): step(batch)"
    ),
    "endless iterator": Script(
        "train = loader(1)\nbatches = iter(train)\nfor _ in range(100):\n    try: batch = next(batches)\n"
        "    except StopIteration:\n        batches = iter(train); batch = next(batches)\n    step(batch)"
    ),
    "endless generator": Script(
        "def forever(train):\n    while True: yield from train\n"
        "for batch in itertools.islice(forever(loader()), 100): step(batch)"
    ),
    "one batch ahead": Script(
        "batches = iter(loader())\nbatch = next(batches, None)\nwhile batch is not None:\n"
        "    following = next(batches, None)\n    step(batch)\n    batch = following"
    ),
    "a thread drains": Script(THREAD + "for batch in ahead(loader()): step(batch)"),
    "a thread drains workers": Script(THREAD + "for batch in ahead(loader(1)): step(batch)"),
    "subclass with a thread": Script(
        THREAD + "class Loader(DataLoader):\n    def __iter__(self): return ahead(super().__iter__())\n"
        "for batch in Loader(Images(), 4): step(batch)"
    ),
    "prefetch_generator": Script(
        "from prefetch_generator import BackgroundGenerator\n"
        "for batch in BackgroundGenerator(loader(), 4): step(batch)",
        "prefetch_generator",
    ),
    "training in a thread": Script(
        "def train():\n    for batch in loader(): step(batch)\n"
        "thread = threading.Thread(target=train); thread.start(); thread.join()"
    ),
    "stream": Script("for batch in DataLoader(Stream(), 4): step(batch)"),
    "stream, worker": Script("for batch in DataLoader(Stream(), 4, num_workers=1): step(batch)"),
    "stream of batches": Script(
        "class Batches(IterableDataset):\n    def __iter__(self): return iter(DataLoader(Stream(), 4))\n"
        "for batch in DataLoader(Batches(), None): step(batch)"
    ),
    "storebench.Loader": Script(
        "import storebench\nstored = storebench.StoreDataset(sys.argv[2], transform=lambda image: "
        "time.sleep(SAMPLE_S) or image.float())\nnetwork = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10))\n"
        "optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1e-3)\n"
        "for batch in storebench.Loader(stored, 4, workers=1): step(batch)"
    ),
    "Accelerate": Script(
        "from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)\n"
        "network, optimizer, train = accelerator.prepare(network, optimizer, loader())\n"
        "for batch in train: step(batch)",
        "accelerate",
    ),
    "Lightning": Script(
        "import lightning\nclass Module(lightning.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(768, 10)\n"
        "    def training_step(self, batch, _):\n        time.sleep(STEP_S)\n"
        "        return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])\n"
        "    def validation_step(self, batch, _): pass\n"
        "    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 1e-3)\n"
        "trainer = lightning.Trainer(max_epochs=2, accelerator='cpu', logger=False, enable_checkpointing=False,\n"
        "    enable_progress_bar=False, enable_model_summary=False)\n"
        "trainer.fit(Module(), loader(), loader(0, Images(16)))",
        "lightning",
    ),
    "Transformers": Script(
        "import transformers\nclass Named(Images):\n"
        "    def __getitem__(self, index):\n        image, label = super().__getitem__(index)\n"
        "        return {'image': image, 'labels': label}\n"
        "class Module(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = torch.nn.Linear(768, 10)\n    def forward(self, image, labels):\n        time.sleep(STEP_S)\n"
        "        scores = self.layer(image.flatten(1))\n"
        "        return {'loss': torch.nn.functional.cross_entropy(scores, labels), 'logits': scores}\n"
        "arguments = transformers.TrainingArguments('unused', per_device_train_batch_size=4, num_train_epochs=1,\n"
        "    save_strategy='no', report_to=[], use_cpu=True, disable_tqdm=True)\n"
        "transformers.Trainer(Module(), arguments, train_dataset=Named()).train()",
        "transformers",
    ),
}
LOADING = (Limit.WAITING, Limit.WORKERS)
# Its inside is not seen.
OPAQUE = {"storebench.Loader": (Limit.LOADER,)}


def named(script: Script, speed: str, folder: Path) -> str:
    """Return what the profile of a script names."""
    path, out = folder / "train.py", folder / "out"
    path.write_text(SAMPLES + script.text)
    command = [
        sys.executable,
        "-m",
        "storebench",
        "profile",
        "--out",
        str(out),
        str(path),
        speed,
        str(folder / "cifar10-train-limit240-synthetic" / "lmdb+raw"),
    ]
    # Persistent workers are killed at the end, and leave their temporary files.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if done.returncode or not (out / "profile.json").exists():
        return f"failed: {done.stderr.strip().splitlines()[-1:]}"
    facts = json.loads((out / "profile.json").read_text())
    (out / "profile.json").unlink()
    return str(facts["bound"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of the names of scripts")
    only = parser.parse_args().only
    right = count = 0
    print(f"{'script':30} {'slow loop':26} slow samples")
    with TemporaryDirectory(dir=".") as place:
        folder = Path(place).resolve()
        convert = [sys.executable, "-m", "storebench", "convert", "--dataset", "cifar10", "--synthetic"]
        convert += ["--limit", "240", "--out", str(folder), "lmdb+raw"]
        for name, script in SCRIPTS.items():
            if only not in name:
                continue
            if script.needs and importlib.util.find_spec(script.needs) is None:
                print(f"{name:30} left out: {script.needs} is not installed")
                continue
            if name == "storebench.Loader":
                subprocess.run(convert, check=True, capture_output=True)
            loops = [named(script, speed, folder) for speed in ("fast", "slow")]
            goals = (Limit.COMPUTE,), OPAQUE.get(name, LOADING)
            hits = [bound in goal for bound, goal in zip(loops, goals, strict=True)]
            right, count = right + sum(hits), count + len(hits)
            print(f"{name:30} {loops[0]:26} {loops[1]}{'' if all(hits) else '  WRONG'}", flush=True)
    print(f"right: {right} of {count} verdicts")
    sys.exit(int(right < count))


if __name__ == "__main__":
    main()
