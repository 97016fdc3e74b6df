"""Runs ideas on the development set and writes what they reached.

Scores are on validation data: the defaults were chosen by them, test data was not looked at.
Finished runs stay in results/development/records.jsonl, so a second call goes on.

    python -m tools.develop                          # every idea on every stream
    python -m tools.develop chosen finetune --cases digits letter-2
    python -m tools.develop --table                  # only write table.md again
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from evclplus.experiments.environment import environment
from evclplus.files import write_atomically
from tools.develop.ideas import GRID, IDEAS
from tools.develop.runs import run
from tools.develop.streams import CASES

FOLDER = Path("results/development")


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def accuracy(found: list[dict[str, Any]], what: str = "final") -> dict[tuple[str, str], float]:
    """Per cent by idea and stream, averaged over the seeds."""
    every: dict[tuple[str, str], list[float]] = {}
    for one in found:
        every.setdefault((one["idea"], one["case"]), []).append(100 * one[what])
    return {key: fmean(values) for key, values in every.items()}


def table(found: list[dict[str, Any]]) -> str:
    """A row per stream, then the score of each idea, in Markdown."""
    final, learning = accuracy(found), accuracy(found, "learning")
    complete = [case for case in CASES if all((idea, case) in final for idea in ("chosen", *GRID))]
    best = {case: max(GRID, key=lambda idea: final[idea, case]) for case in complete}
    commits = ", ".join(sorted({one["commit"] for one in found}))
    seeds = ", ".join(str(seed) for seed in sorted({one["seed"] for one in found}))
    lines = [
        "# The development set",
        "",
        f"Per cent on validation data; seed {seeds}; commit {commits}; `python -m tools.develop`.",
        "",
        "| stream | EVCL+ as it comes | it learned | fine-tuning learned | best of the grid | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for case in complete:
        lines.append(
            f"| {case}: {' '.join(CASES[case].about.split())} | {final['chosen', case]:.1f} "
            f"| {learning['chosen', case]:.1f} | {learning['finetune', case]:.1f} "
            f"| {final[best[case], case]:.1f} | {GRID[best[case]].about} |"
        )
    lines += [
        "",
        "Score: the mean over streams of the idea's accuracy minus that of the best point of the "
        "grid on that stream. The last column is the mean difference to EVCL+ as it comes on the "
        "streams that the idea was tried on.",
        "",
        "| idea | streams | score | difference |",
        "|---|--:|--:|--:|",
    ]
    for name, idea in IDEAS.items():
        tried = [case for case in complete if (name, case) in final]
        if tried:
            score = fmean(final[name, case] - final[best[case], case] for case in tried)
            change = fmean(final[name, case] - final["chosen", case] for case in tried)
            lines.append(f"| {idea.about} | {len(tried)} | {score:+.2f} | {change:+.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("ideas", nargs="*", default=list(IDEAS))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    file = chosen.out / "records.jsonl"
    chosen.out.mkdir(parents=True, exist_ok=True)
    done = {(one["idea"], one["case"], one["seed"]) for one in records(file)}
    known = environment()
    commit = f"{known['commit']}{'-dirty' if known['dirty'] else ''}"
    wanted = [
        (idea, case, seed)
        for seed in chosen.seeds
        for case in chosen.cases
        for idea in chosen.ideas
        if (idea, case, seed) not in done and not chosen.table
    ]
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, *one, commit) for one in wanted]
        for future in as_completed(futures):
            one = asdict(future.result())
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(one) + "\n")
            print(f"{one['idea']} {one['case']} {one['final']:.2%}, {one['seconds']} s", flush=True)
    text = table(records(file))
    write_atomically(chosen.out / "table.md", text)
    print(text)


if __name__ == "__main__":
    main()
