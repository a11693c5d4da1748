"""No line, however long its run of blanks or digits, keeps a reader busy for longer than its length."""

from __future__ import annotations

import pytest

from eagle_speedup.readers.prometheus import read_prometheus
from eagle_speedup.readers.sglang_logs import read_sglang_log
from eagle_speedup.readers.vllm_logs import read_vllm_log

BLANKS = " " * 200_000  # a pattern that is quadratic in them takes minutes
KEYS = (
    *("INFO Avg generation throughput", "INFO Avg generation throughput: 1, Running", "SpecDecoding metrics: Accepted"),
    *("SpecDecoding metrics: Accepted: 1, Drafted: 2, Per-position acceptance rate", "Speculative metrics: Number of"),
    *(
        "Avg generation throughput: 1, Running: 1, Engine",
        "API server version",
        "speculative_config tensor_parallel_size",
    ),
    *(
        "Decode batch. #running-req: 1, gen throughput (token/s)",
        "Decode batch. #running-req",
        "[x DP1",
        "server_args=",
    ),
    *("[x DP1 TP1] Decode batch. #running-req: 1, #token", "ServerArgs(speculative_num_steps", "", "(APIServer pid=1"),
    *(
        "vllm:num_requests_running",
        "vllm:num_requests_running{",
        'sglang:gen_throughput{tp_rank="0"}',
        "sglang:x{tp_rank=",
    ),
)


@pytest.mark.parametrize("read", [read_vllm_log, read_sglang_log, read_prometheus])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("rest", ["x", "", ":", "'", ":x", "=1x"])
def test_a_corrupt_line_takes_no_longer_than_its_length(read, key, rest):
    lines = [
        f"{key}{filling}{rest}".encode() for filling in (BLANKS, BLANKS.replace(" ", "1"), BLANKS.replace(" ", "a"))
    ]
    read([*lines, b"Avg generation throughput Decode batch"])
