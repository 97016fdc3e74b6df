"""A stream that memory need not have room for: rows of bytes on disk, read while training."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evclplus as ec
from tools.scale.memory import most_of_its_own, resident

SHAPE = (3, 64, 64)
ROW = 3 * 64 * 64
CLASSES = 4
ROWS_WRITTEN_AT_ONCE = 8192


def write(path: Path, rows: int, seed: int) -> None:
    """Noise whose brightness says the class; row i has class i mod 4."""
    made = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(rows, *SHAPE))
    generator = np.random.default_rng(seed)
    for start in range(0, rows, ROWS_WRITTEN_AT_ONCE):
        part = made[start : start + ROWS_WRITTEN_AT_ONCE]
        noise = np.frombuffer(generator.bytes(part.size), dtype=np.uint8).reshape(part.shape)
        bright = (np.arange(start, start + len(part)) % CLASSES * 24).astype(np.uint8)
        part[:] = noise // 4 + bright[:, None, None, None]
    made.flush()


def measure(folder: Path, gigabytes: float = 20.0, tasks: int = 2) -> dict[str, Any]:
    """Writes the files, learns them in one epoch each, evaluates, removes them."""
    rows = max(CLASSES * 64, int(gigabytes * 1e9 / tasks / ROW))
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"scale-{number}.npy" for number in range(tasks)]
    found: list[dict[str, Any]] = []
    try:
        for number, path in enumerate(paths):
            write(path, rows, number)
        before = resident("RssAnon")
        network = ec.networks.mlp(ROW, [64])
        learner = ec.Learner(network, "evcl+", epochs=1, batch_size=256, learning_rate=1e-3)
        for number, path in enumerate(paths):
            found.append(_learned(learner, path, number))
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    total = tasks * rows * ROW
    return {"gigabytes": round(total / 1e9, 2), "before_megabytes": before // 10**6, "rows": found}


def _learned(learner: ec.Learner, path: Path, number: int) -> dict[str, Any]:
    x = np.load(path, mmap_mode="r")
    y = torch.arange(len(x)) % CLASSES
    tested = max(CLASSES, len(x) // 20)
    start = time.perf_counter()
    with most_of_its_own() as most:
        test = (x[-tested:], y[-tested:])
        task = ec.task(
            x[:-tested], y[:-tested], name=path.stem, outputs=CLASSES, head=number, test=test
        )
        made = time.perf_counter()
        learner.learn(task)
        learned = time.perf_counter()
        scores = learner.evaluate(task)
    return {
        "task": number + 1,
        "examples": len(x),
        "gigabytes": round(len(x) * ROW / 1e9, 2),
        "most_megabytes_of_its_own": most.bytes // 10**6,
        "megabytes_of_file_pages": resident("RssFile") // 10**6,
        "seconds_checking": round(made - start, 1),
        "seconds_learning": round(learned - made, 1),
        "accuracy": round(scores.average_accuracy, 3),
    }
