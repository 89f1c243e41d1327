"""Made telemetry with a known course: the samples, and what triage must say about them.

Nothing here is measured. Watts are shares of a limit, chosen in the shapes that DESIGN and public
reports describe; noise is seeded. A trace is a list of phases, each a per-GPU (watts, utilization,
memory, throttled) for some seconds.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.samples import Account, Gap, GpuId, PowerKind, PowerScope, SampleBatch

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Act:
    """What one GPU does in one phase; watts as a share of the limit."""

    share: float
    pct: float
    noise: float = 0.002
    memory: float = 40 * GIB
    throttled: int = 0
    duty: float = 1.0  # share of each cycle at work, idling with a context for the rest
    cycle_s: float = 2.0
    gone: bool = False  # the GPU gives no sample at all


WORK = Act(share=0.78, pct=97.0, noise=0.02)
WAIT = Act(share=0.19, pct=100.0)
HOST = Act(share=0.19, pct=0.0)
CONTEXT = Act(share=0.17, pct=0.0)
BARE = Act(share=0.10, pct=0.0, memory=0.0)
STARVED = Act(share=0.70, pct=95.0, noise=0.02, duty=0.35)
THROTTLED = Act(share=0.33, pct=100.0, noise=0.01, throttled=1)
WEDGED = Act(share=0.17, pct=100.0, memory=0.0)
GONE = Act(share=0.0, pct=0.0, gone=True)


def everybody(act: Act, num_gpus: int, **others: Act) -> list[Act]:
    """The same act on all GPUs but some: ``everybody(WAIT, 8, gpu3=HOST)``."""
    acts = [act] * num_gpus
    for name, other in others.items():
        acts[int(name.removeprefix("gpu"))] = other
    return acts


@dataclass(kw_only=True)
class MadeStream:
    """A SampleStream in memory."""

    columns: dict
    gpus: list
    account_: Account
    batch_rows: int = 50_000
    is_read: bool = field(default=False)

    def batches(self):
        self.is_read = True
        for start in range(0, len(self.columns["t_s"]), self.batch_rows):
            rows = slice(start, start + self.batch_rows)
            yield SampleBatch(
                **{k: None if v is None else v[rows] for k, v in self.columns.items()}
            )

    def account(self):
        return self.account_


def make_stream(
    phases: Sequence[tuple[float, Sequence[Act]]],
    *,
    period_s: float = 1.0,
    limit_w: float = 700.0,
    host: str = "node0",
    name: str | None = None,
    has_limit: bool = True,
    has_utilization: bool = True,
    has_memory: bool = True,
    labels: Sequence[str] | None = None,
    start_s: float = 1_700_000_000.0,
    pauses: Sequence[tuple[float, float]] = (),
    seed: int = 1,
    first_index: int = 0,
    **account,
) -> MadeStream:
    """Samples of ``phases``, each (seconds, one act per GPU); ``pauses`` are seconds cut out."""
    rng = np.random.default_rng(seed)
    num_gpus = len(phases[0][1])
    parts, label_parts, elapsed_s = [], [], 0.0
    for number, (seconds, acts) in enumerate(phases):
        ticks = np.arange(round(seconds / period_s)) * period_s + elapsed_s
        for gpu, act in enumerate(acts):
            if act.gone:
                continue
            parts.append(_rows(rng, ticks, gpu, act, limit_w))
            label_parts.append(np.full(len(ticks), labels[number] if labels else None, object))
        elapsed_s += seconds
    rows, label = np.concatenate(parts), np.concatenate(label_parts)
    keep = np.ones(len(rows), dtype=bool)
    for since, until in pauses:
        keep &= (rows[:, 0] < since) | (rows[:, 0] >= until)
    rows, label = rows[keep], label[keep]
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    rows, label = rows[order], label[order]
    columns = {
        "t_s": rows[:, 0] + start_s,
        "gpu": rows[:, 1].astype(np.int32),
        "power_w": rows[:, 2],
        "limit_w": np.full(len(rows), limit_w if has_limit else np.nan),
        "utilization_pct": rows[:, 3] if has_utilization else np.full(len(rows), np.nan),
        "memory_used_bytes": rows[:, 4] if has_memory else np.full(len(rows), np.nan),
        "sm_clock_mhz": np.full(len(rows), np.nan),
        "temperature_c": np.full(len(rows), np.nan),
        "throttled": rows[:, 5].astype(np.int8),
        "label": label if labels else None,
    }
    gpus = [GpuId(host=host, index=first_index + i, uuid=None, name=name) for i in range(num_gpus)]
    return MadeStream(
        columns=columns, gpus=gpus, account_=_account(rows[:, 0] + start_s, period_s, account, host)
    )


def _rows(rng, ticks, gpu, act, limit_w):
    at_work = (ticks % act.cycle_s) < act.duty * act.cycle_s
    share = np.where(at_work, act.share, min(act.share, CONTEXT.share))
    power_w = share * limit_w * (1.0 + act.noise * rng.standard_normal(len(ticks)))
    pct = np.where(at_work, act.pct, 0.0)
    return np.column_stack(
        [
            ticks,
            np.full(len(ticks), gpu),
            power_w,
            pct,
            np.full(len(ticks), act.memory),
            np.full(len(ticks), act.throttled),
        ]
    )


def _account(t_s, period_s, changes, host):
    times = np.unique(t_s)
    steps = np.diff(times)
    gaps = tuple(
        Gap(start_s=float(times[i]), end_s=float(times[i + 1]))
        for i in np.flatnonzero(steps > 3 * period_s)
    )
    plain = {
        "path": f"{host}.csv",
        "format": "made",
        "why": "made for a test",
        "columns": {},
        "rows_read": len(t_s),
        "rows_dropped": {},
        "gaps": gaps,
        "period_s": period_s if len(times) > 1 else None,
        "num_ticks": len(times),
        "is_relative": False,
        "is_aggregated": False,
        "power_kind": PowerKind.AVERAGE,
        "power_scope": PowerScope.GPU,
        "absent": {},
        "notes": (),
    }
    return Account(**{**plain, **changes})


def _hang(odd=None, act=WAIT):
    others = {f"gpu{odd}": HOST} if odd is not None else {}
    return everybody(act, 8, **others)


# Name -> phases of 8 GPUs.
COURSES = {
    "healthy training": [(600, everybody(WORK, 8))],
    "all ranks wait at 15 %": [
        (200, everybody(WORK, 8)),
        (300, _hang(act=Act(share=0.15, pct=100))),
    ],
    "all ranks wait at 22 %": [
        (200, everybody(WORK, 8)),
        (300, _hang(act=Act(share=0.22, pct=100))),
    ],
    "a recording of a hang alone": [(300, _hang())],
    "the report's hang": [
        (200, everybody(WORK, 8)),
        (300, everybody(Act(share=190 / 1100, pct=100), 8, gpu3=Act(share=190 / 1100, pct=0))),
    ],
    "a hang, killed": [(200, everybody(WORK, 8)), (300, _hang(odd=5)), (120, everybody(BARE, 8))],
    "a wedged pair": [(300, everybody(BARE, 8, gpu2=WEDGED, gpu5=WEDGED))],
    "a hang that leaves wedges": [
        (200, everybody(WORK, 8)),
        (200, _hang()),
        (200, everybody(WEDGED, 8)),
    ],
    "all throttled": [(200, everybody(WORK, 8)), (200, everybody(THROTTLED, 8))],
    "one throttled": [(300, everybody(WORK, 8, gpu6=THROTTLED))],
    "a dead rank": [(200, everybody(WORK, 8)), (200, everybody(WAIT, 8, gpu4=BARE))],
    "a GPU off the bus": [(200, everybody(WORK, 8)), (200, everybody(WAIT, 8, gpu4=GONE))],
    "a starving loader": [(600, everybody(STARVED, 8))],
    "saves of 15 s": [(100, everybody(WORK, 8)), (15, _hang(odd=0))] * 6
    + [(50, everybody(WORK, 8))],
    "a save of 30 min": [
        (200, everybody(WORK, 8)),
        (1800, _hang(odd=0)),
        (200, everybody(WORK, 8)),
    ],
    "a straggler": [(20, everybody(WORK, 8)), (20, everybody(WAIT, 8, gpu2=WORK))] * 10,
    "idle with a context": [(300, everybody(CONTEXT, 8))],
    "bare idle": [(300, everybody(BARE, 8))],
    "a slow start": [(300, _hang(odd=0)), (900, everybody(WORK, 8))],
}


def write_csv(stream, path):
    """The stream as ``nvidia-smi --query-gpu`` would have printed it."""
    columns = stream.columns
    header = (
        "timestamp, index, name, power.draw.average [W], enforced.power.limit [W],"
        " utilization.gpu [%], memory.used [MiB], clocks_event_reasons.active"
    )
    lines = [header]
    for row in range(len(columns["t_s"])):
        gpu = stream.gpus[columns["gpu"][row]]
        stamp = datetime.datetime.fromtimestamp(columns["t_s"][row], tz=datetime.UTC)
        reasons = "0x0000000000000040" if columns["throttled"][row] else "0x0000000000000000"
        lines.append(
            f"{stamp:%Y/%m/%d %H:%M:%S}.{stamp.microsecond // 1000:03d}, {gpu.index},"
            f" {gpu.name or 'NVIDIA H100 80GB HBM3'}, {columns['power_w'][row]:.2f} W,"
            f" {columns['limit_w'][row]:.2f} W, {columns['utilization_pct'][row]:.0f} %,"
            f" {columns['memory_used_bytes'][row] / 2**20:.0f} MiB, {reasons}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
