"""What must start fast and run without the train extra imports no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "accelerate")
CODE = """
import runpy, sys
module, heavy, sys.argv = sys.argv[1], sys.argv[2].split(","), sys.argv[2:]
code = 0
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
sys.stderr.write("found: " + ",".join(name for name in heavy if name in sys.modules))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "command",
    [
        ("harness", "--help"),
        ("harness", "experiment=scaling", "gpus=16", "plan=true"),
        ("harness", "experiment=smoke", "gpus=abc"),
        ("harness.node", "--help"),
        ("harness.power", "--help"),
        ("analysis.tables", "--results", "{tmp}", "--no-figures"),
        ("analysis.report", "--help"),
    ],
    ids=" ".join,
)
def test_torch_is_not_imported_by(command, tmp_path):
    module, *words = [word.replace("{tmp}", str(tmp_path)) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", CODE, module, ",".join(HEAVY), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == (2 if "gpus=abc" in words else 0), done.stderr
    assert done.stdout or done.returncode == 2
    assert done.stderr.endswith("found: ")
