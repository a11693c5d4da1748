"""Early stopping under a real Trainer."""

from __future__ import annotations

import logging

import pytest
import torch

from eagle_speedup.callbacks import SpeedupEarlyStopping, SpeedupMonitor
from eagle_speedup.errors import InputError
from eagle_speedup.training import StopReason

from .test_speedup_monitor import csv_rows
from .toy import ToyDrafter, toy_calibration, toy_loader, toy_trainer

# Validations at steps 2, 4, ..: gains until step 6, nothing after.
GROWS = [0.1, 0.1, 0.3, 0.3, 0.5, 0.5, 0.7]


def fit(folder, *, skills=GROWS, callbacks=None, ckpt_path=None, train=None, **options):
    monitor, stopping = callbacks or (SpeedupMonitor(toy_calibration()), SpeedupEarlyStopping(0.01, 3))
    trainer = toy_trainer(folder, [stopping, monitor], **{"max_steps": 40, **options})
    trainer.fit(ToyDrafter(skills), train or toy_loader(), toy_loader(), ckpt_path=ckpt_path)
    return trainer, monitor, stopping


def test_stops_three_validations_after_the_last_gain(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        trainer, monitor, stopping = fit(tmp_path)
    assert trainer.global_step == 12 == stopping.stopped_step
    assert [v.global_step for v in monitor.history] == [2, 4, 6, 8, 10, 12]
    decision = stopping.stop_decision
    assert decision.stop and decision.reason is StopReason.STALLED and decision.best_step == 6
    assert "no confirmed gain of 1 % in 3 validations" in decision.message
    assert "+0.00 % [+0.00, +0.00] tok/s against step 6" in decision.message
    assert f"SpeedupEarlyStopping: {decision.message}" in caplog.text
    assert csv_rows(trainer.logger, "speedup/stopped")[0]["step"] == 11


def test_min_steps_hold_the_decision_and_lightning_logs_no_more_than_asked(tmp_path):
    trainer, monitor, stopping = fit(tmp_path, min_steps=19, log_every_n_steps=1000)
    assert trainer.global_step == 20  # the first validation at or after min_steps
    assert stopping.stop_decision.stop
    assert len(csv_rows(trainer.logger)) == len(monitor.history) == 10
    # Were should_stop set at step 12 already, Lightning would log every train step from there on.
    assert csv_rows(trainer.logger, "train/loss") == []


def test_min_epochs_hold_the_decision(tmp_path):
    options = {"max_steps": -1, "max_epochs": 30, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    train = toy_loader(16)  # 2 steps an epoch
    trainer, _, stopping = fit(tmp_path, train=train, min_epochs=9, **options)
    assert (trainer.current_epoch, trainer.global_step) == (9, 18)
    trainer, _, stopping = fit(tmp_path, train=train, **options)
    assert (trainer.current_epoch, trainer.global_step) == (6, 12)
    assert stopping.stop_decision.stop


def test_a_gain_while_waiting_revokes(tmp_path):
    skills = [*GROWS, *[0.7] * 11, 0.85]  # step 18
    _, _, stopping = fit(tmp_path, skills=skills, min_steps=18, max_steps=18)
    assert not stopping.stop_decision.stop and stopping.stopped_step is None
    assert "gaining" in stopping.stop_decision.message


class Killed(ToyDrafter):
    def training_step(self, batch, batch_idx):
        if self.global_step == 9:
            raise RuntimeError("killed")
        return super().training_step(batch, batch_idx)


def test_resume_after_a_kill_continues_history_and_patience(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    def callbacks():
        saved = ModelCheckpoint(tmp_path, monitor="speedup/tok_s", mode="max", save_last=True, filename="{step}")
        return SpeedupMonitor(toy_calibration()), SpeedupEarlyStopping(0.01, 3), saved

    monitor, stopping, saved = callbacks()
    options = {"enable_checkpointing": True, "max_steps": 40}
    with pytest.raises(RuntimeError, match="killed"):
        toy_trainer(tmp_path, [monitor, stopping, saved], **options).fit(Killed(GROWS), toy_loader(), toy_loader())
    assert [v.global_step for v in monitor.history] == [2, 4, 6, 8]

    torch.load(tmp_path / "last.ckpt", weights_only=True)
    again, stop_again, saved = callbacks()
    trainer = toy_trainer(tmp_path, [again, stop_again, saved], **options)
    trainer.fit(ToyDrafter(GROWS), toy_loader(), toy_loader(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert [v.global_step for v in again.history] == [2, 4, 6, 8, 10, 12]  # as without the kill
    assert all(a.profile.counts == b.profile.counts for a, b in zip(again.history, monitor.history, strict=False))
    assert trainer.global_step == 12 and stop_again.stop_decision.reason is StopReason.STALLED
    assert saved.best_model_path.endswith("step=6.ckpt")

    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    kept = SpeedupEarlyStopping()
    kept.load_state_dict(state[kept.state_key])
    assert kept.stop_decision == stop_again.stop_decision and kept.stopped_step == 12


def test_another_calibration_projects_the_kept_counts_anew(tmp_path):
    _, monitor, _ = fit(tmp_path, max_steps=6)
    other = SpeedupMonitor(toy_calibration("faster", baseline=200.0))
    other.load_state_dict(monitor.state_dict())
    assert [v.global_step for v in other.history] == [2, 4, 6]
    fingerprints = {v.projected.fingerprint for v in other.history}
    assert fingerprints == {other.calibration.fingerprint} != {monitor.calibration.fingerprint}
    for new, old in zip(other.history, monitor.history, strict=True):
        assert new.tok_s == pytest.approx(2 * old.tok_s, rel=0.02)
    deeper = SpeedupMonitor(toy_calibration(), depth=5)
    with pytest.warns(UserWarning, match="3 validations of the checkpoint left out"):
        deeper.load_state_dict(monitor.state_dict())
    assert deeper.history == []


def test_fast_dev_run_and_validate_do_not_decide(tmp_path):
    _, _, stopping = fit(tmp_path, fast_dev_run=True)
    assert stopping.stop_decision is None
    monitor, stopping = SpeedupMonitor(toy_calibration()), SpeedupEarlyStopping()
    toy_trainer(tmp_path, [monitor, stopping]).validate(ToyDrafter(), toy_loader(), verbose=False)
    assert stopping.stop_decision is None


def test_it_needs_one_monitor_to_read(tmp_path):
    with pytest.raises(InputError, match=r"must name a SpeedupMonitor .*found: none"):
        toy_trainer(tmp_path, [SpeedupEarlyStopping()]).fit(ToyDrafter(), toy_loader(), toy_loader())
    two = [SpeedupMonitor(toy_calibration(), name=name) for name in ("a", "b")]
    with pytest.raises(InputError, match="must name one of the trainer's SpeedupMonitors: a, b"):
        toy_trainer(tmp_path, [SpeedupEarlyStopping(), *two]).fit(ToyDrafter(), toy_loader(), toy_loader())
    stopping = SpeedupEarlyStopping(patience=1, monitor="b")
    trainer = toy_trainer(tmp_path, [stopping, *two])
    trainer.fit(ToyDrafter([0.5]), toy_loader(), toy_loader())
    assert trainer.global_step == 4
    with pytest.raises(InputError, match="patience = 0"):
        SpeedupEarlyStopping(patience=0)
