"""The rivals' table in a page, between two marks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evclplus.errors import FileError
from evclplus.files import read_file, write_atomically

BEGIN, END = "<!-- rivals: make rivals -->", "<!-- rivals end -->"


def write_rivals(page: Path, measured: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Put the table where the marks are, and leave the rest of the page as it is."""
    before, begin, rest = read_file(page).decode().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FileError(f"{page} has no place for the table: a line {BEGIN} and a line {END}")
    table = rivals_table(measured["rivals"], environment)
    write_atomically(page, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def rivals_table(rows: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> str:
    lines = ["| rival | its epoch | our epoch | its / ours |", "|---|--:|--:|--:|"]
    for row in rows:
        name = f"{row['package']} {row['version'] or ''}".strip() + f", {row['what']}"
        theirs, ours = row["rival_ratio"], row["our_ratio"]
        if theirs is None or ours is None:
            lines.append(f"| {name} | not measured: {row['not_measured']} | | |")
        else:
            ratio = theirs / ours
            lines.append(f"| {name} | {theirs:.2f} | {row['ours']} {ours:.2f} | {ratio:.2f} |")
    made = ", ".join(f"{name} {environment.get(name)}" for name in ("evclplus", "commit", "torch"))
    threads = environment.get("threads")
    shown = "1 thread" if threads == 1 else f"{threads} threads"
    return "\n".join([*lines, "", f"*{made}; {shown}.*"])
