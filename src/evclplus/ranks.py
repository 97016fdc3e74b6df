"""One model on several processes: which of them this is, and the sum of what all have found.

    torchrun --nproc-per-node=2 -m evclplus run ...

starts them and `joined` connects them. The state of this file is torch's own process group.
"""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from evclplus.errors import RanksError, SettingsError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for another: longer than a checkpoint or a first compilation takes."""

SECONDS_BETWEEN_LOOKS = 0.02


@dataclass(frozen=True)
class Ranks:
    """The processes that train one model together, and which of them this is."""

    rank: int = 0
    count: int = 1

    @property
    def writes(self) -> bool:
        """Whether this one writes files and says what there is to say."""
        return self.rank == 0

    def own(self, shards: int) -> range:
        """The shards of each batch that this process computes."""
        if shards % self.count or self.count & (self.count - 1):
            raise SettingsError(
                f"{self.count} processes cannot share {shards} shards of a batch: start 1, 2, 4, "
                "... processes, and set training.shards to as many or more"
            )
        each = shards // self.count
        return range(self.rank * each, (self.rank + 1) * each)

    def add_up(self, flat: Tensor) -> None:
        """Replace it by the sum over all processes, added up two by two: neighbours first, then
        pairs of them. A sum depends on that order, so no library's all-reduce will do.

        Each process sends half of what it has and adds up the other half, then a quarter, ...,
        until it has one part of the whole sum; the parts go back the same way. So it sends and
        receives no more than twice the vector, however many there are.
        """
        lengths: list[tuple[slice, int]] = []
        own = slice(0, len(flat))
        distance = 1
        while distance < self.count:
            partner, middle = self.rank ^ distance, (own.start + own.stop) // 2
            own, other = slice(own.start, middle), slice(middle, own.stop)
            if self.rank & distance:
                own, other = other, own
            theirs = torch.empty_like(flat[own])
            _exchange(flat[other], theirs, partner)
            flat[own] += theirs
            lengths.append((other, partner))
            distance *= 2
        for other, partner in reversed(lengths):
            _exchange(flat[own], flat[other], partner)
            own = slice(min(own.start, other.start), max(own.stop, other.stop))

    def gather(self, *values: int) -> list[tuple[int, ...]]:
        """Some numbers of every process. Nobody goes on before all have come here."""
        if self.count == 1:
            return [values]
        own = torch.tensor(values, dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self.count)]
        with _connected():
            dist.all_gather(every, own)
        return [tuple(one.tolist()) for one in every]

    def agree(self, what: str, *values: int) -> None:
        """All processes must have the same numbers here."""
        for rank, found in enumerate(self.gather(*values)):
            if found != values:
                raise RanksError(
                    f"{what} is not the same for process {rank} ({found}) and process {self.rank} "
                    f"({values}); all of them need the same settings, data and folder"
                )


ALONE = Ranks()


def _exchange(mine: Tensor, theirs: Tensor, partner: int) -> None:
    """Send and receive at once."""
    with _connected():
        both = [
            dist.P2POp(dist.isend, mine.contiguous(), partner),
            dist.P2POp(dist.irecv, theirs, partner),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()


@contextmanager
def _connected() -> Iterator[None]:
    """What goes wrong here is that another process has ended, or does not answer."""
    try:
        yield
    except RuntimeError as error:
        lines = (str(error).strip() or type(error).__name__).splitlines()
        reason = lines[0].rpartition("] ")[2].partition(". ")[0]  # not where in torch it was found
        raise RanksError(
            f"another process of this training has ended or does not answer ({reason:.100}); "
            "start all of them again to go on from the last checkpoint, or torchrun with "
            "--max-restarts"
        ) from None


def _meeting(store: "Store", rank: int, count: int, timeout: timedelta) -> str:
    """A name for this start of all processes, told by the first one.

    When torchrun starts them again the store still has the addresses of those that are gone
    (pytorch issue 135712), and how often each machine has started its own is not the same
    everywhere. So each asks with a word that nobody has used before.
    """
    word, until = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    if rank:
        store.set(f"evclplus/{rank}", word)
        name: str = store.get(f"evclplus/{word}").decode()
        store.add(f"evclplus/{name}", 1)
        return name
    while store.add(f"evclplus/{word}", 0) < count - 1:
        if time.monotonic() > until:
            raise RuntimeError("not all of them have come")
        for other in range(1, count):
            if store.check([f"evclplus/{other}"]):
                asked = store.get(f"evclplus/{other}").decode()
                store.set(f"evclplus/{asked}", word)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return word


def launched() -> bool:
    """Whether torchrun has started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def current() -> Ranks:
    """The processes that are connected with this one."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined(timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Connect with the other processes that torchrun has started; without it there are none.

    A process has one thread unless OMP_NUM_THREADS says otherwise, because numbers depend on how
    many there are.
    """
    if not launched():
        yield ALONE
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with _connected():
        store, rank, count = next(rendezvous("env://", timeout=timeout))
        own = PrefixStore(_meeting(store, rank, count, timeout), store)
        dist.init_process_group(store=own, rank=rank, world_size=count, timeout=timeout)
    try:
        yield current()
    finally:
        dist.destroy_process_group()
