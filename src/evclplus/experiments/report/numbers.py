"""Numbers as people read them; a dash where there is none."""

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


def p_value(value: float | None) -> str:
    if value is not None and value < 0.001:
        return "< 0.001"
    return number(value, 3)
