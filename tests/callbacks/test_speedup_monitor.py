"""The monitor under a real Trainer: what is logged, when, and what is kept."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from eagle_speedup.acceptance import AcceptanceProfile
from eagle_speedup.callbacks import SpeedupMonitor
from eagle_speedup.errors import InputError
from eagle_speedup.projection import project
from eagle_speedup.training import paired_gain

from .toy import STEPS, ToyDrafter, direct_counts, toy_calibration, toy_loader, toy_trainer

BANDED = ("accept_length", "tok_s", "ratio", "tok_s_final")
KEYS = {f"speedup/{key}{end}" for key in BANDED for end in ("", "_lo", "_hi")}
KEYS |= {f"speedup/{kind}_{k}" for kind in ("full_acc", "cond_acc", "step_acc") for k in range(STEPS)}
KEYS |= {
    f"speedup/{key}" for key in ("breakeven_accept_length", "best_depth", "draft_vocab_coverage", "tokens", "answers")
}


def monitor(calibration=None, **options):
    return SpeedupMonitor(calibration or toy_calibration(), **options)


def csv_rows(logger, key="speedup/tok_s"):
    """Rows of the metrics file that hold the key, as numbers."""
    logger.save()
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    return [{k: float(v) for k, v in row.items() if v != ""} for row in rows if row.get(key)]


def fit(folder, callbacks, module=None, *, train=None, val=None, ckpt_path=None, **options):
    trainer = toy_trainer(folder, callbacks, **options)
    trainer.fit(module or ToyDrafter(), train or toy_loader(), val or toy_loader(), ckpt_path=ckpt_path)
    return trainer


def test_every_validation_logs_every_key_with_the_exact_values(tmp_path, recwarn):
    callback = monitor(draft_vocab=torch.arange(25))
    logger = CSVLogger(tmp_path)
    fit(tmp_path, [callback], ToyDrafter(vocab=25), logger=logger)
    rows = csv_rows(logger)
    assert [v.global_step for v in callback.history] == [2, 4, 6, 8, 10]
    assert len(rows) == 5  # the sanity check logged nothing,
    assert not [w for w in recwarn if "no answer" in str(w.message)]  # and did not try to
    for row, validation in zip(rows, callback.history, strict=True):
        assert set(row) >= KEYS
        assert row["step"] == validation.global_step - 1
        expected = direct_counts(40, validation.global_step, vocab=25)
        assert (validation.profile.counts.accepted == expected.accepted).all()
        projection = project(AcceptanceProfile(expected), toy_calibration(), max_depth=STEPS)
        assert row["speedup/tok_s"] == pytest.approx(projection.tok_s.value, rel=1e-6)
        assert row["speedup/accept_length_lo"] == pytest.approx(projection.accept_length.lo, rel=1e-6)
        assert row["speedup/best_depth"] == projection.best_depth
        assert row["speedup/answers"] == 40
        assert 0.4 < row["speedup/draft_vocab_coverage"] < 0.6
    # At the end of the budget the forecast is the validation itself.
    assert rows[-1]["speedup/tok_s_final"] == pytest.approx(rows[-1]["speedup/tok_s"], rel=1e-6)
    assert rows[0]["speedup/tok_s_final"] > rows[0]["speedup/tok_s"]
    assert callback.last is callback.history[-1].projection
    assert callback.profile is callback.history[-1].profile


def test_coverage_and_final_are_left_out_where_unknown(tmp_path):
    logger = CSVLogger(tmp_path)
    fit(tmp_path, [monitor()], logger=logger, max_steps=-1, max_epochs=-1, max_time={"seconds": 1})
    row = csv_rows(logger)[0]
    assert "speedup/draft_vocab_coverage" not in row
    assert "speedup/tok_s_final" not in row


def test_stated_budget_is_used(tmp_path):
    logger = CSVLogger(tmp_path)
    fit(tmp_path, [monitor(final_step=1000)], logger=logger)
    assert csv_rows(logger)[-1]["speedup/tok_s_final"] > csv_rows(logger)[-1]["speedup/tok_s"]


def test_checkpoint_and_stock_early_stopping_see_the_key(tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="speedup/tok_s", mode="max", filename="{step}")
    stop = EarlyStopping("speedup/tok_s", mode="max", patience=50)
    skills = [0.1, 0.1, 0.2, 0.2, 0.8, 0.8, 0.5]
    callback = monitor()
    fit(tmp_path, [best, stop, callback], ToyDrafter(skills), enable_checkpointing=True)
    assert best.best_model_path.endswith("step=4.ckpt")
    assert best.best_model_score is not None and best.best_model_score.item() == pytest.approx(
        callback.history[1].tok_s, rel=1e-6
    )


def test_fixed_depth_batch_and_name(tmp_path):
    logger = CSVLogger(tmp_path)
    callback = monitor(depth=5, batch=4, name="b4")
    fit(tmp_path, [callback, monitor(name="b1")], logger=logger, max_steps=2)
    row = csv_rows(logger, "b4/tok_s")[0]
    assert callback.last.depth == 5 and callback.profile.max_depth == 5
    assert callback.profile.counts.ttt_steps == STEPS
    assert row["b4/tok_s"] > row["b1/tok_s"]
    with pytest.raises(RuntimeError, match="must be unique"):  # by Lightning, from the state key
        fit(tmp_path, [monitor(name="b4"), monitor(name="b4")])


def test_a_workload_of_the_calibration(tmp_path):
    callback = monitor("qwen3_235b_a22b_h200", depth=3, batch=8, workload="gsm8k")
    fit(tmp_path, [callback], logger=CSVLogger(tmp_path), max_steps=2)
    model, length = callback.calibration.model, callback.last.accept_length
    assert callback.last.workload == "gsm8k"
    assert callback.last.tok_s.value == pytest.approx(model.tok_s(length, 3, 8, workload="gsm8k").value)
    assert callback.last.tok_s.value < 0.95 * model.tok_s(length, 3, 8).value


def test_named_validation_sets_pool_to_the_headline(tmp_path):
    logger = CSVLogger(tmp_path)
    callback = monitor(validation_sets=["mtbench", "code"])
    loaders = [toy_loader(30), toy_loader(11)]
    fit(tmp_path, [callback], logger=logger, val=loaders, max_steps=2)
    row = csv_rows(logger)[0]
    assert [row[f"speedup/{key}answers"] for key in ("", "mtbench/", "code/")] == [41, 30, 11]
    assert callback.set_profiles["code"].counts == direct_counts(11, 2)
    assert callback.profile.counts == direct_counts(30, 2) + direct_counts(11, 2)
    assert KEYS - set(row) == {"speedup/draft_vocab_coverage"}
    with pytest.raises(InputError, match="must name 2 data loaders"):
        fit(tmp_path, [monitor(validation_sets=["one"])], val=loaders)


def test_weighted_validation_sets_mix_by_share_of_traffic(tmp_path):
    logger = CSVLogger(tmp_path)
    callback = monitor(validation_sets={"mtbench": 3, "code": 1}, depth=STEPS)
    fit(tmp_path, [callback], val=[toy_loader(30), toy_loader(11)], max_steps=4, logger=logger)
    parts = [callback.set_profiles[name].accept_length(STEPS).value for name in ("mtbench", "code")]
    mixed = callback.profile.accept_length(STEPS).value
    assert mixed == pytest.approx(1 / (0.75 / parts[0] + 0.25 / parts[1]))
    # What is logged, kept and projected is the mix, not the pool.
    assert callback.last.accept_length.value == callback.history[-1].projection.accept_length.value == mixed
    assert csv_rows(logger)[-1]["speedup/accept_length"] == pytest.approx(mixed)
    assert callback.last.tok_s == callback.project(callback.profile).tok_s
    pooled = direct_counts(30, 4) + direct_counts(11, 4)
    assert mixed != pytest.approx(pooled.tokens.sum() / pooled.accepted[:, STEPS - 1].sum(), rel=1e-4)
    assert not math.isnan(paired_gain(callback.history[1], callback.history[0]).lo)
    with pytest.raises(InputError, match=r"validation_sets\['code'\] = 0: must be a finite weight above 0"):
        monitor(validation_sets={"mtbench": 3, "code": 0})


def test_validate_logs_and_leaves_the_history_alone(tmp_path):
    callback = monitor()
    trainer = toy_trainer(tmp_path, [callback])
    results = trainer.validate(ToyDrafter(), toy_loader(), verbose=False)
    assert results[0]["speedup/accept_length"] > 1
    assert callback.history == [] and callback.last is not None


def test_fast_dev_run_and_a_single_answer(tmp_path):
    fit(tmp_path, [monitor()], fast_dev_run=True)
    callback = monitor()
    fit(tmp_path, [callback], val=toy_loader(1), max_steps=2)
    assert callback.profile.answers == 1 and math.isfinite(callback.last.tok_s.value)


class Silent(ToyDrafter):
    """Without an answer in the second validation."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        out = super().validation_step(batch, batch_idx)
        if self.global_step == 4:
            out["spans"] = torch.empty(0, 3, dtype=torch.int64)
        return out


