"""What a comparison says, in a few plain sentences."""

from evclplus.core.metrics import Metric
from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.numbers import interval_of, percent, shown, with_unit
from evclplus.experiments.report.statistics import PairedDifference
from evclplus.methods import role_of


def headline(comparison: Comparison) -> list[str]:
    """The best method, how sure that is, and what the reference points are."""
    known = [row for row in comparison.rows if row.average.mean is not None]
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
    seeds = _counted(row.average.count, "seed")
    alone = len(comparison.rows) == 1
    verb = "reaches" if alone else "is best with"
    reached = f"{_of(row.metric)}{with_unit(row.metric, row.average.mean)}"
    return f"{row.label} {verb} {reached} after {tasks} ({seeds})."


def _against(ours: MethodRow, baseline: MethodRow, difference: PairedDifference) -> str:
    """Say which is ahead only where the seeds can tell."""
    if difference.mean is None or difference.interval is None:
        return (
            f"{ours.label} and {baseline.label}, the best baseline, share too few seeds to compare."
        )
    metric = ours.metric
    points = " points" if metric.unit == "%" else ""
    interval = f"95 % interval of the difference {interval_of(metric, difference.interval)}{points}"
    if 0.0 in difference.interval:
        pairs = _counted(difference.pairs, "seed")
        return (
            f"{pairs} cannot tell {ours.label} from {baseline.label}, the best baseline"
            f" ({interval})."
        )
    side = "above" if difference.mean > 0 else "below"
    apart = f"{shown(metric, abs(difference.mean))}{points}"
    found = f"{apart} {side}"
    if metric.higher_is_better:
        return f"{ours.label} is {found} {baseline.label}, the best baseline ({interval})."
    return (
        f"The {metric.title} of {ours.label} is {found} that of {baseline.label}, the best baseline"
        f" ({interval})."
    )


def _of(metric: Metric) -> str:
    """What comes before a number that its unit does not explain."""
    return "" if metric.unit else f"{metric.title} "


def _reference(row: MethodRow) -> str:
    if row.is_upper_bound:
        reached = f"{_of(row.metric)}{with_unit(row.metric, row.average.mean)}"
        return f"Joint training on all tasks, the upper bound, reaches {reached}."
    if role_of(row.method) == "lower bound":
        lost = row.spread("forgetting").mean
        if row.metric.unit == "%":
            return f"Plain fine-tuning forgets {percent(lost)} points."
        return f"With plain fine-tuning the {row.metric.title} rises by {shown(row.metric, lost)}."
    return ""


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
