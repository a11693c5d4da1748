"""What every phase of the demo may use."""

from __future__ import annotations

from dataclasses import dataclass

from .budget import Clock
from .folder import Journal, RunFolder
from .settings import Settings
from .story import Story

__all__ = ["Context"]


@dataclass(frozen=True)
class Context:
    """Settings, run folder, story and clock of one run."""

    settings: Settings
    folder: RunFolder
    journal: Journal
    story: Story
    clock: Clock
