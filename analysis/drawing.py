"""What every picture shares: one look, one way of saving. Loads matplotlib only when asked to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import MissingExtraError
from harness.record.run_dir import naming

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "#767676"
DPI = 150
_STYLE: Any = {
    "svg.hashsalt": "wattline",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def style() -> AbstractContextManager[None]:
    """The look of all pictures, while it is entered.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError("matplotlib", "analysis") from error
    return mpl.rc_context(_STYLE)


def save(figure: Figure, path: Path) -> Path:
    """Without date and version, so that the same records give the same bytes.

    Raises:
        RecordError: the folder cannot be written.
    """
    metadata: dict[str, Any] = (
        {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    )
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata=metadata)
    return path
