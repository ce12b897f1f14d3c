"""Park and restore what a torch program holds on its devices, in place.

A park walks the storages behind parameters, gradients, buffers and optimizer state, copies each
once into anonymous host memory and resizes it to zero bytes; a restore resizes it back and copies
in. Tensors, views and ties stay the objects that they were, so neither the model nor the optimizer
notices, and every byte is what it was.

The host copies never come from torch's allocator: on a simulated device torch's CPU memory *is*
device memory. On CUDA the copies are plain ones from pageable memory, and nothing of it was run on
hardware yet. Addresses change there, which breaks captured graphs: a program that captures needs
torch-memory-saver instead.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from workload_agents.errors import ParkFailed, RestoreFailed

Held: TypeAlias = (
    torch.nn.Module
    | torch.optim.Optimizer
    | torch.Tensor
    | Iterable["Held"]
    | Callable[[], "Held"]
    | None
)
"""What can be held. A callable is asked at each park, say for an optimizer that comes later."""

PIECES = 8
"""A park tells so many times that it goes on; a restore ahead of the turn goes by storages."""

_BLOCK = 2 << 20
"""Bytes, the grain of torch's caching allocator on an accelerator. Not run on hardware yet."""

_ALIGNMENT = 64  # bytes: each host copy starts on its own cache line


@dataclass(frozen=True)
class _Parked:
    storage: torch.UntypedStorage
    size: int  # bytes
    offset: int  # bytes, in the arena

    @property
    def on_device(self) -> int:
        """At most so many bytes of its device once it is back."""
        return _in_grains(self.size, self.storage.device)


class TorchMemory:
    """The device memory of a torch program. Not thread-safe: a session makes one call at a time."""

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._parked: list[_Parked] = []
        self._taken = 0  # bytes of the devices that the last park left, and that came since
        self._arena = _Arena()

    def hold(self, *things: Held) -> None:
        """Adds modules, optimizers and tensors, or callables and iterables that give them.

        What is behind them is found anew at each park: gradients that came or went, the state that
        an optimizer creates in its first step. Memory that torch cannot resize (a file that
        safetensors mapped, a numpy array) is copied to memory of torch's own, here or at the park
        that first meets it; a tensor that is not held but shares such memory keeps the old bytes.
        Raises TypeError for what has no device memory that can be found.
        """
        for overlapping in _foreign(_tensors(things)):
            _adopt(overlapping)
        self._held.extend(things)

    def park(self, freed: Callable[[], None] = lambda: None, keep: int = 0) -> int:
        """Frees the held memory and returns how many bytes that was.

        `freed` is called each time that about another eighth of it is back, but not for the last.
        Storages that fit into `keep` bytes of the devices stay, the largest first: `taken` says how
        much that is.

        Raises ParkFailed, where host or device have no room for a copy for example. What was parked
        until then stays parked, and the next call goes on with the rest.
        """
        before = self._parked_bytes()
        try:
            storages, foreign = self._resident()
            # What is foreign needs the room for a moment.
            staying = [] if foreign else _that_fit(storages, keep)
            stay = {storage.data_ptr() for storage in staying}
            leaving = [storage for storage in storages if storage.data_ptr() not in stay]
            self._park_all(leaving, foreign, freed)
            _return_cached_blocks(storages)
            taken = sum(map(_on_device, staying)) + _stuck(staying)
            if taken > keep:
                self._park_all(staying, [], freed)
                _return_cached_blocks(storages)
                taken = 0
        except (OSError, RuntimeError, TypeError) as error:
            raise ParkFailed(
                f"torch memory: parked {self._parked_bytes()} bytes, then {_line(error)}; they stay"
                " parked, park again for the rest"
            ) from error
        self._taken = taken
        return self._parked_bytes() - before

    def restore(self) -> int:
        """Brings back what is parked and returns how many bytes that was.

        Raises RestoreFailed where the device has no room. What is back stays, the rest stays
        parked, and the next call goes on from there.
        """
        before = self._parked_bytes()
        while self._parked:
            self._restore_one()
        return before

    def restore_ahead(self, size: int) -> int:
        """Brings back what fits in `size` bytes, with what the park kept and all calls since.

        Returns how many bytes that was now. Raises RestoreFailed as `restore` does.
        """
        before = self._parked_bytes()
        while self._parked and (more := self._parked[-1].on_device) <= size - self._taken:
            self._restore_one()
            self._taken += more
        return before - self._parked_bytes()

    @property
    def taken(self) -> int:
        """Bytes of the devices, all together, that the last park left and that came back ahead."""
        return self._taken

    @property
    def resident(self) -> int:
        """Bytes of held memory that are on the devices now."""
        storages, foreign = self._resident()
        return sum(int(storage.nbytes()) for storage in storages) + sum(map(_extent, foreign))

    def _resident(self) -> tuple[list[torch.UntypedStorage], list[list[torch.Tensor]]]:
        tensors = list(_tensors(self._held))
        storages = {
            storage.data_ptr(): storage
            for storage in (tensor.untyped_storage() for tensor in tensors)
            if storage.nbytes() and storage.resizable()
        }
        return list(storages.values()), _foreign(tensors)

    def _restore_one(self) -> int:
        """Brings the newest storage back and returns its size in bytes."""
        parked = self._parked[-1]
        try:
            parked.storage.resize_(parked.size)
        except RuntimeError as error:
            raise RestoreFailed(
                f"torch memory: {self._parked_bytes()} bytes are still parked ({_line(error)});"
                " restore again when the device has room"
            ) from error
        _copy(self._arena.view(parked.offset, parked.size), to=_bytes(parked.storage))
        self._parked.pop()
        self._arena.give_back(parked.offset)
        return parked.size

    def _park_all(
        self,
        storages: list[torch.UntypedStorage],
        foreign: list[list[torch.Tensor]],
        freed: Callable[[], None],
    ) -> None:
        sizes = [storage.nbytes() for storage in storages] + [_extent(group) for group in foreign]
        self._arena.reserve(sum(map(_aligned, sizes)))
        piece, unsaid, left = sum(sizes) / PIECES, 0, sum(sizes)
        for storage in storages:
            size = self._park(storage)
            unsaid, left = unsaid + size, left - size
            # What is foreign needs room for a moment: nobody is to take it before.
            if unsaid >= piece and left and storage.device.type == "cpu" and not foreign:
                unsaid = 0
                freed()
        for group in foreign:  # last: each needs room on the device for a moment
            self._park(_adopt(group))

    def _park(self, storage: torch.UntypedStorage) -> int:
        size = int(storage.nbytes())
        offset = self._arena.take(size)
        _copy(_bytes(storage), to=self._arena.view(offset, size))
        storage.resize_(0)
        self._parked.append(_Parked(storage, size, offset))
        return size

    def _parked_bytes(self) -> int:
        return sum(parked.size for parked in self._parked)


