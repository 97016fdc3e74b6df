"""What a comparison says, in a few plain sentences."""

from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.numbers import percent, percent_interval
from evclplus.experiments.report.statistics import PairedDifference
from evclplus.methods import role_of


def headline(comparison: Comparison) -> list[str]:
    """The best method, how sure that is, and what the reference points are."""
    known = [row for row in comparison.rows if row.accuracy.mean is not None]
    contenders = [row for row in known if not row.is_upper_bound]
    sentences = [_best(comparison, contenders[0])] if contenders else []
    ours = next((row for row in comparison.rows if row.is_ours), None)
    difference = comparison.against_baseline(ours) if ours else None
    if ours and comparison.baseline and difference:
        sentences.append(_against(ours, comparison.baseline, difference))
    sentences += [_reference(row) for row in known]
    return [sentence for sentence in sentences if sentence]


def _best(comparison: Comparison, row: MethodRow) -> str:
    tasks = _counted(comparison.task_count, "task")
    seeds = _counted(row.accuracy.count, "seed")
    alone = len(comparison.rows) == 1
    verb = "reaches" if alone else "is best with"
    return f"{row.label} {verb} {percent(row.accuracy.mean)} % after {tasks} ({seeds})."


def _against(ours: MethodRow, baseline: MethodRow, difference: PairedDifference) -> str:
    """Say which is ahead only where the seeds can tell."""
    if difference.mean is None or difference.interval is None:
        return (
            f"{ours.label} and {baseline.label}, the best baseline, share too few seeds to compare."
        )
    interval = f"95 % interval of the difference {percent_interval(difference.interval)} points"
    if 0.0 in difference.interval:
        pairs = _counted(difference.pairs, "seed")
        return (
            f"{pairs} cannot tell {ours.label} from {baseline.label}, the best baseline"
            f" ({interval})."
        )
    side = "above" if difference.mean > 0 else "below"
    points = percent(abs(difference.mean))
    return (
        f"{ours.label} is {points} points {side} {baseline.label}, the best baseline ({interval})."
    )


def _reference(row: MethodRow) -> str:
    if row.is_upper_bound:
        return (
            f"Joint training on all tasks, the upper bound, reaches {percent(row.accuracy.mean)} %."
        )
    if role_of(row.method) == "lower bound":
        return f"Plain fine-tuning forgets {percent(row.spread('forgetting').mean)} points."
    return ""


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
