"""Tables read back by the parsers of their formats, with text that tries to break out."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import comparisons_of
from evclplus.experiments.report.escape import for_csv, for_latex, for_markdown, plain
from evclplus.experiments.report.numbers import DASH, p_value, percent, signed_percent
from evclplus.experiments.report.tables import TOO_FEW_PAIRS, baseline_table, results_table
from evclplus.experiments.report.terminal import terminal_table
from evclplus.experiments.report.writers import to_csv, to_latex, to_markdown
from tests.experiments.report.record_factory import full_comparison, make_record

HOSTILE = [
    "=HYPERLINK(1)",
    "a | b \\| c",
    "`x` *y* _z_ ~~q~~ [l](http://e.org) ![i](x) <img src=x> www.e.org a@e.org",
    "\\input{secret} $x$ & 50% #1 ~^{}",
    "[2cm] * ]",
    "two\nlines\r\n\tand \x1b[31mcolour\u202e",
    "\U0001f600 µ 日本 é",
    "'@SUM(1)",
]


def hostile_records() -> list[Record]:
    return [
        make_record(name, seed, notes=[f"note {name}"]) for name in HOSTILE for seed in range(2)
    ]


def read_csv(records: list[Record]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(comparisons_of(records)))))


def test_csv_holds_the_numbers() -> None:
    records = full_comparison()
    lines = {line["method"]: line for line in read_csv(records)}
    vcl = [record for record in records if record.method == "vcl"]
    assert len(lines) == 10
    assert float(lines["vcl"]["average_accuracy_percent"]) == pytest.approx(
        100 * sum(record.average for record in vcl) / 3, rel=1e-5
    )
    assert float(lines["vcl"]["average_negative_log_likelihood"]) == pytest.approx(
        sum(record.average_negative_log_likelihood for record in vcl) / 3, rel=1e-5
    )
    assert lines["joint"]["role"] == "upper bound"
    assert lines["evcl"]["role"] == "best baseline"
    assert lines["evcl"]["pairs"] == ""
    assert lines["ewc"]["pairs"] == "3"


def test_csv_runs_no_formula() -> None:
    for line in read_csv(hostile_records()):
        for key in ("benchmark", "method", "best_baseline", "notes"):
            assert line[key][:1] not in ("=", "+", "-", "@", "\t", "\r")
            assert "\n" not in line[key]
    assert for_csv("＝1+1") == "'＝1+1"  # noqa: RUF001 - the full-width sign is the point
    assert for_csv("  -1") == "'-1"
    assert for_csv("evcl+") == "evcl+"


class TextOfCells(HTMLParser):
    """Rows of cell texts, and every tag seen."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_markdown_reads_back() -> None:
    source = to_markdown(comparisons_of(hostile_records()))
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(source)
    parser = TextOfCells()
    parser.feed(html)
    assert parser.tags <= {
        *("h1", "h2", "p", "ul", "li", "sup", "strong"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    assert {len(row) for row in parser.rows} == {12, 5}
    first_cells = " ".join(row[0] for row in parser.rows)
    for name in HOSTILE:
        assert plain(name) in first_cells


@pytest.mark.parametrize("text", ["http://e.org", "www.e.org", "WWW.e.org", "a@e.org"])
def test_markdown_makes_no_links(text: str) -> None:
    assert not re.search(r"[^\\]://|(?i:www\.)|[^\\]@", for_markdown(text))


def test_latex_is_balanced_and_runs_no_command() -> None:
    source = to_latex(comparisons_of(hostile_records()))
    ours = r"begin|end|centering|footnotesize|scriptsize|setlength|tabcolsep|caption|resizebox|par"
    ours += r"|ifdim|width|linewidth|else|fi|toprule|midrule|bottomrule|textbf|textsuperscript|pm"
    ours += r"|textbackslash|textasciicircum|textasciitilde|textquoteleft|textquotedblright"
    ours += r"|usepackage"
    commands = set(re.findall(r"\\([a-zA-Z]+)", source))
    assert commands <= set(ours.split("|"))
    bare = re.sub(r"\\[^a-zA-Z]", "", source)  # without escaped characters and line breaks
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    body = re.findall(r"\\midrule\n(.*?)\n\\bottomrule", source, flags=re.DOTALL)
    columns = {len(re.findall(r"(?<!\\)&", line)) + 1 for rows in body for line in rows.split("\n")}
    assert columns == {12, 5}
    assert source.encode("latin-1")


def test_latex_escapes_every_special_character() -> None:
    assert for_latex("50% & #1_a") == r"50\% \& \#1\_a"
    assert for_latex("\\input{x}") == r"\textbackslash{}input\{x\}"
    assert for_latex("日é") == "?é"


def test_one_seed_shows_dashes_and_no_numbers_in_their_place() -> None:
    (comparison,) = comparisons_of([make_record("evcl+"), make_record("vcl")])
    table = results_table(comparison)
    spread_columns = [table.headings.index(name) for name in ("SD", "95 % interval")]
    for row in table.rows:
        assert [row[column].text for column in spread_columns] == [DASH, DASH]
        assert all(cell.detail == "" for cell in row)
    against = baseline_table(comparison)
    assert against is not None
    assert [cell.text for cell in against.rows[0]] == ["evcl+", TOO_FEW_PAIRS, DASH, DASH, "1"]
    line = read_csv([make_record("evcl+")])[0]
    assert line["average_accuracy_percent_sd"] == ""
    assert line["difference_percent"] == ""


def test_the_best_value_is_bold_and_the_upper_bound_does_not_compete() -> None:
    scores = {"joint": 0.99, "evcl+": 0.95, "vcl": 0.95, "ewc": 0.9}
    forgotten = {"joint": 0.02, "evcl+": 0.03, "vcl": 0.04, "ewc": 0.02}
    records = [
        make_record(name, average_accuracy=score, forgetting=forgotten[name])
        for name, score in scores.items()
    ]
    (comparison,) = comparisons_of(records)
    table = results_table(comparison)
    bold = [
        {row[0].text for row in table.rows if row[table.headings.index(heading)].is_best}
        for heading in ("Accuracy (%)", "Forgetting (%)")
    ]
    assert bold == [{"evcl+", "vcl"}, {"ewc"}]


def test_notes_stand_beside_every_table() -> None:
    note = "the test images were also trained on"
    comparisons = comparisons_of([make_record("vcl", notes=[note]), make_record("ewc")])
    assert f"<sup>1</sup> {note}" in to_markdown(comparisons)
    assert rf"\textsuperscript{{1}} {note}" in to_latex(comparisons)
    assert "vcl <sup>1</sup> |" in to_markdown(comparisons)
    assert "ewc <sup>" not in to_markdown(comparisons)
    assert "ewc (best baseline) |" in to_markdown(comparisons)


def test_numbers_are_readable() -> None:
    assert percent(-0.00001) == "0.00"
    assert percent(-0.5) == "\N{MINUS SIGN}50.00"
    assert percent(1e300) == "1.00e+302"
    assert signed_percent(0.01) == "+1.00"
    assert signed_percent(0.00001) == "0.00"
    assert [p_value(0.0004), p_value(0.03), p_value(None)] == ["< 0.001", "0.030", DASH]


def printed(records: list[Record]) -> str:
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(terminal_table(records))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terminal_has_the_rows_of_the_csv() -> None:
    records = full_comparison()
    lines = printed(records).splitlines()
    assert max(map(len, lines)) <= 80
    starts = [line.split()[0] for line in lines if " ± " in line]
    assert starts == [line["method"] for line in read_csv(records)]


def test_terminal_runs_no_markup_and_no_control_characters() -> None:
    text = printed([make_record("[bold]x[/]", notes=["\x1b[2J[red]note"])])
    assert "[bold]x[/] [1]" in text
    assert "[red]note" in text
    assert "\x1b" not in text
