"""The jobs' times, by which policies go: counted at each step, kept in the node's record."""

from claim_phases.node import Job, Node, Tenant
from claim_phases.phases import TURN
from claim_phases.policies import Claimant

CREDIT_S = 60.0
"""Time of turns that a job which wanted none may catch up on afterwards."""

TURN_LEAST_S = 0.001
"""Time that a turn counts at least: many short ones are not free."""


def count(node: Node, now: float) -> None:
    """Bring the times up to CLOCK_MONOTONIC `now`: all was since the last step as it is."""
    elapsed_s, node.at = max(0.0, now - node.at) if node.at else 0.0, now
    if not elapsed_s:
        return
    working = {t.job: t.who.objectives.weight for t in node.tenants.values() if t.phase in TURN}
    waiting = {node.tenants[name].job for name in node.queue}
    for name, job in node.jobs.items():
        job.alive_s += elapsed_s
        if name in working:
            job.share_s += elapsed_s / working[name]
        elif name in waiting:
            job.delayed_s += elapsed_s
    wanting = {name: node.jobs[name] for name in working.keys() | waiting if name in node.jobs}
    for name, job in wanting.items():
        others = (other.share_s for other_name, other in wanting.items() if other_name != name)
        job.behind_s = max(0.0, min(others, default=job.share_s) - job.share_s)


def asks(node: Node, tenant: Tenant) -> None:
    """A tenant begins to wait: its job cannot have saved up much while it wanted nothing."""
    tenant.asked_at = node.at
    wanting = {
        node.jobs.get(other.job, Job()).share_s
        for other in node.beside(tenant)
        if other.job != tenant.job and (other.phase in TURN or other.name in node.queue)
    }
    former = node.jobs.get(tenant.job)
    job = node.jobs.setdefault(tenant.job, Job())
    if wanting:
        credit_s = 0.0 if former is None else former.behind_s + CREDIT_S
        job.share_s = max(job.share_s, min(wanting) - credit_s)


def begins(node: Node, tenant: Tenant) -> None:
    """A tenant's turn begins."""
    job = node.jobs.setdefault(tenant.job, Job())
    job.share_s += TURN_LEAST_S / tenant.who.objectives.weight


def forget(node: Node, name: str) -> None:
    """A tenant of this job left the record; with the last one the job does."""
    if all(tenant.job != name for tenant in node.tenants.values()):
        node.jobs.pop(name, None)


def claimant(node: Node, tenant: Tenant) -> Claimant:
    """What policies go by."""
    job = node.jobs.get(tenant.job, Job())
    return Claimant(
        tenant.name,
        tenant.who.objectives,
        node.at - tenant.asked_at if tenant.name in node.queue else 0.0,
        job.share_s,
        job.alive_s,
        job.delayed_s,
    )
