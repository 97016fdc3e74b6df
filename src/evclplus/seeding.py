"""One seed, one result: every random stream is derived from the seed and its purpose."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_GLOBAL_STATE = threading.RLock()


def derived_seed(seed: int, *purpose: object) -> int:
    """A seed for one purpose, such as the training of one task: nothing needs to be saved to
    go on later exactly as without a break."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: object, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(derived_seed(seed, *purpose))


@contextmanager
def own_random_state(
    seed: int, *purpose: object, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Modules that draw from torch's global state (dropout) draw from the seed here, and the
    global state is afterwards what it was. There is one such state, so threads take turns."""
    kind = torch.device(device)
    accelerators = [] if kind.type == "cpu" else [kind]
    with (
        _GLOBAL_STATE,
        torch.random.fork_rng(accelerators, device_type=kind.type if accelerators else "cuda"),
    ):
        torch.manual_seed(derived_seed(seed, *purpose))
        yield


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Where the numbers are that modules draw by themselves (dropout), by device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
