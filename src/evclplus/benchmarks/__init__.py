"""Where data comes from and how it becomes tasks."""

from evclplus.benchmarks.permuted import permuted_tasks
from evclplus.benchmarks.registry import BENCHMARKS, Benchmark, benchmark
from evclplus.benchmarks.sequence import tasks
from evclplus.benchmarks.split import split_tasks
from evclplus.benchmarks.task import Scenario, Stream, Task

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Scenario",
    "Stream",
    "Task",
    "benchmark",
    "permuted_tasks",
    "split_tasks",
    "tasks",
]
