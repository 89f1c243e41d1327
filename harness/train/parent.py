"""Which process a rank must die with."""

from __future__ import annotations

import os
from collections.abc import Mapping

TORCHRUN_PID_VARIABLE = "WATTLINE_TORCHRUN_PID"


def expected_parent(environ: Mapping[str, str]) -> int:
    """The launcher's pid as it announced itself, else whoever is our parent now."""
    return int(environ.get(TORCHRUN_PID_VARIABLE, os.getppid()))
