"""Every figure with its bound: ``python -m tests.bench`` or ``make bench``.

Each ``bench_*.py`` is a program that prints what it measured and ends with 1 where a bound of the
design is missed. Run it on a machine that is otherwise quiet.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run them one after the other; return 1 if one missed its bound."""
    missed = []
    for program in sorted(HERE.glob("bench_*.py")):
        sys.stdout.write(f"\n{program.stem}\n")
        sys.stdout.flush()
        if subprocess.run([sys.executable, str(program)], check=False).returncode:
            missed.append(program.stem)
    sys.stdout.write(f"\nmissed: {', '.join(missed) or 'none'}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