class _Arena:
    """Host memory kept between parks: it grows to the largest one and then allocates no more.

    What is taken last is given back first.
    """

    def __init__(self) -> None:
        # Private, since the kernel backs a shared anonymous mapping by a file that does not grow.
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._used = 0

    def reserve(self, size: int) -> None:
        """Makes room for `size` bytes beside those taken. Raises OSError if the host has none."""
        if self._used + size > len(self._memory):
            self._memory.resize(self._used + size)

    def take(self, size: int) -> int:
        """The offset of `size` reserved bytes, which are the caller's until it gives them back."""
        offset = self._used
        self._used += _aligned(size)
        return offset

    def view(self, offset: int, size: int) -> torch.Tensor:
        """Bytes as uint8 of shape (size,). `reserve` moves the memory: drop the view before."""
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=offset)

    def give_back(self, offset: int) -> None:
        """All that was taken from this offset on."""
        self._used = offset


def _tensors(held: Held) -> Iterator[torch.Tensor]:
    """Every tensor with a storage behind `held`, gradients included, some of them repeatedly."""
    match held:
        case None:
            pass
        case torch.Tensor():
            yield from _plain(held)
            if held.is_leaf and held.grad is not None:
                yield from _plain(held.grad)
        case torch.nn.Module():
            yield from _tensors(held.parameters())
            yield from _tensors(held.buffers())
        case torch.optim.Optimizer():
            yield from _tensors(_tensors_inside(held.state))
            yield from _tensors(_tensors_inside(held.param_groups))
        case Iterable() if not isinstance(held, str | bytes):
            for thing in held:
                yield from _tensors(thing)
        case _ if callable(held):
            yield from _tensors(held())
        case _:
            raise TypeError(
                f"a {type(held).__name__} cannot be held: hold the module, optimizer or tensors"
                " that own the memory"
            )


