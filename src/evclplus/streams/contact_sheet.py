"""An overview of a stream: for every task, examples of each class as the network sees them."""

from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from evclplus.errors import DataError
from evclplus.files import write_atomically
from evclplus.streams.task import Stream, Task

MOST_TASKS = 20
IMAGES_PER_TASK = 20
SMALLEST_SIDE, LARGEST_SIDE = 56, 112
GAP = 4
TITLE = 20
PAPER = (255, 255, 255)
INK = (40, 40, 40)


def contact_sheet(stream: Stream, path: Path | str) -> Path:
    """Draw examples of every task (of the first twenty, if there are more) into a PNG file."""
    from PIL import Image, ImageDraw

    if not _is_image(stream.input_shape):
        raise DataError(
            f"inputs of the shape {stream.input_shape} are no images; a contact sheet needs"
            " (height, width) or 1 or 3 channels before them"
        )
    shown = stream.tasks[:MOST_TASKS]
    strips = [_strip(task) for task in shown]
    wide, high = _drawn_size(stream.input_shape)
    width = GAP + max(len(strip) for strip in strips) * (wide + GAP)
    height = len(strips) * (TITLE + high + GAP) + GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, (task, strip) in enumerate(zip(shown, strips, strict=True)):
        top = GAP + row * (TITLE + high + GAP)
        draw.text((GAP, top + 3), _title(task), fill=INK)
        for column, pixels in enumerate(strip):
            image = Image.fromarray(pixels.numpy()).resize((wide, high), Image.Resampling.NEAREST)
            sheet.paste(image, (GAP + column * (wide + GAP), top + TITLE))
    target = Path(path)
    content = BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(target, content.getvalue())
    return target


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def _drawn_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Width and height on the sheet: magnified by a whole number, so that pixels stay square."""
    height, width = shape[-2:]
    factor = max(1, SMALLEST_SIDE // max(height, width))
    shrink = min(1.0, LARGEST_SIDE / max(height, width))
    return max(1, round(width * factor * shrink)), max(1, round(height * factor * shrink))


def _title(task: Task) -> str:
    sizes = (
        f"{len(task.train):,} train, {len(task.validation):,} validation, {len(task.test):,} test"
    )
    return f"{task.index + 1}: {task.name}   ({sizes})"


def _strip(task: Task) -> Tensor:
    """Examples of each label side by side, as bytes (images, height, width, 3)."""
    labels = torch.unique(task.train.labels).tolist()
    each = max(1, IMAGES_PER_TASK // len(labels))
    chosen = [(task.train.labels == label).nonzero().squeeze(1)[:each] for label in labels]
    values = task.train.inputs(torch.cat(chosen)).float()
    low, high = float(values.min()), float(values.max())
    # The scaling is undone by stretching what is shown from black to white.
    pixels = ((values - low) * (255.0 / max(high - low, 1e-12))).round().to(torch.uint8)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    return pixels.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).contiguous()
