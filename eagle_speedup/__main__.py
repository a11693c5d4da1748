"""``python -m eagle_speedup`` is ``eagle-speedup``."""

import sys

from .cli import main

sys.exit(main())
