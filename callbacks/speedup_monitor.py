"""The projected speedup of a drafter at every validation of its training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from ..acceptance import AcceptanceProfile
from ..acceptance.mix import mix_profiles
from ..errors import InputError
from ..estimate import Estimate
from ..projection import AcceptLengths, SpeedupProjection, project
from ..throughput import Calibration, load_calibration
from ..training import Validation, best, comparable, crossed_breakeven, forecast_curve
from ._counting import ValidationCounter, val_loaders
from ._history import history_from_state, history_to_state
from ._keys import logged_values, zero_values
from .sources import DraftSource, OutputsSource

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from .wandb_logging import WandbReport

__all__ = ["SpeedupMonitor"]


class SpeedupMonitor(Callback):
    """Logs accept length, tok/s and speedup with intervals at every validation, under exact names.

    ``validation_step`` returns a dict with ``draft_ids`` [K, B, T], ``target_ids`` [B, T] and ``spans`` [S, 3] (see
    :class:`~eagle_speedup.callbacks.TTTBatch`). Logged are ``speedup/accept_length``, ``tok_s``, ``ratio`` (each with
    ``_lo`` and ``_hi``), ``full_acc_{k}``, ``cond_acc_{k}``, ``step_acc_{k}``, ``breakeven_accept_length``,
    ``best_depth``, ``draft_vocab_coverage`` (given ``draft_vocab``), ``tokens``, ``answers`` and, where the budget is
    known, ``tok_s_final`` with its band. ``ModelCheckpoint(monitor="speedup/tok_s", mode="max")`` works. A validation
    without any answer logs 0.0 and warns.

    Args:
        calibration: of the node that will serve: a shipped name, a YAML file, an OmegaConf config, or the value itself.
        depth: draft depth that will be served; None = the fastest one at each validation.
        batch: requests in flight.
        context_tokens: context per request; None = as calibrated.
        workload: traffic, as the calibration's points name it, whose time outside decoding (prefill, ragged ends) is
            counted in; None = the one closest to decoding alone.
        source: where the ids come from; default: the output of ``validation_step``.
        max_depth: largest depth to walk and tabulate; default: the TTT steps, or ``depth`` where that is larger.
        mode: how drafts will be accepted: ``greedy``, ``onehot`` or ``rejection``.
        draft_vocab: verifier ids the drafter can produce, for ``draft_vocab_coverage``.
        blocks: jackknife blocks.
        sequences: number of sequences of the validation set (one for each of ``validation_sets``). The repeats by which
            a ``DistributedSampler`` evens out the ranks never count. Those of other samplers do not where batches bring
            a ``sequence_index``: with this number in the one collective of a validation, else in a second one.
        name: prefix of the logged names; monitors of one trainer need different ones.
        validation_sets: names of the validation data loaders, in order: the headline pools them (or, from a dict of
            name to weight, mixes them by that share of the traffic), and each is logged under ``speedup/<set>/..`` as
            well. None: all loaders are one set.
        final_step: last optimizer step of the budget; default: what the trainer's max_steps or max_epochs say.
        table_batches: batch sizes of the W&B table of tok/s over depth; default: ``batch`` only.

    Attributes:
        history: validations of this training, in order (continues after a resume).
        last: projection of the last validation; None before the first.
        profile: acceptance profile of the last validation.
        set_profiles: profile by name of the validation set, where ``validation_sets`` are given.
    """

    def __init__(
        self,
        calibration: str | Path | Mapping[str, Any] | Calibration,
        *,
        depth: int | None = None,
        batch: int = 1,
        context_tokens: float | None = None,
        workload: str | None = None,
        source: DraftSource | None = None,
        max_depth: int | None = None,
        mode: str = "greedy",
        draft_vocab: Tensor | None = None,
        blocks: int = 64,
        sequences: int | Sequence[int] | None = None,
        name: str = "speedup",
        validation_sets: Sequence[str] | Mapping[str, float] | None = None,
        final_step: int | None = None,
        table_batches: Sequence[int] | None = None,
    ) -> None:
        self.calibration = load_calibration(calibration)
        self.depth = depth
        self.batch = batch
        self.context_tokens = context_tokens
        self.workload = workload
        self.source = source or OutputsSource()
        self.mode = mode
        self.name = name
        self.validation_sets = _names(validation_sets)
        self.set_weights = dict(validation_sets) if isinstance(validation_sets, Mapping) else None
        self.final_step = final_step
        self.table_batches = tuple(table_batches or (batch,))
        _check_serving(self.calibration, depth, (batch, *self.table_batches), context_tokens, max_depth)
        self.history: list[Validation] = []
        self.last: SpeedupProjection | None = None
        self.profile: AcceptanceProfile | None = None
        self.set_profiles: dict[str, AcceptanceProfile] = {}
        sizes = _sizes(sequences, len(self.validation_sets) or 1)
        options: dict[str, Any] = {"max_depth": max_depth, "depth": depth, "mode": mode, "draft_vocab": draft_vocab}
        self._counter = ValidationCounter(blocks, sequences=sizes, **options)
        self._reports: list[WandbReport] | None = None
        self._attached = False
        self._ranks_agreed = False
        self._keys_seen: dict[str, None] = {}
        self._told: set[str] = set()

    @property
    def state_key(self) -> str:
        """One entry per name, so that several monitors keep apart in a checkpoint."""
        return f"{type(self).__qualname__}[{self.name}]"

    def project(self, lengths: AcceptLengths, batch: int | None = None) -> SpeedupProjection:
        """Project a profile, or other accept lengths, as this monitor does (another batch size on demand)."""
        return project(
            lengths,
            self.calibration,
            depth=self.depth,
            batch=self.batch if batch is None else batch,
            context_tokens=self.context_tokens,
            workload=self.workload,
            max_depth=lengths.max_depth,
        )

    # ---- a run begins and ends ----

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start afresh; keep Lightning from advising to average values that are the same on all ranks."""
        self._attached = self._ranks_agreed = False
        self._reports = None
        if trainer.world_size > 1:
            warnings.filterwarnings("ignore", message=rf"It is recommended to use `self.log\('{self.name}/")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Release the source."""
        self.source.detach()
        self._attached = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the source before the first forward pass."""
        self._attach(pl_module)

    # ---- a validation ----

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the counts, those of the sanity check too."""
        self._attach(pl_module)
        loaders = val_loaders(trainer)
        if self.validation_sets and len(loaders) != len(self.validation_sets):
            raise InputError("validation_sets", list(self.validation_sets), f"must name {len(loaders)} data loaders")
        sets = len(self.validation_sets) or 1
        self._counter.start(loaders, trainer.global_rank, trainer.world_size, sets)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Tell the source."""
        self.source.start_batch(pl_module, batch)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count the batch; in the sanity check only to refuse wrong ones before training."""
        shuffled = self._counter.add(self.source.read(pl_module, outputs), dataloader_idx)
        if trainer.sanity_checking:
            return
        if shuffled:
            text = "the validation data are shuffled and no sequence_index says which rows these are"
            self._tell(f"{text}: validations can not be compared (give sequence_index)")
        if trainer.world_size > 1 and self._counter.may_repeat:
            text = "the validation data are not dealt by torch's own sampler"
            self._tell(
                f"{text}: sequences that several ranks get count as often (give sequence_index with every batch)"
            )

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reduce, project, keep and log."""
        if trainer.sanity_checking:
            return
        profiles = self._counter.finish(trainer, agree=not self._ranks_agreed)
        self._ranks_agreed = bool(profiles)
        self.set_profiles = dict(zip(self.validation_sets, profiles[1:], strict=True)) if profiles else {}
        self.profile = self._headline(profiles[0]) if profiles else None
        self.last = self.project(self.profile) if self.profile is not None and self.profile.answers else None
        if self.profile is not None and trainer.state.fn == TrainerFn.FITTING:
            self._remember(Validation(trainer.global_step, trainer.current_epoch, self.profile, self.last))
        values = self._values(trainer)
        shown = {key: values.pop(f"{self.name}/{key}") for key in ("accept_length", "tok_s")}
        options: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1, "add_dataloader_idx": False}
        pl_module.log_dict({f"{self.name}/{key}": value for key, value in shown.items()}, prog_bar=True, **options)
        pl_module.log_dict(values, **options)
        self._report(trainer)

    def _headline(self, pooled: AcceptanceProfile) -> AcceptanceProfile:
        """The sets mixed by their weights, where there are any."""
        if self.set_weights is None:
            return pooled
        empty = [name for name, profile in self.set_profiles.items() if not profile.tokens]
        if empty:
            self._tell(f"no answers in {', '.join(empty)}: the headline pools the sets without weights")
            return pooled
        return mix_profiles(self.set_profiles, self.set_weights)

    def _values(self, trainer: Trainer) -> dict[str, float]:
        if self.profile is None or self.last is None:
            self._tell("a validation held no answer with two tokens: its values are logged as 0.0", again=True)
            return zero_values(self.name, self._keys_seen)
        for warning in self.last.warnings:
            self._tell(f"{warning} (calibration {self.calibration.name})", info=True)
        if self.profile.is_off_policy:
            rate = f"{100 * (self.profile.off_policy_rate or 0.0):.0f} %"
            self._tell(
                f"the verifier would not have written {rate} of the validation tokens: accept length understated"
            )
        values = logged_values(self.name, self.profile, self.last, self._final(trainer))
        for set_name, profile in self.set_profiles.items():
            prefix = f"{self.name}/{set_name}"
            if profile.answers:
                values.update(logged_values(prefix, profile, self.project(profile), None))
            else:
                values.update(zero_values(prefix, [key for key in self._keys_seen if key.startswith(f"{prefix}/")]))
        self._keys_seen.update(dict.fromkeys(values))
        return values

    def _final(self, trainer: Trainer) -> Estimate | None:
        """tok/s at the end of the budget; None where there is no budget."""
        if trainer.state.fn != TrainerFn.FITTING:
            return None  # asking for the budget would load the training data
        end = self.final_step if self.final_step is not None else _budget(trainer)
        usable = comparable(self.history)[0]
        if end is None or not usable:
            return None
        curve = forecast_curve([v.global_step for v in usable], [v.profile for v in usable], end)
        if math.isnan(curve.accept_length(1).value):
            return None
        return self.project(curve).tok_s

    def _remember(self, validation: Validation) -> None:
        if self.history and self.history[-1].global_step >= validation.global_step:
            # The same step again: after a resume, or an epoch's end right after an interval's.
            self.history = [v for v in self.history if v.global_step < validation.global_step]
        self.history.append(validation)

    # ---- outside of Lightning's own logging ----

    def _report(self, trainer: Trainer) -> None:
        for report in self.reports(trainer):
            if self.profile is None or self.last is None:
                continue
            report.counts(trainer, self.profile, self.set_profiles)
            others = {batch: self.project(self.profile, batch) for batch in self.table_batches if batch != self.batch}
            report.by_depth(trainer, [others.get(batch, self.last) for batch in self.table_batches])
            if trainer.state.fn != TrainerFn.FITTING:
                continue
            top = best(self.history)
            if top is not None:
                report.summarise({"best_step": top.global_step, "best_tok_s": top.tok_s})
            if crossed_breakeven(self.history):
                step, length = trainer.global_step, self.last.accept_length
                text = f"speedup {self.last.ratio} at accept length {length}, step {step}"
                report.alert("Breakeven crossed", text)

    def reports(self, trainer: Trainer) -> list[WandbReport]:
        """Where W&B extras go: one per WandbLogger, none on other ranks than the first."""
        if self._reports is None:
            from .wandb_logging import wandb_reports

            self._reports = wandb_reports(trainer, self)
        return self._reports

    def _tell(self, text: str, *, info: bool = False, again: bool = False) -> None:
        if again or text not in self._told:
            self._told.add(text)
            (rank_zero_info if info else rank_zero_warn)(f"{self.name}: {text}")

    def _attach(self, pl_module: LightningModule) -> None:
        if not self._attached:
            self.source.attach(pl_module)
            self._attached = True

    # ---- checkpoint ----

    def state_dict(self) -> dict[str, Any]:
        """Counts and steps of every validation: Python numbers, strings, lists and tensors only."""
        return {"fingerprint": self.calibration.fingerprint, **history_to_state(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue that history, projected anew with the calibration of this monitor."""
        if state_dict["fingerprint"] != self.calibration.fingerprint:
            text = f"the checkpoint's history was under calibration {state_dict['fingerprint']}"
            rank_zero_info(f"{self.name}: {text}; it is projected anew under {self.calibration.fingerprint}")
        self.history, skipped = history_from_state(state_dict, self.project)
        if skipped:
            rank_zero_warn(f"{self.name}: {len(skipped)} validations of the checkpoint left out: {skipped[0]}")
        if self.history:
            self.profile, self.last = self.history[-1].profile, self.history[-1].projection


def _names(names: Sequence[str] | Mapping[str, float] | None) -> tuple[str, ...]:
    if isinstance(names, str) or len(set(names or ())) != len(names or ()):
        raise InputError("validation_sets", names, "must be a list of different names")
    for name, weight in names.items() if isinstance(names, Mapping) else ():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InputError(f"validation_sets[{name!r}]", weight, "must be a finite weight above 0")
    return tuple(names or ())


def _sizes(sequences: int | Sequence[int] | None, sets: int) -> tuple[int, ...]:
    sizes = () if sequences is None else (sequences,) if isinstance(sequences, int) else tuple(sequences)
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 1]
    if wrong or len(sizes) not in (0, sets):
        raise InputError("sequences", sequences, f"must be {sets} whole numbers of at least 1, one a validation set")
    return sizes


def _budget(trainer: Trainer) -> int | None:
    """The step at which the trainer will stop; None where it does not say."""
    try:
        steps = trainer.estimated_stepping_batches
    except MisconfigurationException:  # accumulation that changes with the epoch
        return None
    return int(steps) if math.isfinite(steps) and steps > 0 else None


def _check_serving(
    calibration: Calibration,
    depth: int | None,
    batches: Sequence[int],
    context_tokens: float | None,
    max_depth: int | None,
) -> None:
    """Refuse at construction what would only fail at the first validation, hours later."""
    if max_depth is not None and depth is not None and depth > max_depth:
        raise InputError("depth", depth, f"must be at most max_depth = {max_depth}")
    for batch in batches:
        calibration.model.round_ms(1 if depth is None else depth, batch, context_tokens)
    if depth is not None and depth < 1:
        raise InputError("depth", depth, "must be at least 1, or None for the fastest")
