"""Small damage to bytes, to JSON and to tensors."""

import random
from typing import Any

import torch
from torch import Tensor

NUMBERS = [b"0", b"-1", b"1e400", b"NaN", b"99999999999999999999", b"1.5", b'""', b"null", b"[]"]
VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 2**31, 2**70, 1.5, -0.0, 1e308, 1e39),
    *(float("nan"), float("inf"), "", "x", "../x", "\ud800", "\x1b[31m", "a" * 3000),
    *([], {}, [[]], [None], {"a": {}}, [0] * 50, [2**40, 2**40]),
]


def bytes_of(content: bytes, random: random.Random) -> bytes:
    """A few changes: bits, bytes, pieces that go, come, repeat or move."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        if not data:
            break
        at, to = sorted(random.randrange(len(data)) for _ in range(2))
        piece = data[at : min(to, at + 64)]
        kind = random.randrange(8)
        if kind == 0:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif kind == 2:
            del data[at : at + len(piece)]
        elif kind == 3:
            data[at:at] = piece * random.choice((1, 2, 100))
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at:at] = random.choice(NUMBERS)
        elif kind == 6:
            data[at : at + 4] = random.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
        else:
            data += random.randbytes(random.choice((1, 7, 64)))
    return bytes(data)


def tree_of(value: Any, random: random.Random) -> Any:
    """One part of plain data replaced, dropped, or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        kind = random.randrange(12)
        if kind == 0:
            return {name: one for name, one in value.items() if name != key}
        if kind == 1:
            return value | {random.choice(("x", "", "\x1b]0;", "kind", "__class__")): value[key]}
        return value | {key: tree_of(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.9:
        at, kind = random.randrange(len(value)), random.randrange(12)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return [*value, value[at]]
        return [*value[:at], tree_of(value[at], random), *value[at + 1 :]]
    if isinstance(value, float) and random.random() < 0.4:
        return value * random.choice((0.5, -1, 2, 1 + 1e-3, 1e30))
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.4:
        return value + random.choice((-1, 1, 10**6))
    return random.choice(VALUES)


def tensor_of(value: Tensor, random: random.Random) -> Tensor:
    """Another type, shape or number."""
    value = value.clone()
    kind = random.randrange(9)
    if kind == 0:
        return value.to(random.choice((torch.int64, torch.float64, torch.bool, torch.complex64)))
    if kind == 1:
        return value.flatten()[1:].clone()
    if kind == 2:
        return value[None]
    if kind == 3:
        return torch.zeros(())
    if kind == 4:
        return torch.cat([value.flatten(), value.flatten()])
    if value.numel() and value.dtype not in (torch.bool, torch.uint8):
        whole = (-1, 0, 10**6, 2**40)
        real = (float("nan"), float("inf"), -1.0, 0.0, 1e38, 1e-45)
        new = random.choice(real if value.is_floating_point() else whole)
        flat = value.flatten()
        flat[random.randrange(len(flat)) if kind < 7 else slice(None)] = new
        return flat.view(value.shape)
    return value
