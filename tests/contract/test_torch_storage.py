"""Parking by storage swap, on real torch: nothing that a program can see may change."""

import copy
import hashlib
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from workload_agents.adapters.torch_storage import PIECES, Held, TorchMemory
from workload_agents.errors import ParkFailed, RestoreFailed


class Net(nn.Module):  # type: ignore[misc]
    """An embedding tied to the output, dropout, and a buffer that each step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.hidden = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(64, 50, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.hidden(self.embedding(tokens))))
        return self.output(self.dropout(hidden))


def contents(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A digest of every byte: parameters, gradients, buffers and the optimizer's state."""
    gradients = [one.grad for one in net.parameters() if one.grad is not None]
    states = [state for parameter in optimizer.state.values() for state in parameter.values()]
    digest = hashlib.sha256()
    for tensor in [*net.state_dict().values(), *gradients, *states]:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def train(step_ends: Callable[[nn.Module, torch.optim.Optimizer], None]) -> list[str]:
    """Five steps of AdamW with dropout and accumulated gradients; a digest after each."""
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, amsgrad=True)
    digests = []
    for step in range(5):
        tokens = torch.randint(50, (16,))
        nn.functional.cross_entropy(net(tokens), tokens).backward()
        step_ends(net, optimizer)  # with gradients alive
        if step % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step_ends(net, optimizer)  # with gradients gone, every other time
        digests.append(contents(net, optimizer))
    return digests


