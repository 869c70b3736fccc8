"""A training script as others write it is profiled unedited, on photographs."""

import json
from pathlib import Path

import pytest

from storebench.settings.words import Limit
from tests.support.profiled import profile

DATA = """\
import random, sys, time
from pathlib import Path
import numpy as np, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class ImageFolder(Dataset):
    def __init__(self, root):
        self.classes = sorted(folder.name for folder in Path(root).iterdir())
        self.samples = [(path, self.classes.index(path.parent.name)) for path in sorted(Path(root).glob("*/*.JPEG"))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        side = random.randint(64, 96)
        image = image.crop((0, 0, side, side)).resize((32, 32), Image.BICUBIC)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return (pixels - 0.45) / 0.22, label

data = ImageFolder(sys.argv[1])
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, len(data.classes)))
"""

IMAGENET = """
def train_one_epoch(model, criterion, optimizer, loader):
    model.train()
    for image, target in loader:
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

loader = DataLoader(data, batch_size=8, sampler=torch.utils.data.RandomSampler(data), num_workers=2, pin_memory=True)
test_loader = DataLoader(torch.utils.data.Subset(data, range(40)), batch_size=16)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
for epoch in range(3):
    train_one_epoch(network, torch.nn.CrossEntropyLoss(label_smoothing=0.1), optimizer, loader)
    with torch.inference_mode():
        for image, target in test_loader:
            network(image).argmax(1)
"""


@pytest.mark.slow
def test_a_training_script_is_profiled_unedited(tmp_path: Path, data_root: Path) -> None:
    (tmp_path / "train.py").write_text(DATA + IMAGENET)
    done = profile("--out", "out", "train.py", str(data_root / "imagenet" / "train"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert (report["workers"], report["epochs"]) == (2, 3)
    assert report["steps"] >= 72
    if report["shares"]["without a core"] < 0.2:  # else other programs are part of what was measured
        assert report["bound"] in {Limit.TRANSFORM, Limit.WORKERS, Limit.STARTUP}, report["text"]
        assert report["gain"] > 1.3
    assert set(report["parts_s"]) >= {"dataset", "collate", "pickling", "receiving"}
    assert len(report["text"].splitlines()) <= 12
