"""Conversations between tenants and an arbiter as one version of the protocol has them, in files.

    tests/recorded/turns/<version>/schema.json     the messages of that version (a descriptor)
    tests/recorded/turns/<version>/<what>.jsonl    a conversation, a step a line

The first line says what it is about, and the arbiter's limits where it needs some. Then, in order:

    {"tenant": "a", "does": "open"}                      also "break", "hold" and "free": memory
    {"tenant": "a", "says": {"acquire": {"request": 1}}}
    {"tenant": "a", "hears": {"granted": {"epoch": 1, "request": 1}}}
    {"arbiter": "restart"}
    {"until": {"tenant": "a", "to": "Faulted"}}          wait until the arbiter tells of that

The tenants are processes that the kernel knows, and the bytes are made and read with the version's
own schema: what a later arbiter says beside is skipped, or is no message at all, as it would be for
a program of that version.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from claim_phases import turns_pb2
from tests.contract.node_lab import Child, Node

RECORDED = Path(__file__).parents[1] / "recorded" / "turns"
SCHEMA = "schema.json"
PACKAGE = "tandem.turns.v1alpha1"
HELD = 1 << 20
"""Bytes of a device that a tenant takes when it holds."""

Step = dict[str, Any]
Said = dict[str, dict[str, Any]]
"""One message: its kind, and its fields but those at their default."""


class Schema:
    """The messages of one version of the protocol."""

    def __init__(self, text: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        described = json_format.Parse(text, FileDescriptorProto())
        pool.Add(described)
        self._file = pool.FindFileByName(described.name)
        self._tenant, self._arbiter = (
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            for name in ("FromTenant", "FromArbiter")
        )

    def kinds(self) -> tuple[set[str], set[str]]:
        """What tenants and arbiters may say."""
        tenant, arbiter = (
            {field.name for field in message.DESCRIPTOR.fields}
            for message in (self._tenant, self._arbiter)
        )
        return tenant, arbiter

    def fields(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Number and type of each field, by message."""
        messages = self._file.message_types_by_name
        return {
            name: {field.name: (field.number, field.type) for field in message.fields}
            for name, message in messages.items()
        }

    def bytes_of(self, said: Said) -> bytes:
        """What a tenant of this version puts on the wire."""
        message: Any = self._tenant(**said)
        return bytes(message.SerializeToString())

    def heard(self, wire: bytes) -> Said:
        """What a tenant of this version makes of the bytes; empty: no message that it knows."""
        message: Any = self._arbiter.FromString(wire)
        return {kind.name: _fields(inner) for kind, inner in message.ListFields()}


def _fields(message: Any) -> dict[str, Any]:
    return {f.name: value for f, value in message.ListFields()}


def said(message: Any) -> Said:
    """A message of this version's (`claim_phases.wire`) as a step has it."""
    return {kind.name: _fields(inner) for kind, inner in message.ListFields()}


def schema_of_today() -> str:
    """The descriptor of the messages of this version."""
    descriptor = FileDescriptorProto()
    turns_pb2.DESCRIPTOR.CopyToProto(descriptor)
    return json_format.MessageToJson(descriptor, indent=1) + "\n"


@dataclass
class Conversation:
    """Plays steps with a real arbiter, and the processes of its tenants."""

    lab: Node
    schema: Schema
    arbiter: Child
    tenants: dict[str, Child] = field(default_factory=dict)

    def play(self, steps: list[Step]) -> Iterator[Step]:
        """Yields each step as it came: what is heard is not compared, but read."""
        for step in steps:
            match step:
                case {"tenant": name, "does": "open"} if name not in self.tenants:
                    arguments = ["-m", "tests.contract.raw_peer", "converse"]
                    socket = str(self.lab.sockets["claim"])
                    self.tenants[name] = self.lab.registered(name, [*arguments, socket])
                    self._do(name, do="open")
                    yield step
                case {"tenant": name, "does": "hold"}:
                    device = f"/proc/{self.arbiter.pid}/root{self.lab.devices['gpu0']}"
                    self._do(name, do="hold", device=device, size=HELD)
                    yield step
                case {"tenant": name, "does": deed}:
                    self._do(name, do=deed)
                    yield step
                case {"tenant": name, "says": message}:
                    self._do(name, do="say", bytes=self.schema.bytes_of(self._now(message)).hex())
                    yield step
                case {"tenant": name, "hears": _}:
                    yield {"tenant": name, "hears": self._heard(name)}
                case {"arbiter": "restart"}:
                    self.arbiter.kill()
                    self.arbiter = self.lab.arbiter()
                    yield step
                case {"until": told}:
                    self.lab.events.wait_for(**told)
                    yield step
                case _:
                    raise ValueError(f"no such step: {step}")

    def _heard(self, name: str) -> Said:
        line = self.tenants[name].out.wait(lambda line: "heard" in line or "ended" in line)
        assert "heard" in line, f"the session of {name} ended"
        heard = self.schema.heard(bytes.fromhex(line["heard"]))
        assert heard, f"{name} heard a message that its version does not know: {line['heard']}"
        return heard

    def _do(self, name: str, **command: Any) -> None:
        self.tenants[name].say(**command)
        self.tenants[name].out.wait_for(did=command["do"])

    def _now(self, message: Said) -> Said:
        """`pid:{a}` stands for the process of tenant a, which is another one each time."""
        pids = {name: child.pid for name, child in self.tenants.items()}
        return {
            kind: {k: v.format(**pids) if k == "caller" else v for k, v in values.items()}
            for kind, values in message.items()
        }
