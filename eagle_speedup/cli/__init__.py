"""The command line: ``eagle-speedup``.

Parsed by argparse rather than a framework: an answer is due half a second after a cold start, and frameworks that build
validators for every option take half of that for themselves.
"""

from .app import main

__all__ = ["main"]
