"""Write the packaged recording by phase: python tests/data/make_phase_recording.py.

Everything in it is made up, with a fixed seed: round figures that no GPU has, so that nobody takes
them for a measurement. The watts of a wait in a collective and of a wait for a save are the same on
purpose: watts cannot tell these apart, and a table must say so.
"""

from __future__ import annotations

import random
from pathlib import Path

PATH = Path(__file__).parents[2] / "harness" / "power" / "synthetic_phases.yaml"
LIMIT_W, PERIOD_S, NUM_SAMPLES = 1000.0, 0.1, 150
CONTEXT_BYTES = 1_000_000_000
HEAD = f"""\
# Made by tests/data/make_phase_recording.py; do not edit.
name: synthetic_phases
is_synthetic: true
provenance: synthetic recording, made up by a script; no GPU was measured
device: synthetic GPU (no hardware)
enforced_limit_w: {LIMIT_W}
period_s: {PERIOD_S}
sensor_average_s: 1.0
segments:
"""


def starved(number: int) -> bool:
    """Two bursts a second, of a tenth each."""
    return number % 5 == 0


def segments(rng: random.Random) -> dict[str, tuple[list[float], list[int], int]]:
    """Watts, utilization and memory held of each phase."""

    def steady(mean_w: float, spread_w: float) -> list[float]:
        return [round(rng.gauss(mean_w, spread_w), 1) for _ in range(NUM_SAMPLES)]

    full, none = [100] * NUM_SAMPLES, [0] * NUM_SAMPLES
    bursts = [starved(n) for n in range(NUM_SAMPLES)]
    bursty_w = [round(rng.gauss(800 if b else 150, 20), 1) for b in bursts]
    bursty_pct = [100 if b else 0 for b in bursts]
    return {
        "bare_idle": (steady(100, 2), none, 0),
        "context_idle": (steady(150, 3), none, CONTEXT_BYTES),
        "compute_burn": (steady(900, 15), full, 8 * CONTEXT_BYTES),
        "memory_burn": (steady(600, 15), full, 8 * CONTEXT_BYTES),
        "collective_wait": (steady(200, 4), full, 8 * CONTEXT_BYTES),
        "starved_loader": (bursty_w, bursty_pct, 8 * CONTEXT_BYTES),
        "blocking_save": (steady(200, 4), full, 8 * CONTEXT_BYTES),
    }


def flow(values: list[float] | list[int]) -> str:
    """A YAML list in lines of at most 100 characters."""
    lines, line = [], "     "
    for value in values:
        word = f" {value},"
        if len(line) + len(word) > 99:
            lines.append(line)
            line = "     "
        line += word
    return "\n".join(["[", *lines, line.removesuffix(",") + "]"])


def main() -> None:
    """Write the file."""
    text = HEAD
    for phase, (power_w, utilization_pct, memory_bytes) in segments(random.Random(2608)).items():
        text += f"  {phase}:\n    memory_used_bytes: {memory_bytes}\n"
        text += f"    power_w: {flow(power_w)}\n    utilization_pct: {flow(utilization_pct)}\n"
    PATH.write_text(text, encoding="ascii")
    print(PATH)


if __name__ == "__main__":
    main()
