"""Steps of a run over all of its ranks, with the warm-up marked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from analysis.load import Run
from harness.stats import find_steady_state


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step over all ranks: the slowest rank, the longest wait, the sum of tokens."""

    step: int
    t_end_unix_s: float
    duration_s: float
    data_wait_s: float
    tokens: int
    padded_tokens: int
    is_warmup: bool


def step_rows(run: Run) -> tuple[StepRow, ...]:
    """Steps that every rank recorded, in order, with the warm-up marked."""
    rows = _merged_steps(run)
    if not rows:
        return ()
    start = find_steady_state([r.duration_s for r in rows]).start
    return tuple(replace(row, is_warmup=index < start) for index, row in enumerate(rows))


def _merged_steps(run: Run) -> list[StepRow]:
    world_size = run.manifest.trial.world_size
    by_rank = [{r.step: r for r in run.steps.get(rank, ())} for rank in range(world_size)]
    rows: list[StepRow] = []
    for step in sorted(by_rank[0]) if by_rank else ():
        records = [rank[step] for rank in by_rank if step in rank]
        if len(records) < world_size:
            continue
        row = StepRow(
            step=step,
            t_end_unix_s=max(r.t_end_unix_s for r in records),
            duration_s=max(r.duration_s for r in records),
            data_wait_s=max(r.data_wait_s for r in records),
            tokens=sum(r.tokens for r in records),
            padded_tokens=sum(r.padded_tokens for r in records),
            is_warmup=False,
        )
        rows.append(row)
    return rows
