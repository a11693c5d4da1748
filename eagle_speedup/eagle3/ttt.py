"""Training-time test (TTT): the drafter's steps 0..K-1 from every anchor at once, exactly as the decoder runs them.

At step k the chain of anchor t attends to the step-0 keys of anchors <= t, which are made from verifier features,
and to its own keys of steps 1..k. That is what a decoder has in its cache when, after every verification, it
recomputes the keys of accepted tokens from verifier features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .attention import rotate
from .drafter import Eagle3Drafter

__all__ = ["TTTInputs", "TTTStep", "ttt", "ttt_draft_ids"]


@dataclass(frozen=True)
class TTTInputs:
    """One batch, right-padded."""

    ids: Tensor
    """int64 [B, T], verifier vocabulary."""
    taps: Tensor
    """[B, T, taps * hidden]: tapped verifier states at every position (any float type)."""
    spans: Tensor
    """int64 [S, 3]: rows (row, P, E), P the first and E the last token of an answer; sorted, several a row allowed."""


@dataclass(frozen=True)
class TTTStep:
    """What one step drafted."""

    step: int
    row: Tensor
    """int64 [n]: batch row of every anchor that took part."""
    anchor: Tensor
    """int64 [n]: its position t; the draft is for position t + 1 + step."""
    logits: Tensor
    """[n, draft_vocab]."""


@dataclass
class _Prefix:
    """Step-0 keys and values [slots, kv_heads, head_dim] of all positions, flat over the batch; row b starts at
    `first[b]`.
    """

    keys: Tensor
    values: Tensor
    first: list[int]


@dataclass
class _Chains:
    """The anchors that are still drafted from, n of them, sorted by row."""

    row: Tensor
    anchor: Tensor
    last: Tensor
    """E of the anchor's answer."""
    slot: Tensor
    """Where the anchor is in the flat prefix."""
    state: Tensor
    """The drafter's state, before the first step the feature: [n, hidden]."""
    own_keys: Tensor
    """[n, steps so far, kv_heads, head_dim]."""
    own_values: Tensor

    def select(self, keep: Tensor) -> _Chains:
        return _Chains(*(getattr(self, field.name)[keep] for field in fields(self)))


def ttt(drafter: Eagle3Drafter, batch: TTTInputs, steps: int, *, keep_missed: float = 1.0) -> Iterator[TTTStep]:
    """Run `steps` TTT steps from all answer anchors t in [P, E-1], teacher forced; yields one `TTTStep` a step.

    Args:
        drafter: gradients flow if they are enabled.
        batch: inputs.
        steps: K.
        keep_missed: share of the anchors that go on although their draft was wrong. 1 runs every step from every
            anchor. With 0 only anchors whose drafts were right so far go on: the accept length depends on no others,
            and it costs a third. (Chains do not see each other, so leaving some out changes nothing for the rest.)
    """
    prefix, chains, query = _start(drafter, batch)
    for step in range(steps):
        if step:
            query = _extend(drafter, batch.ids, chains, step)
        chains.state = drafter.finish(_attend(query, prefix, chains), chains.state)
        logits = drafter.logits(chains.state)
        yield TTTStep(step, chains.row, chains.anchor, logits)
        if step + 1 < steps:
            chains = chains.select(_goes_on(drafter, batch, chains, logits, step, keep_missed))
            if not len(chains.row):
                return


@torch.no_grad()
def ttt_draft_ids(drafter: Eagle3Drafter, batch: TTTInputs, steps: int) -> Tensor:
    """Drafted tokens int64 [steps, B, T] in the verifier's vocabulary, at [k, b, t] the one of step k from anchor t;
    -1 where there is none.
    """
    out = torch.full((steps, *batch.ids.shape), -1, dtype=torch.long, device=batch.ids.device)
    for step in ttt(drafter, batch, steps):
        out[step.step, step.row, step.anchor] = drafter.d2t[step.logits.argmax(-1)]
    return out


