"""Numbers as people read them; a dash where there is none."""

from evclplus.core.metrics import Metric
from evclplus.experiments.report.statistics import Interval

DASH = "—"
MINUS = "\N{MINUS SIGN}"
LARGEST_WRITTEN_OUT = 1e5


def number(value: float | None, decimals: int) -> str:
    if value is None:
        return DASH
    if abs(value) >= LARGEST_WRITTEN_OUT:
        return f"{value:.2e}".replace("-", MINUS)
    # Adding zero turns a rounded negative zero into zero.
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", MINUS)


def percent(fraction: float | None) -> str:
    """A fraction in per cent or percentage points, without the sign."""
    return number(None if fraction is None else 100 * fraction, 2)


def signed_percent(fraction: float | None) -> str:
    text = percent(fraction)
    return f"+{text}" if fraction is not None and float(text.replace(MINUS, "-")) > 0 else text


def percent_interval(interval: Interval | None) -> str:
    return DASH if interval is None else f"[{percent(interval.low)}, {percent(interval.high)}]"


# Of a metric: in per cent, or as it is.


def scale(metric: Metric) -> float:
    return 100.0 if metric.unit == "%" else 1.0


def shown(metric: Metric, value: float | None) -> str:
    return percent(value) if metric.unit == "%" else number(value, 3)


def with_unit(metric: Metric, value: float | None) -> str:
    return f"{shown(metric, value)} {metric.unit}".rstrip()


def signed(metric: Metric, value: float | None) -> str:
    text = shown(metric, value)
    return f"+{text}" if value is not None and float(text.replace(MINUS, "-")) > 0 else text


def interval_of(metric: Metric, interval: Interval | None) -> str:
    if interval is None:
        return DASH
    return f"[{shown(metric, interval.low)}, {shown(metric, interval.high)}]"


def heading(metric: Metric) -> str:
    """With its unit, as it begins a line."""
    title = f"{metric.title[0].upper()}{metric.title[1:]}"
    return f"{title} ({metric.unit})" if metric.unit else title


def p_value(value: float | None) -> str:
    if value is not None and value < 0.001:
        return "< 0.001"
    return number(value, 3)
