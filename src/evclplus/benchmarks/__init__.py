"""Where data comes from and how it becomes tasks."""

from evclplus.benchmarks.bring import Brought, from_dataset, from_folder, from_huggingface
from evclplus.benchmarks.contact_sheet import contact_sheet
from evclplus.benchmarks.fetch import Fetched, fetch
from evclplus.benchmarks.loading import Arrays, dataset
from evclplus.benchmarks.local import Status, status
from evclplus.benchmarks.permuted import permuted_tasks
from evclplus.benchmarks.registry import BENCHMARKS, Benchmark, benchmark
from evclplus.benchmarks.rotated import rotated_tasks
from evclplus.benchmarks.sequence import task, tasks
from evclplus.benchmarks.split import split_tasks
from evclplus.benchmarks.task import Scenario, Stream, Task

__all__ = [
    "BENCHMARKS",
    "Arrays",
    "Benchmark",
    "Brought",
    "Fetched",
    "Scenario",
    "Status",
    "Stream",
    "Task",
    "benchmark",
    "contact_sheet",
    "dataset",
    "fetch",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "permuted_tasks",
    "rotated_tasks",
    "split_tasks",
    "status",
    "task",
    "tasks",
]
