"""Text from other people's records, made harmless for each format it is written in."""

import re
import string
import unicodedata

FORMULA_STARTS = "=+-@"
READABLE_IN_MARKDOWN = "+-,.()=/%'\";?"
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "`": r"\textquoteleft{}",
    '"': r"\textquotedblright{}",
    # After the end of a row these would be taken for an option of the line break.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "\N{MINUS SIGN}": "$-$",
    "±": r"$\pm$",
    "—": "---",
}


def plain(value: object) -> str:
    """One line without control, direction-changing or unencodable characters."""
    text = " ".join(str(value).split())
    return "".join("�" if unicodedata.category(letter)[0] == "C" else letter for letter in text)


def for_csv(value: object) -> str:
    """A spreadsheet must read the cell as text, not run it as a formula."""
    text = plain(value)
    # Spreadsheets also accept the full-width forms of the starting characters.
    start = unicodedata.normalize("NFKC", text)[:1]
    return f"'{text}" if start and start in FORMULA_STARTS else text


def for_markdown(value: object) -> str:
    """Backslashes before everything that could become markup, a cell's end or a link."""
    special = set(string.punctuation) - set(READABLE_IN_MARKDOWN)
    text = "".join(f"\\{letter}" if letter in special else letter for letter in plain(value))
    return re.sub(r"(?i)www\.", lambda match: match[0].replace(".", "\\."), text)


def for_latex(value: object) -> str:
    """Printable characters that every LaTeX has; others become a question mark."""
    return "".join(LATEX.get(letter) or _known_to_latex(letter) for letter in plain(value))


def _known_to_latex(letter: str) -> str:
    accented = unicodedata.normalize("NFD", letter)
    is_latin = len(accented) == 2 and accented[0].isascii() and ord(letter) < 0x100
    return letter if letter.isascii() or is_latin else "?"