def test_a_validation_without_answers_logs_zeros_and_warns(tmp_path):
    logger = CSVLogger(tmp_path)
    best = ModelCheckpoint(tmp_path, monitor="speedup/tok_s", mode="max", filename="{step}")
    with pytest.warns(UserWarning, match="held no answer"):
        fit(tmp_path, [monitor(), best], Silent(), logger=logger, enable_checkpointing=True, max_steps=6)
    rows = csv_rows(logger)
    assert [row["speedup/answers"] for row in rows] == [40, 0, 40]
    assert rows[1]["speedup/tok_s"] == 0 and rows[1]["speedup/full_acc_0"] == 0
    assert set(rows[0]) == set(rows[1])
    assert best.best_model_path.endswith("step=6.ckpt")


def test_shuffled_validation_is_told_and_an_index_settles_it(tmp_path):
    with pytest.warns(UserWarning, match="give sequence_index"):
        fit(tmp_path, [monitor()], val=toy_loader(shuffle=True), max_steps=2)
    callback = monitor()
    fit(tmp_path, [callback], ToyDrafter(give_index=True), val=toy_loader(shuffle=True), max_steps=4)
    assert [v.profile.counts for v in callback.history] == [direct_counts(40, step) for step in (2, 4)]


def test_off_policy_text_is_told(tmp_path):
    class Foreign(ToyDrafter):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            out = super().validation_step(batch, batch_idx)
            return {**out, "verifier_ids": torch.where(batch["needed"][:, 0] < 0.3, 0, batch["text"])}

    logger = CSVLogger(tmp_path)
    with pytest.warns(UserWarning, match="would not have written"):
        fit(tmp_path, [monitor()], Foreign(), max_steps=2, logger=logger)
    assert 0.2 < csv_rows(logger)[0]["speedup/off_policy_rate"] < 0.4


def test_bad_arguments_are_refused_at_once():
    with pytest.raises(InputError, match="calibration"):
        SpeedupMonitor("no_such_calibration")
    with pytest.raises(InputError, match=r"depth = 0"):
        monitor(depth=0)
    with pytest.raises(InputError, match=r"batch = 0"):
        monitor(batch=0)
    with pytest.raises(InputError, match=r"depth = 5: must be at most max_depth = 3"):
        monitor(depth=5, max_depth=3)
    with pytest.raises(InputError, match="list of different names"):
        monitor(validation_sets=["a", "a"])
    with pytest.raises(InputError, match="mode"):
        monitor(mode="beam")


@pytest.mark.parametrize("max_epochs", [None, 1, -1])
def test_validating_alone_asks_for_no_training_data(max_epochs, tmp_path):
    callback, logger = monitor(draft_vocab=torch.arange(100)), CSVLogger(tmp_path)
    trainer = toy_trainer(tmp_path, [callback], logger=logger, max_epochs=max_epochs)
    trainer.validate(ToyDrafter(), toy_loader(), verbose=False)
    (row,) = csv_rows(logger)
    assert set(row) >= KEYS - {f"speedup/tok_s_final{end}" for end in ("", "_lo", "_hi")}
