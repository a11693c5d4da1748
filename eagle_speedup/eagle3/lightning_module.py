"""The drafter's training as a LightningModule, with what the speedup callbacks need from `validation_step`."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor

from eagle_speedup.errors import InputError

from .data import ttt_inputs
from .drafter import Eagle3Drafter
from .ttt import TTTStep, ttt, ttt_draft_ids

__all__ = ["Eagle3Module", "TrainingConfig", "ttt_loss"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; the defaults are for the demo's model (see `recipe`)."""

    ttt_steps: int = 5
    """TTT steps in training."""
    validation_ttt_steps: int = 5
    """TTT steps in validation; may exceed those of training, and makes every depth up to it exact."""
    keep_missed: float = 0.1
    """Share of the anchors that go on to the next step after a wrong draft, see `ttt`."""
    total_steps: int = 1000
    """Optimiser steps of the schedule."""
    learning_rate: float = 1.5e-3
    warmup_steps: int = 20
    final_lr_ratio: float = 0.05
    """Learning rate at the end of the cosine, relative to its peak."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    ema_decay: float = 0.99
    """Decay of the averaged weights, which are what is validated and served; 0 for none."""
    float16_grid: bool = True
    """Round the served weights to the float16 grid, see `Eagle3Drafter.round_to_float16_grid_`."""
    autocast: str = "float32"
    """Arithmetic of training: "float32", or "bfloat16" where that is faster (`fastest_training_dtype`)."""


class Eagle3Module(L.LightningModule):
    """Trains an `Eagle3Drafter` on batches of `eagle3.data.collate`.

    `validation_step` returns the drafted ids of the weights that would be served: averaged, and on the float16 grid.

    Args:
        drafter: what to train.
        config: how.
    """

    def __init__(self, drafter: Eagle3Drafter, config: TrainingConfig | None = None) -> None:
        super().__init__()
        self.drafter = drafter
        self.config = config or TrainingConfig()
        if self.config.autocast not in ("float32", "bfloat16"):
            raise InputError("autocast", self.config.autocast, "must be float32 or bfloat16")
        self.averaged = _copy(drafter)
        # In a list, so that it is no submodule: checkpoints are written while it exists, and must not hold it.
        self._served: list[Eagle3Drafter] = []

    def served_drafter(self) -> Eagle3Drafter:
        """A copy of the drafter as it would be served now: pass it to `DraftEngine`."""
        served = _copy(self.averaged if self.config.ema_decay else self.drafter)
        return served.round_to_float16_grid_() if self.config.float16_grid else served

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """TTT loss of one batch."""
        c = self.config
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.autocast == "bfloat16"):
            steps = ttt(self.drafter, ttt_inputs(batch), c.ttt_steps, keep_missed=c.keep_missed)
            loss = ttt_loss(steps, batch, self.drafter)
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=False)
        return loss

    def on_validation_start(self) -> None:
        """Fix the weights to validate."""
        self._served = [self.served_drafter()]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Drafted ids [K, B, T] of every anchor, targets [B, T], spans [S, 3] and sequence_index [B]."""
        drafter = self._served[0] if self._served else self.served_drafter()
        drafts = ttt_draft_ids(drafter, ttt_inputs(batch), self.config.validation_ttt_steps)
        return {
            "draft_ids": drafts,
            "target_ids": batch["ids"],
            "spans": batch["spans"],
            "sequence_index": batch["sequence_index"],
        }

    def on_validation_end(self) -> None:
        """Drop the copy."""
        self._served = []

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the averaged weights."""
        if not self.config.ema_decay:
            return
        # A short average at first, or the initial weights would linger.
        decay = min(self.config.ema_decay, (1 + self.global_step) / (10 + self.global_step))
        torch._foreach_lerp_(
            list(self.averaged.parameters()), [p.detach() for p in self.drafter.parameters()], 1 - decay
        )

    def configure_optimizers(self) -> Any:
        """AdamW, warm-up and cosine by optimiser steps."""
        c = self.config
        fused = self.device.type in ("cpu", "cuda")
        optimizer = torch.optim.AdamW(
            self.drafter.parameters(), lr=c.learning_rate, betas=c.betas, weight_decay=c.weight_decay, fused=fused
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._lr_ratio)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip by norm, the Trainer's own setting first."""
        limit = gradient_clip_val or self.config.max_grad_norm
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), limit, foreach=True)

    def _lr_ratio(self, step: int) -> float:
        c = self.config
        if step < c.warmup_steps:
            return (step + 1) / c.warmup_steps
        progress = min(1.0, (step - c.warmup_steps) / max(1, c.total_steps - c.warmup_steps))
        return c.final_lr_ratio + (1 - c.final_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


def _copy(drafter: Eagle3Drafter) -> Eagle3Drafter:
    """A frozen copy that shares what never changes."""
    shared = {id(buffer): buffer for buffer in drafter.buffers()}
    return copy.deepcopy(drafter, shared).requires_grad_(False)


def ttt_loss(steps: Any, batch: dict[str, Tensor], drafter: Eagle3Drafter) -> Tensor:
    """Cross-entropy of all steps, summed, a step-0 anchor.

    Soft targets (the verifier's probabilities of the draft vocabulary) where the batch has them, else the tokens of
    the data. What the verifier gives to tokens outside the draft vocabulary is left out of the loss, never of the
    metric.
    """
    soft = _SoftTargets(batch) if "soft_ids" in batch else None
    total, anchors = torch.zeros((), device=batch["ids"].device), 0
    for step in steps:
        anchors = anchors or max(len(step.row), 1)
        log_q = step.logits.float().log_softmax(-1)
        total = total + (soft.loss(step, log_q) if soft else _hard_loss(step, log_q, batch["ids"], drafter))
    return total / max(anchors, 1)


def _hard_loss(step: TTTStep, log_q: Tensor, ids: Tensor, drafter: Eagle3Drafter) -> Tensor:
    target = drafter.t2d[ids[step.row, step.anchor + 1 + step.step]]
    return F.nll_loss(log_q, target, ignore_index=-1, reduction="sum")


class _SoftTargets:
    """Finds the soft target of (row, position) in the batch's flat list, which holds positions P+1..E of every span."""

    def __init__(self, batch: dict[str, Tensor]) -> None:
        self._ids, self._probs = batch["soft_ids"], batch["soft_probs"]
        self._where = torch.full_like(batch["ids"], -1)
        begin = 0
        for row, first, last in batch["spans"].tolist():
            self._where[row, first + 1 : last + 1] = torch.arange(
                begin, begin + last - first, device=self._where.device
            )
            begin += last - first

    def loss(self, step: TTTStep, log_q: Tensor) -> Tensor:
        where = self._where[step.row, step.anchor + 1 + step.step]
        return -(self._probs[where] * log_q.gather(-1, self._ids[where])).sum()
