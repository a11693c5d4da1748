"""No line of any kind makes a reader fail in any way but the one it documents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_speedup.errors import InputError
from eagle_speedup.readers.bench_json import read_bench_json
from eagle_speedup.readers.prometheus import read_prometheus
from eagle_speedup.readers.sglang_logs import read_sglang_log
from eagle_speedup.readers.trainer_logs import read_trainer_log
from eagle_speedup.readers.vllm_logs import read_vllm_log

from .test_bench_json import GUIDELLM, ONE_BATCH_SERVER, VLLM
from .test_engine_logs import NEXT, PREFILL, STEADY, decode
from .test_prometheus import SGLANG
from .test_prometheus import vllm as vllm_metrics

GOOD = [*STEADY, *NEXT, PREFILL, decode(90.0, 1, 2.0, 0.5), *SGLANG, *vllm_metrics(10, 20), "eval/acc_0: 0.5"]
PIECES = ["nan", "inf", "-1", "0", "1e308", "1e999", ": ", ", ", "{", "}", "\0", "9" * 30, "é", ""]


@st.composite
def damaged(draw):
    """Good lines with pieces cut out and put in."""
    lines = draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=12))
    out = []
    for line in lines:
        if draw(st.booleans()):
            start, stop = sorted(draw(st.tuples(st.integers(0, len(line)), st.integers(0, len(line)))))
            line = line[:start] + draw(st.sampled_from(PIECES)) + line[stop if draw(st.booleans()) else start :]
        out.append(line.encode())
    return out


@pytest.mark.parametrize("read", [read_vllm_log, read_sglang_log, read_prometheus, read_trainer_log])
@settings(max_examples=150, deadline=None)
@given(lines=damaged())
def test_damaged_lines(read, lines):
    try:
        read(lines)
    except InputError as error:
        assert "\n" not in str(error)


@settings(max_examples=100, deadline=None)
@given(noise=st.binary(max_size=300))
def test_noise(noise):
    for read in (read_vllm_log, read_sglang_log, read_prometheus):
        assert read(noise.split(b"\n")).points == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-10, 10**20) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*VLLM, *ONE_BATCH_SERVER]), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(base=st.sampled_from([VLLM, ONE_BATCH_SERVER, GUIDELLM]), change=st.dictionaries(st.sampled_from([*VLLM]), JSON))
def test_odd_results(tmp_path_factory, base, change):
    import json

    path = tmp_path_factory.mktemp("json") / "result.json"
    path.write_text(json.dumps({**base, **change}))
    for point in read_bench_json(path).points:
        assert point.total_tok_s is None or point.total_tok_s > 0
