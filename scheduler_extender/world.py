"""The cluster as it was last told: tables of views, and what is asked of them together."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from scheduler_extender import objects
from scheduler_extender.ledger import Ledger
from scheduler_extender.objects import Allocated, Claim, Device, Malformed, Node, Pod, Raw, Slice
from scheduler_extender.placement import Room

log = logging.getLogger(__name__)

_View = TypeVar("_View")


class Table(Generic[_View]):
    """Views of one kind of object by their key. `changed` is told of each change: old and new."""

    def __init__(
        self,
        read: Callable[[Raw], _View],
        key: Callable[[_View], str],
        changed: Callable[[_View | None, _View | None], None],
    ) -> None:
        self._read = read
        self._key = key
        self._changed = changed
        self.views: dict[str, _View] = {}
        self.listed = False

    def replace(self, raws: Iterable[Raw]) -> None:
        """Take over a list: what is not in it is gone."""
        first, self.listed = not self.listed, True
        listed = {self._key(view): view for raw in raws if (view := self._view(raw)) is not None}
        for key in self.views.keys() - listed.keys():
            self._set(key, None)
        for key, view in listed.items():
            self._set(key, view)
        if first:
            self._changed(None, None)

    def put(self, raw: Raw) -> None:
        """Take over an object that is new or was changed."""
        if (view := self._view(raw)) is not None:
            self._set(self._key(view), view)

    def drop(self, raw: Raw) -> None:
        """Forget an object that is gone."""
        if (view := self._view(raw)) is not None:
            self._set(self._key(view), None)

    def _view(self, raw: Raw) -> _View | None:
        try:
            return self._read(raw)
        except Malformed as exc:
            metadata = raw.get("metadata") or {}
            log.error("%s/%s: %s", metadata.get("namespace", ""), metadata.get("name"), exc)
            return None

    def _set(self, key: str, view: _View | None) -> None:
        former = self.views.get(key)
        if former == view:
            return
        if view is None:
            del self.views[key]
        else:
            self.views[key] = view
        self._changed(former, view)


class World:
    """Pods by UID, nodes and slices by name, claims by `namespace/name`.

    `changed` is called after each change that a decision could depend on.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._on_node: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        self._tenants: dict[str, Pod] = {}
        self._allocated: dict[str, list[Allocated]] | None = None
        self._devices: dict[str, tuple[Device, ...]] | None = None
        self.pods = Table[Pod](objects.pod, lambda pod: pod.uid, self._pod_changed)
        self.nodes = Table[Node](objects.node, lambda node: node.name, self._node_changed)
        self.claims = Table[Claim](objects.claim, lambda claim: claim.key, self._claim_changed)
        self.slices = Table[Slice](objects.slice, lambda one: one.name, self._slice_changed)

    @property
    def listed(self) -> bool:
        """Whether every table has been filled once: nothing is decided on before."""
        tables = (self.pods, self.nodes, self.claims, self.slices)
        return all(table.listed for table in tables)

    @property
    def tenants(self) -> Mapping[str, Pod]:
        """The pods that have a role, by UID."""
        return self._tenants

    def claims_of(self, pods: Iterable[Pod]) -> dict[str, Claim]:
        """The claims that these pods refer to and that exist, by key."""
        keys = (key for pod in pods for key in pod.claim_keys)
        return {key: self.claims.views[key] for key in keys if key in self.claims.views}

    def room(self, node: Node, ledger: Ledger, besides: Iterable[Pod]) -> Room:
        """What is on the node or promised to be, besides these pods and their claims."""
        out = {pod.uid: pod for pod in besides}
        coming = [
            one.pod for one in ledger.promises() if one.node == node.name and one.pod.uid not in out
        ]
        present = [pod for uid, pod in self._on_node[node.name].items() if uid not in out]
        devices = self._devices_of(node.name)
        own = self.claims_of(out.values())
        promised = {
            key: claim
            for key, claim in self.claims_of(coming).items()
            if claim.allocation is None and key not in own
        }
        return Room(
            node=node,
            pods=(*present, *coming),
            devices=devices,
            allocated=tuple(
                one for pool in {d.pool for d in devices} for one in self._allocated_of(pool)
            ),
            promised=tuple(promised.values()),
        )

    def _devices_of(self, node: str) -> tuple[Device, ...]:
        if self._devices is None:
            newest: dict[str, int] = {}
            for one in self.slices.views.values():
                newest[one.pool] = max(newest.get(one.pool, 0), one.generation)
            found: dict[str, tuple[Device, ...]] = {}
            for one in sorted(self.slices.views.values(), key=lambda one: one.name):
                if one.generation == newest[one.pool]:
                    found[one.node] = found.get(one.node, ()) + one.devices
            self._devices = found
        return self._devices.get(node, ())

    def _allocated_of(self, pool: str) -> list[Allocated]:
        if self._allocated is None:
            self._allocated = {}
            for claim in self.claims.views.values():
                for one in claim.allocation.devices if claim.allocation is not None else ():
                    self._allocated.setdefault(one.pool, []).append(one)
        return self._allocated.get(pool, [])

    def _pod_changed(self, former: Pod | None, pod: Pod | None) -> None:
        if former is not None:
            self._on_node[former.node].pop(former.uid, None)
            self._tenants.pop(former.uid, None)
        if pod is not None and not pod.finished:
            if pod.node:
                self._on_node[pod.node][pod.uid] = pod
            if pod.role is not None:
                self._tenants[pod.uid] = pod
        self._changed()

    def _node_changed(self, former: Node | None, node: Node | None) -> None:
        self._changed()

    def _claim_changed(self, former: Claim | None, claim: Claim | None) -> None:
        self._allocated = None
        self._changed()

    def _slice_changed(self, former: Slice | None, slice_: Slice | None) -> None:
        self._devices = None
        self._changed()
