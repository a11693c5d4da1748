"""Fixtures for all tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def gloo_pair(tmp_path_factory):
    """Two gloo processes, started at the first test that needs them."""
    from tests.callbacks.gloo import GlooPool

    pool = GlooPool(2, tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()
