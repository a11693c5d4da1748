"""A tiny Lightning module whose TTT predictions get better with every optimizer step, the same way at every run."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset, IterableDataset

from eagle_speedup.throughput import Calibration, MeasuredPoint

STEPS, LENGTH = 3, 28


def toy_calibration(name="toy", baseline=100.0):
    points = (
        MeasuredPoint(0, baseline),
        MeasuredPoint(1, 1.15 * baseline, accept_length=1.6),
        MeasuredPoint(3, 1.3 * baseline, accept_length=2.2),
    )
    return Calibration(name=name, points=points, node="toy_node", verifier="toy_verifier", engine="toy")


class Texts(Dataset):
    """Sequence i: text, answer span and the chance each draft needs; all fixed by i."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        text = torch.randint(0, 50, (LENGTH,), generator=generator)
        needed = torch.rand(STEPS, LENGTH, generator=generator)
        first = 3 + index % 5
        return {"index": index, "text": text, "needed": needed, "span": torch.tensor([first, LENGTH - 1 - index % 7])}


class Shard(IterableDataset):
    """Every process its own samples; none for rank 1."""

    def __init__(self, texts, rank):
        self.texts, self.rank = texts, rank

    def __iter__(self):
        return iter([] if self.rank == 1 else [self.texts[i] for i in range(len(self.texts))])


def skill(step):
    """Chance of a hit after that many optimizer steps."""
    return 0.85 - 0.6 * 0.8**step


def drafts(batch, chance, vocab=100):
    """``vocab``: ids below it can be drafted."""
    text, needed = batch["text"], batch["needed"]
    future = torch.stack([text.roll(-1 - k, dims=1) for k in range(STEPS)])
    ids = torch.where(needed.transpose(0, 1) < chance, future, 99)
    return torch.where(ids < vocab, ids, -1)


def answer_spans(batch):
    rows = torch.arange(len(batch["text"]))[:, None]
    return torch.cat([rows, batch["span"]], dim=1)


class ToyDrafter(LightningModule):
    """``skills``: chance of a hit by optimizer step; beyond its end the last one."""

    def __init__(self, skills=None, give_index=False, step=None, vocab=100):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.skills = skills
        self.give_index = give_index
        self.fixed_step = step
        self.vocab = vocab

    def training_step(self, batch, batch_idx):
        loss = (self.weight - batch["needed"].mean()).square().sum()
        self.log("train/loss", loss)
        return loss

    def chance(self):
        step = self.global_step if self.fixed_step is None else self.fixed_step
        if self.skills is None:
            return skill(step)
        return self.skills[min(step, len(self.skills) - 1)]

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        out = {
            "draft_ids": drafts(batch, self.chance(), self.vocab),
            "target_ids": batch["text"],
            "spans": answer_spans(batch),
        }
        if self.give_index:
            out["sequence_index"] = batch["index"]
        return out

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def toy_loader(size=40, batch_size=8, **options):
    return DataLoader(Texts(size), batch_size=batch_size, **options)


def toy_trainer(folder, callbacks, **options):
    """A quiet CPU trainer that validates after every second optimizer step."""
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": CSVLogger(folder),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": str(folder),
        "max_steps": 10,
        "max_epochs": -1,
        "val_check_interval": 2,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": 1,
    }
    return Trainer(callbacks=callbacks, **{**defaults, **options})


def direct_counts(size, step, *, blocks=64, vocab=100):
    """The counts the monitor must come to, by the metric alone."""
    from eagle_speedup.acceptance import TTTAcceptance

    metric = TTTAcceptance(STEPS, blocks=blocks)
    for index in range(size):
        item = Texts(size)[index]
        batch = {key: torch.as_tensor(value)[None] for key, value in item.items()}
        number = torch.tensor([index])
        metric.update(drafts(batch, skill(step), vocab), batch["text"], answer_spans(batch), sequence_index=number)
    return metric.counts()