def test_training_with_parking_in_every_step_is_bit_for_bit_the_same() -> None:
    memories: list[TorchMemory] = []

    def park_and_restore(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not memories:
            memories.append(TorchMemory())
            memories[0].hold(net, lambda: optimizer)
        memory, random_state = memories[0], torch.get_rng_state()
        resident = memory.resident
        assert memory.park() == resident > 0
        assert memory.resident == 0
        assert all(one.untyped_storage().nbytes() == 0 for one in net.state_dict().values())
        assert memory.restore() == resident
        assert torch.equal(torch.get_rng_state(), random_state)

    assert train(park_and_restore) == train(lambda _net, _optimizer: None)


def test_state_that_an_optimizer_creates_later_is_parked_too() -> None:
    net = Net()
    optimizers: list[torch.optim.Optimizer] = []
    memory = TorchMemory()
    memory.hold(net, lambda: optimizers)
    without = memory.park()
    memory.restore()
    optimizers.append(torch.optim.AdamW(net.parameters()))
    net(torch.arange(50)).sum().backward()
    optimizers[0].step()
    gradients = sum(one.grad.nbytes for one in net.parameters() if one.grad is not None)
    moments = 2 * sum(one.nbytes for one in net.parameters())
    assert memory.park() >= without + gradients + moments
    memory.restore()
    optimizers[0].zero_grad(set_to_none=True)
    assert memory.park() == memory.restore() >= without + moments


def test_aliases_views_and_ties_hold_and_a_shared_storage_is_parked_once() -> None:
    net = Net()
    view = net.embedding.weight.detach()[10:20]
    memory = TorchMemory()
    memory.hold(net, net.embedding.weight, [view])
    unique = {one.data_ptr(): one.nbytes for one in net.state_dict().values()}
    assert memory.park() == sum(unique.values())
    memory.restore()
    assert net.output.weight is net.embedding.weight
    with torch.no_grad():
        net.output.weight.fill_(7.0)
    assert torch.equal(view, torch.full((10, 64), 7.0))


def test_sparse_gradients_and_storages_of_no_bytes() -> None:
    embedding = nn.Embedding(1000, 32, sparse=True, padding_idx=0)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    reference = copy.deepcopy(embedding)
    reference_optimizer = torch.optim.SparseAdam(reference.parameters())
    memory = TorchMemory()
    memory.hold(embedding, optimizer, torch.empty(0))
    for batch in ([5, 5, 900], [0, 0], [5, 0]):  # repeated tokens, then nothing but padding
        for module, its_optimizer in (
            (embedding, optimizer),
            (reference, reference_optimizer),
        ):
            module(torch.tensor(batch)).pow(2).sum().backward()
            if module is embedding:
                gradient = embedding.weight.grad
                assert gradient is not None
                parked = memory.park()
                assert gradient._values().untyped_storage().nbytes() == 0
                assert gradient._indices().untyped_storage().nbytes() == 0
                assert memory.restore() == parked
            its_optimizer.step()
            its_optimizer.zero_grad()
        assert torch.equal(embedding.weight, reference.weight)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_sparse_tensors_that_are_held_themselves(layout: torch.layout) -> None:
    dense = torch.zeros(20, 30).index_put_(
        (torch.tensor([3, 7]), torch.tensor([1, 2])), torch.ones(2)
    )
    sparse = dense.to_sparse(layout=layout)
    memory = TorchMemory()
    memory.hold(sparse)
    assert memory.park() == memory.restore() > 0
    assert torch.equal(sparse.to_dense(), dense)


def test_a_frozen_reference_model_and_a_module_left_on_meta() -> None:
    policy, reference = Net(), Net().requires_grad_(requires_grad=False)
    reference.hidden.to("meta")
    before = {name: one.clone() for name, one in reference.state_dict().items()}
    memory = TorchMemory()
    memory.hold(policy, lambda: reference)
    memory.park()
    storages = [one.untyped_storage() for one in reference.parameters() if not one.is_meta]
    assert storages
    assert all(storage.nbytes() == 0 for storage in storages)
    memory.restore()
    for name, one in reference.state_dict().items():
        assert one.is_meta or torch.equal(one, before[name])


def test_wrapper_subclasses_are_parked_by_their_inner_tensors() -> None:
    from torch.distributed import HashStore, destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        sharded = distribute_tensor(torch.arange(4096.0), init_device_mesh("cpu", (1,)), [Shard(0)])
        memory = TorchMemory()
        memory.hold(sharded)
        assert memory.park() >= 4096 * 4
        memory.restore()
        assert torch.equal(sharded.to_local(), torch.arange(4096.0))
    finally:
        destroy_process_group()


def test_memory_mapped_by_safetensors_becomes_memory_that_is_freed(
    tmp_path: Path,
) -> None:
    save_file({"a": torch.arange(4096.0), "b": torch.ones(3)}, tmp_path / "model.safetensors")
    loaded = load_file(tmp_path / "model.safetensors")
    parameter = nn.Parameter(loaded["a"])
    (parameter * 2).sum().backward()
    assert not parameter.untyped_storage().resizable()
    memory = TorchMemory()
    memory.hold(parameter, lambda: loaded["b"])  # one found at once, the other at the park
    assert parameter.untyped_storage().resizable()
    assert memory.park() == 2 * 4096 * 4 + 3 * 4
    assert parameter.untyped_storage().nbytes() == 0
    memory.restore()
    assert torch.equal(parameter.detach(), torch.arange(4096.0))
    assert torch.equal(loaded["b"], torch.ones(3))


def test_tensors_over_the_same_foreign_memory_still_share_it() -> None:
    array = np.arange(100, dtype=np.float32)
    whole, part = torch.from_numpy(array), torch.from_numpy(array[10:20])
    transposed = torch.from_numpy(array).view(10, 10).t()
    memory = TorchMemory()
    memory.hold([whole, part], transposed)
    assert memory.park() == 400
    memory.restore()
    whole[15] = -1.0
    assert part[5] == -1.0
    assert transposed[5, 1] == -1.0
    assert array[15] == 15.0  # numpy keeps its own


@pytest.fixture
def net_and_memory() -> tuple[Net, TorchMemory]:
    net = Net()
    memory = TorchMemory()
    memory.hold(net)
    return net, memory


def test_a_restore_without_room_goes_on_when_there_is_room(
    net_and_memory: tuple[Net, TorchMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    parked = memory.park()
    attempts = {"left": 2}

    def without_room(storage: torch.UntypedStorage, size: int) -> None:
        if size and not attempts["left"]:
            size = 1 << 60  # the allocator's own error, as from a device that is full
        attempts["left"] -= 1
        torch._C.StorageBase.resize_(storage, size)

    with monkeypatch.context() as patch:
        patch.setattr(torch.UntypedStorage, "resize_", without_room)
        with pytest.raises(RestoreFailed, match=r"bytes are still parked.*can't allocate memory"):
            memory.restore()
    resident = memory.resident
    assert 0 < resident < parked
    assert memory.restore() == parked - resident
    assert memory.resident == parked
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_a_failed_restore_may_be_followed_by_a_park(
    net_and_memory: tuple[Net, TorchMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    parked = memory.park()
    sizes: list[int] = []

    def full_after_two(storage: torch.UntypedStorage, size: int) -> None:
        sizes.append(size)
        torch._C.StorageBase.resize_(storage, size if len(sizes) <= 2 else 1 << 60)

    with monkeypatch.context() as patch:
        patch.setattr(torch.UntypedStorage, "resize_", full_after_two)
        with pytest.raises(RestoreFailed):
            memory.restore()
    assert memory.park() == sum(sizes[:2])
    assert memory.resident == 0
    assert memory.restore() == parked
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_what_fits_is_restored_ahead_and_the_rest_later(
    net_and_memory: tuple[Net, TorchMemory],
) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    parked = memory.park()
    first = memory.restore_ahead(parked // 2)
    assert 0 < first <= parked // 2
    assert memory.resident == first
    assert memory.restore_ahead(parked // 2) == 0  # in all calls together
    second = memory.restore_ahead(parked - 1)
    assert first + second < parked
    assert memory.restore() == parked - first - second
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_what_was_restored_ahead_is_parked_again_without_new_host_memory(
    net_and_memory: tuple[Net, TorchMemory],
) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    parked = memory.park()
    mappings = mapped()
    for _ in range(3):
        ahead = memory.restore_ahead(parked // 2)
        assert memory.park() == ahead > 0
    assert mapped() == mappings
    assert memory.restore() == parked
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_a_park_tells_how_it_goes_on(net_and_memory: tuple[Net, TorchMemory]) -> None:
    _, memory = net_and_memory
    left: list[int] = []
    whole = memory.resident
    memory.park(lambda: left.append(memory.resident))
    assert 1 < len(left) <= PIECES
    assert left == sorted(left, reverse=True)
    assert left[0] < whole


def test_the_end_of_a_park_is_told_by_what_follows_it() -> None:
    memory, size = TorchMemory(), 1 << 20
    memory.hold([torch.zeros(size, dtype=torch.uint8) for _ in range(PIECES)])
    left: list[int] = []
    memory.park(lambda: left.append(memory.resident))
    assert left == [size * n for n in range(PIECES - 1, 0, -1)]


def test_a_park_that_finds_no_host_memory_loses_nothing(
    net_and_memory: tuple[Net, TorchMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    resident = memory.resident
    copies: list[int] = []
    real = torch.frombuffer

    def fails_at_the_third(*args: object, **kwargs: object) -> torch.Tensor:
        copies.append(1)
        if len(copies) == 3:
            raise OSError(12, "Cannot allocate memory")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "frombuffer", fails_at_the_third)
        with pytest.raises(ParkFailed, match="Cannot allocate memory"):
            memory.park()
    assert 0 < memory.resident < resident
    rest = memory.resident
    assert memory.park() == rest
    assert memory.restore() == resident
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_later_parks_take_no_new_host_memory() -> None:
    memory = TorchMemory()
    memory.hold(torch.ones(1 << 16))
    memory.park()
    memory.restore()
    mappings = mapped()
    for _ in range(3):
        memory.park()
        memory.restore()
    assert mapped() == mappings


def mapped() -> int:
    """Bytes of this process's address space, to the page."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE


@pytest.mark.parametrize("thing", ["a name", 3, torch.ones(2).to_mkldnn()])
def test_what_has_no_memory_to_find_is_refused(thing: Held) -> None:
    with pytest.raises(TypeError, match=r"cannot be held|shows no storage"):
        TorchMemory().hold(thing)


def test_what_may_stay_stays_the_largest_first(net_and_memory: tuple[Net, TorchMemory]) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    whole = memory.resident
    keep = whole // 2
    parked = memory.park(keep=keep)
    assert memory.resident == whole - parked
    assert 0 < memory.resident <= memory.taken <= keep
    largest = max(one.untyped_storage().nbytes() for one in net.parameters())
    assert memory.resident >= min(keep, largest)
    assert memory.park(keep=memory.taken) == 0  # said again
    assert memory.restore_ahead(memory.taken) == 0  # what was kept counts
    assert memory.restore_ahead(whole - 1) > 0
    assert memory.park() == memory.taken or memory.resident == 0
    assert memory.restore() == whole
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_what_was_kept_is_parked_later_and_all_comes_back(
    net_and_memory: tuple[Net, TorchMemory],
) -> None:
    net, memory = net_and_memory
    before = {name: one.clone() for name, one in net.state_dict().items()}
    whole = memory.resident
    for keep in (whole // 2, whole // 3, 0):
        memory.park(keep=keep)
        assert memory.resident <= memory.taken <= keep
    assert memory.resident == memory.taken == 0
    assert memory.restore() == whole
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())
