"""The report's scaling points with the set-up they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.reference import (
    ReferenceLabel,
    ScalingReference,
    SetupReference,
    label_of,
    load_scaling,
    load_setup,
)
from analysis.table import DAGGER

ARXIV_ID = "2608.05944"
MODEL = "qwen3_32b"  # the name, in experiments/model, of the model that the report trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Points in order of GPUs; ``setup`` by item."""

    points: tuple[ScalingReference, ...]
    setup: Mapping[str, SetupReference]

    @property
    def title(self) -> str:
        """Hardware, model and batch in one line, secondary items with a dagger."""
        batch = f"{self._item('global_batch_size')} x {self._item('sequence_length')} tokens"
        return (
            f"The report (arXiv {ARXIV_ID}): {self._item('gpus')} x {self._item('accelerator')},"
            f" {self._item('model')}, global batch {batch}"
        )

    @property
    def epoch_tokens(self) -> float:
        """Tokens of the report's epoch, about."""
        return float(self.setup["epoch_tokens"].value)

    def _item(self, name: str) -> str:
        row = self.setup[name]
        mark = DAGGER if label_of(row.source) is ReferenceLabel.SECONDARY else ""
        return f"{row.value}{mark}"


def load_reported() -> Reported:
    """Read the points and the set-up.

    Raises:
        RecordError: the reference is not installed.
    """
    return Reported(points=load_scaling(), setup={row.item: row for row in load_setup()})
