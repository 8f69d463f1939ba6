"""Every figure with its bound: ``python -m bench [NAME …]`` or ``make bench``.

Each ``bench_*.py`` is a program that prints what it measured and ends with 1 where a bound of the
design is missed. All rows are written to ``build/bench.json`` too. Run it on a machine that is
otherwise quiet: the load is printed first, so that a figure can be judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OUTPUT = HERE.parents[1] / "build/bench.json"


def main(names: list[str]) -> int:
    """Run them one after the other; return 1 if one missed its bound."""
    missed = []
    sys.stdout.write(f"processors {os.cpu_count()}, load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows"
        rows.touch()
        for program in sorted(HERE.glob("bench_*.py")):
            name = program.stem.removeprefix("bench_")
            if names and name not in names:
                continue
            sys.stdout.write(f"\n{name}\n")
            sys.stdout.flush()
            command = [sys.executable, "-m", f"bench.{program.stem}"]
            environment = {**os.environ, "BENCH_ROWS": str(rows)}
            if subprocess.run(
                command, cwd=HERE.parents[1], env=environment, check=False
            ).returncode:
                missed.append(name)
        found = [json.loads(line) for line in rows.read_text().splitlines()]
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"\nmissed: {', '.join(missed) or 'none'}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