def _tensors_inside(state: object) -> Iterator[torch.Tensor]:
    """The tensors in an optimizer's nested state, which has numbers and names beside them."""
    match state:
        case torch.Tensor():
            yield state
        case Mapping():
            yield from _tensors_inside(list(state.values()))
        case list() | tuple() | set() | frozenset():
            for value in state:
                yield from _tensors_inside(value)
        case _:
            pass


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage that a tensor is made of: as a rule itself."""
    if hasattr(tensor, "__tensor_flatten__"):  # DTensor and other wrappers keep it in inner tensors
        for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(part, torch.Tensor):  # a DTensor names its device mesh too
                yield from _plain(part)
    elif tensor.is_meta:
        pass
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        # The public `indices()` refuses a gradient that is not coalesced.
        yield from _parts(tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from _parts(tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from _parts(tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        raise TypeError(f"a tensor of layout {tensor.layout} shows no storage: convert it first")


def _parts(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # A sparse tensor hands out its parts as new objects: they cannot be pointed at other memory.
    if any(part.numel() and not part.untyped_storage().resizable() for part in parts):
        raise TypeError("a sparse tensor is in memory that torch cannot resize: clone it first")
    return parts


def _foreign(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors in memory that torch cannot resize, by address, grouped where they overlap."""
    unique = {
        id(tensor): tensor
        for tensor in tensors
        if tensor.numel() and not tensor.untyped_storage().resizable()
    }
    groups: list[list[torch.Tensor]] = []
    end = 0
    for tensor in sorted(unique.values(), key=torch.Tensor.data_ptr):
        if tensor.data_ptr() >= end:
            groups.append([])
        groups[-1].append(tensor)
        end = max(end, _end(tensor))
    return groups


def _adopt(group: list[torch.Tensor]) -> torch.UntypedStorage:
    """Moves a group of `_foreign` into one storage of torch's own, where it overlaps as before."""
    start = group[0].data_ptr()
    storage = torch.UntypedStorage(_extent(group), device=group[0].device)
    for tensor in group:
        offset, size = tensor.data_ptr() - start, _end(tensor) - tensor.data_ptr()
        if offset % tensor.element_size():
            raise TypeError(
                f"a {tensor.dtype} tensor overlaps another from byte {offset} on: clone one first"
            )
        old_offset = tensor.storage_offset() * tensor.element_size()
        _bytes(storage, offset, size).copy_(_bytes(tensor.untyped_storage(), old_offset, size))
    for tensor in group:
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = (tensor.data_ptr() - start) // tensor.element_size()
        # Setting `data` keeps the version counter: no value changes, so autograd need not know.
        tensor.data = view.set_(storage, offset, tensor.size(), tensor.stride())
    return storage


def _end(tensor: torch.Tensor) -> int:
    """The address behind the last byte of a strided tensor that is not empty."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return int(tensor.data_ptr() + (last + 1) * tensor.element_size())


def _extent(group: list[torch.Tensor]) -> int:
    return max(map(_end, group)) - int(group[0].data_ptr())


def _copy(source: torch.Tensor, *, to: torch.Tensor) -> None:
    """The bytes of one uint8 tensor to another as long; on one core torch's loop is a tenth slower
    than memcpy, which a simulated device would show as bandwidth."""
    if source.device.type == to.device.type == "cpu":
        ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        to.copy_(source)


def _bytes(storage: torch.UntypedStorage, offset: int = 0, size: int | None = None) -> torch.Tensor:
    """`size` bytes of a storage from `offset` on (all by default) as uint8 of shape (size,)."""
    length = storage.nbytes() - offset if size is None else size
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, offset, (length,), (1,))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _on_device(storage: torch.UntypedStorage) -> int:
    return _in_grains(int(storage.nbytes()), storage.device)


def _in_grains(size: int, device: torch.device) -> int:
    """A device gives whole pages or blocks."""
    grain = mmap.PAGESIZE if device.type == "cpu" else _BLOCK
    return -(-size // grain) * grain


def _that_fit(storages: Iterable[torch.UntypedStorage], size: int) -> list[torch.UntypedStorage]:
    """The largest first: on an accelerator small ones share the allocator's segments."""
    fit = []
    for storage in sorted(storages, key=_on_device, reverse=True):
        if (more := _on_device(storage)) <= size:
            fit.append(storage)
            size -= more
    return fit


def _stuck(storages: Iterable[torch.UntypedStorage]) -> int:
    """Bytes that the caching allocator cannot return since these are in their segments.

    Not run on hardware yet.
    """
    devices = {storage.device for storage in storages if storage.device.type != "cpu"}
    return sum(
        torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
        for device in devices
    )


def _return_cached_blocks(storages: Iterable[torch.UntypedStorage]) -> None:
    if any(storage.device.type != "cpu" for storage in storages):
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
