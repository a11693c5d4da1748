import lightning as L
import pytest
import torch

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.eagle3.data import Conversation, collate, make_loader, prepare_features, ttt_inputs
from eagle_speedup.eagle3.decoder import speculative_decode
from eagle_speedup.eagle3.drafter import Eagle3Drafter, draft_vocabulary
from eagle_speedup.eagle3.lightning_module import Eagle3Module, TrainingConfig, ttt_loss
from eagle_speedup.eagle3.linear import on_float16_grid
from eagle_speedup.eagle3.ttt import ttt
from eagle_speedup.errors import InputError

from .conftest import EOS, TAPS, VOCAB


@pytest.fixture(scope="module")
def rows(verifier, held_out):
    d2t = draft_vocabulary(torch.tensor([t for c in held_out for t in c.ids]), 32, VOCAB)
    return d2t, prepare_features(verifier, held_out, TAPS, d2t=d2t, soft_targets=6, dtype=torch.float16)


def new_module(verifier, d2t, **changes):
    torch.manual_seed(0)
    settings = {"ttt_steps": 3, "total_steps": 12, "warmup_steps": 2, "learning_rate": 3e-3, "validation_ttt_steps": 5}
    return Eagle3Module(Eagle3Drafter.for_verifier(verifier, d2t, TAPS), TrainingConfig(**(settings | changes)))


def trainer(tmp_path, **options):
    return L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, enable_checkpointing=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip


def test_lightning_trains_and_a_checkpoint_serves_the_same_drafter(verifier, rows, held_out_rows, tmp_path):
    d2t, training = rows
    module = new_module(verifier, d2t)
    losses = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            losses.append(float(outputs["loss"]))

    fit = trainer(tmp_path, max_steps=12, max_epochs=-1, callbacks=[Watch()])
    fit.fit(module, make_loader(training, 8, shuffle=True), make_loader(held_out_rows, 8, shuffle=False))
    assert sum(losses[-3:]) < sum(losses[:3])
    fit.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    assert not any("embedding" in name and "norm" not in name for name in state), "the verifier's rows are not saved"
    again = new_module(verifier, d2t)
    again.load_state_dict(state)
    for a, b in zip(module.served_drafter().parameters(), again.served_drafter().parameters(), strict=True):
        assert torch.equal(a, b)


def test_validation_measures_what_is_served_and_matches_decoding(verifier, drafter, held_out, held_out_rows):
    module = Eagle3Module(drafter, TrainingConfig(validation_ttt_steps=4))
    served = module.served_drafter()
    assert all(on_float16_grid(p) for p in served.parameters() if p.dim() == 2)
    metric = TTTAcceptance(4, 4)
    module.on_validation_start()
    for i, batch in enumerate(make_loader(held_out_rows, 5, shuffle=False)):
        out = module.validation_step(batch, i)
        assert out["draft_ids"].shape == (4, *out["target_ids"].shape)
        metric.update(**out)
    module.on_validation_end()
    prompts = [c.ids[: c.spans[0][0]] for c in held_out]
    for depth in (1, 4):
        real = speculative_decode(verifier, served, prompts, depth=depth, max_new=40, eos_id=EOS)
        assert metric.compute().accept_length(depth).value == pytest.approx(real.accept_length, abs=1e-12)


def test_averaged_weights_lag_behind_and_no_averaging_serves_the_newest(verifier, rows, tmp_path):
    d2t, training = rows
    averaged, newest = (
        new_module(verifier, d2t, ema_decay=0.9),
        new_module(verifier, d2t, ema_decay=0.0, float16_grid=False),
    )
    for module in (averaged, newest):
        trainer(tmp_path, max_steps=4, max_epochs=-1, limit_val_batches=0).fit(
            module, make_loader(training, 8, shuffle=True)
        )
    assert not torch.equal(averaged.averaged.fc.weight, averaged.drafter.fc.weight)
    assert torch.equal(newest.served_drafter().fc.weight, newest.drafter.fc.weight)


def test_soft_targets_are_the_verifier_s_probabilities_at_the_right_positions(verifier, rows, held_out):
    d2t, training = rows
    batch = collate([(0, training[0]), (1, training[1])])
    conversation = held_out[1]
    logits = verifier.forward(torch.tensor([conversation.ids]), verifier.new_cache(1, 64)).logits
    first, last = conversation.spans[0]
    begin = held_out[0].spans[0][1] - held_out[0].spans[0][0]
    for position in (first + 1, last):
        where = begin + position - first - 1
        chosen = torch.tensor(sorted({*d2t.tolist(), conversation.ids[position]}))
        total = logits[0, position - 1, chosen].exp().sum()
        expected = logits[0, position - 1, d2t[batch["soft_ids"][where]]].exp() / total
        torch.testing.assert_close(batch["soft_probs"][where], expected, atol=1e-3, rtol=1e-2)
        # Greedy answers: the token that came is the likeliest one.
        if conversation.ids[position] in d2t:
            assert int(d2t[batch["soft_ids"][where, 0]]) == conversation.ids[position]


def test_loss_is_a_plain_cross_entropy_per_anchor(drafter, rows):
    batch = collate(list(enumerate(rows[1][:3])))
    hard = {k: v for k, v in batch.items() if not k.startswith("soft")}
    (step,) = ttt(drafter, ttt_inputs(batch), 1)
    expected = 0.0
    for logits, row, anchor in zip(step.logits, step.row, step.anchor, strict=True):
        target = int(drafter.t2d[batch["ids"][row, anchor + 1]])
        expected -= float(logits.log_softmax(-1)[target]) if target >= 0 else 0.0
    loss = ttt_loss(ttt(drafter, ttt_inputs(batch), 1), hard, drafter)
    assert float(loss) == pytest.approx(expected / len(step.row), rel=1e-4)


def test_two_answers_in_one_row_are_two_spans(verifier, drafter, held_out):
    first, second = held_out[0], held_out[1]
    turn = len(first.ids)
    p, e = second.spans[0]
    both = Conversation(first.ids + second.ids, (first.spans[0], (turn + p, turn + e)))
    batch = collate([(7, prepare_features(verifier, [both], TAPS)[0])])
    steps = list(ttt(drafter, ttt_inputs(batch), 2))
    anchors = [*range(*first.spans[0]), *range(turn + p, turn + e)]
    assert steps[0].anchor.tolist() == anchors
    assert batch["sequence_index"].tolist() == [7]


def test_bad_settings_are_named(verifier):
    with pytest.raises(InputError, match="draft_vocab_size"):
        draft_vocabulary(torch.tensor([1]), 0, VOCAB)
    with pytest.raises(InputError, match="d2t"):
        prepare_features(verifier, [], TAPS, soft_targets=4)
    with pytest.raises(InputError, match="autocast"):
        new_module(verifier, torch.arange(8), autocast="int4")
