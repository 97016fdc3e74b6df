"""Many tiny tasks, a head for each as it comes: time per task, memory and the saved file.

Time is the processor's, of one thread: what else the machine does at the time does not count.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import evclplus as ec
from tools.scale.memory import resident

INPUTS, EXAMPLES = 16, 40


def measure(
    count: int = 1000, method: str = "ewc", epochs: int = 5, marks: int = 10
) -> dict[str, Any]:
    learner = ec.Learner(ec.networks.mlp(INPUTS, [32]), method, epochs=epochs, batch_size=20)
    generator = torch.Generator().manual_seed(0)
    seconds: list[float] = []
    rows: list[dict[str, Any]] = []
    each = max(1, count // marks)
    for head in range(count):
        x = torch.randn(EXAMPLES, INPUTS, generator=generator)
        task = ec.task(x, (x[:, head % INPUTS] > 0).long(), name=str(head), outputs=2, head=head)
        start = time.process_time()
        learner.learn(task)
        seconds.append(time.process_time() - start)
        if (head + 1) % each == 0:
            rows.append(
                {
                    "tasks": head + 1,
                    "weights": learner.q.layout.total,
                    "seconds_per_task": round(median(seconds[-each:]), 4),
                    "megabytes": round(resident("RssAnon") / 1e6, 1),
                    "file_kilobytes": round(_saved(learner) / 1e3, 1),
                }
            )
    return {"method": method, "epochs": epochs, "rows": rows}


def _saved(learner: ec.Learner) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = learner.save(Path(folder) / "learner")
        return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
