from __future__ import annotations

import mmap
from pathlib import Path

from hardpoint.node import Node


def test_a_table_of_procfs_longer_than_a_page_is_read_to_its_end() -> None:
    """fs/seq_file.c fills one page per read, so that one read of mountinfo is not all of it."""
    areas = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ) for _ in range(2)]

    text = Node().proc_text("self/smaps")

    assert len(text) > 3 * 4096
    assert text.rstrip().splitlines()[-1].startswith("VmFlags:")
    assert "[stack]" in text, "the last areas of every process"
    assert areas


def test_an_attribute_longer_than_a_page_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "devices/thing").mkdir(parents=True)
    (tmp_path / "devices/thing/long").write_text("x" * 9000 + "end\n")

    assert Node(sys=tmp_path).entry("devices/thing").text("long").endswith("xend")
