"""Training scripts as others write them are profiled unedited: an ImageNet loop, Lightning, Transformers."""

import importlib.util
import json
from pathlib import Path

import pytest

from storebench.profiling.profile_report import Bound
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

LIGHTNING = """
import pytorch_lightning

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = pytorch_lightning.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Module(), DataLoader(data, batch_size=8, shuffle=True, num_workers=2))
"""

TRANSFORMERS = """
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def forward(self, pixel_values, labels):
        logits = network(pixel_values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
    network = network

def collate(samples):
    pixels, labels = zip(*samples)
    return {"pixel_values": torch.stack(pixels), "labels": torch.tensor(labels)}

arguments = TrainingArguments(
    output_dir="out", num_train_epochs=3, per_device_train_batch_size=8, dataloader_num_workers=2,
    report_to=[], save_strategy="no", use_cpu=True, remove_unused_columns=False, disable_tqdm=True,
)
Trainer(model=Model(), args=arguments, train_dataset=data, data_collator=collate).train()
"""

SCRIPTS = {
    "imagenet": ("torch", IMAGENET),
    "lightning": ("pytorch_lightning", LIGHTNING),
    "transformers": ("accelerate", TRANSFORMERS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_training_script_is_profiled_unedited(name: str, tmp_path: Path, data_root: Path) -> None:
    library, text = SCRIPTS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (tmp_path / "train.py").write_text(DATA + text)
    done = profile("--out", "out", "train.py", str(data_root / "imagenet" / "train"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert (report["workers"], report["epochs"]) == (2, 3)
    assert report["steps"] >= 72  # Lightning asks for no batch after the last, which would end its step
    if report["shares"]["without a core"] < 0.2:  # else other programs are part of what was measured
        assert report["bound"] in {Bound.TRANSFORM, Bound.FEW_WORKERS, Bound.STARTUP}, report["text"]
        assert report["gain"] > 1.3
    assert set(report["parts_s"]) >= {"dataset", "collate", "pickling", "receiving"}
    assert len(report["text"].splitlines()) <= 12