def _start(drafter: Eagle3Drafter, batch: TTTInputs) -> tuple[_Prefix, _Chains, Tensor]:
    """Step 0's keys of all positions, and the queries of the answers' anchors only."""
    device, spans, last = batch.ids.device, batch.spans.tolist(), [0] * len(batch.ids)
    for row, _, end in spans:
        last[row] = max(last[row], end)
    first = [sum(max(e - 1, 0) for e in last[:b]) for b in range(len(last))]
    row = torch.tensor([b for b, e in enumerate(last) for _ in range(1, e)], dtype=torch.long, device=device)
    anchor = torch.tensor([t for e in last for t in range(1, e)], dtype=torch.long, device=device)
    pick = torch.tensor([first[b] + t - 1 for b, p, e in spans for t in range(p, e)], dtype=torch.long, device=device)
    end = torch.tensor([e for _, p, e in spans for _ in range(p, e)], dtype=torch.long, device=device)
    feature = drafter.fuse(batch.taps[row, anchor - 1].to(drafter.fc.weight.dtype))
    x, rotation = drafter.layer_input(batch.ids[row, anchor], feature), drafter.rope[anchor - 1]
    keys, values = _keys_values(drafter, x, rotation)
    query = rotate(_heads(drafter, drafter.query(x[pick])), rotation[pick])
    none = keys.new_empty(len(pick), 0, *keys.shape[1:])
    chains = _Chains(row[pick], anchor[pick], end, pick, feature[pick], none, none)
    return _Prefix(keys, values, first), chains, query


def _extend(drafter: Eagle3Drafter, ids: Tensor, chains: _Chains, step: int) -> Tensor:
    """Step `step`'s queries [n, heads, head_dim]; its keys and values join the chains' own."""
    position = chains.anchor + step
    x, rotation = drafter.layer_input(ids[chains.row, position], chains.state), drafter.rope[position - 1]
    keys, values = _keys_values(drafter, x, rotation)
    chains.own_keys = torch.cat((chains.own_keys, keys[:, None]), 1)
    chains.own_values = torch.cat((chains.own_values, values[:, None]), 1)
    return rotate(_heads(drafter, drafter.query(x)), rotation)


def _heads(drafter: Eagle3Drafter, flat: Tensor) -> Tensor:
    # Rotations are complex float32, and so is attention: it is a small part of the work, and the metric must equal
    # the decoder.
    return flat.float().unflatten(-1, (-1, drafter.config.head_dim))


def _keys_values(drafter: Eagle3Drafter, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    return rotate(_heads(drafter, drafter.key(x)), rotation), _heads(drafter, drafter.value(x))


def _goes_on(
    drafter: Eagle3Drafter, batch: TTTInputs, chains: _Chains, logits: Tensor, step: int, keep_missed: float
) -> Tensor:
    """Indices of the chains that have a further target and were right, or are kept by lot."""
    target = chains.anchor + step + 1
    keep = target + 1 <= chains.last
    if keep_missed < 1:
        right = drafter.d2t[logits.detach().argmax(-1)] == batch.ids[chains.row, target]
        keep = keep & (right | (torch.rand(len(target), device=target.device) < keep_missed))
    return keep.nonzero().squeeze(-1)


def _attend(query: Tensor, prefix: _Prefix, chains: _Chains) -> Tensor:
    """Attention of query [n, heads, head_dim] over prefix and own keys; [n, heads * head_dim]. One row of the batch
    at a time: no padding.
    """
    n, heads, head_dim = query.shape
    kv_heads = prefix.keys.shape[1]
    q = (query * head_dim**-0.5).view(n, kv_heads, -1, head_dim)
    own = (q[:, None] * chains.own_keys[:, :, :, None]).sum(-1).permute(2, 3, 0, 1)  # [kv_heads, group, n, steps]
    own_values = chains.own_values.permute(2, 0, 1, 3)[:, None]  # [kv_heads, 1, n, steps, head_dim]
    counts = torch.bincount(chains.row, minlength=len(prefix.first)).tolist()
    outs, begin = [], 0
    for first, count in zip(prefix.first, counts, strict=True):
        if count:
            part = slice(begin, begin + count)
            outs.append(_attend_row(q[part], prefix, first, chains.slot[part], own[:, :, part], own_values[:, :, part]))
            begin += count
    return torch.cat(outs).view(n, heads * head_dim)


def _attend_row(q: Tensor, prefix: _Prefix, first: int, slot: Tensor, own: Tensor, own_values: Tensor) -> Tensor:
    n, kv_heads, group, head_dim = q.shape
    stop = int(slot[-1]) + 1  # anchors are sorted: the last one sees most
    keys, values = prefix.keys[first:stop], prefix.values[first:stop]
    seen = torch.arange(first, stop, device=q.device) <= slot[:, None]
    scores = (q.permute(1, 2, 0, 3).reshape(kv_heads, group * n, head_dim) @ keys.permute(1, 2, 0)).view(
        kv_heads, group, n, -1
    )
    weights = torch.cat((scores.masked_fill(~seen, float("-inf")), own), -1).softmax(-1)
    split = stop - first
    out = (weights[..., :split].reshape(kv_heads, group * n, split) @ values.transpose(0, 1)).view(
        kv_heads, group, n, head_dim
    )
    if own.shape[-1]:
        out = out + (weights[..., split:, None] * own_values).sum(-2)
    return out.permute(2, 0, 1, 3).reshape(n, -1)
