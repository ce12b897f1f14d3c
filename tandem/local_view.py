"""What a person sees while a local run goes on: a panel on a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from claim_phases.phases import TURN, Phase
from tandem import figures
from tandem.report import SIMULATED
from tandem.run_files import (
    AccountsKept,
    ArbiterStart,
    Condition,
    Joined,
    Measured,
    PhaseChange,
    Progress,
    Record,
    Room,
    Sample,
)

_BAR: Final = 32
_SPARK: Final = 40
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
STYLES: Final = {
    Phase.RUNNING: "bold blue",
    Phase.RESTORING: "green",
    Phase.YIELDED: "cyan",
    Phase.QUIESCING: "yellow",
    Phase.RELEASING: "yellow",
    Phase.VERIFYING: "magenta",
    Phase.FAULTED: "bold red",
}


class LocalView:
    """Fed with the records of a run's files as they are read; opens no file and no clock.

    On a terminal a panel is redrawn by `update`, and what is said scrolls by above it; elsewhere
    there is one line for each iteration and for each thing that is said. Use as a context.
    """

    def __init__(self, job: str, console: Console, began: float) -> None:
        self._job = job
        self._console = console
        self._began = began
        self._now = began
        self._phases: dict[str, PhaseChange] = {}
        self._rewards: list[float] = []
        self._progress: Progress | None = None
        self._sample: Sample | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Show the panel, if this is a terminal."""
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, auto_refresh=False, transient=True)
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the panel away; the report follows."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def feed(self, record: Record) -> None:
        """Take in one record; an iteration or a condition is a line of its own."""
        match record:
            case PhaseChange(after="Gone"):
                self._phases.pop(record.tenant, None)
            case PhaseChange():
                self._phases[record.tenant] = record
            case Sample():
                self._sample = record
            case Progress():
                self._progress = record
                if record.reward is not None:
                    self._rewards.append(record.reward)
                if self._live is None:
                    self._print(record.t, self._iteration())
            case Condition():
                self._print(record.t, f"{record.condition}: {record.message}", "bold red")
            case ArbiterStart() | Measured() | Room() | Joined() | AccountsKept():
                pass

    def say(self, line: str) -> None:
        """Show a line of the runner's, such as a process that started."""
        self._print(self._now, line)

    def update(self, now: float) -> None:
        """Redraw; `now` is CLOCK_MONOTONIC in seconds, as in the records."""
        self._now = now
        if self._live is not None:
            self._live.refresh()

    def __rich__(self) -> RenderableType:
        """The panel: iteration and reward, each tenant's phase, each device's memory."""
        title = f"{self._job}, {figures.duration(self._now - self._began)}"
        parts: list[RenderableType] = [self._reward_line(), self._tenants(), *self._bars()]
        note = "simulated device" if SIMULATED else None
        return Panel(Group(*parts), title=Text(title), title_align="left", subtitle=note, width=78)

    def _print(self, t: float, line: str, style: str = "") -> None:
        elapsed = (f"{max(0.0, t - self._began):7.1f} s  ", "dim")
        self._console.print(Text.assemble(elapsed, (line, style)), soft_wrap=True)

    def _iteration(self) -> str:
        told = self._progress
        if told is None:
            return "no iteration yet"
        reward = "none" if told.reward is None else f"{told.reward:.3f}"
        return "  ".join(
            [f"iteration {told.iteration}", f"reward {reward}", self._holder(), *self._memory()]
        )

    def _holder(self) -> str:
        holding = [
            f"{tenant} ({change.after.lower()}, epoch {change.epoch})"
            for tenant, change in self._phases.items()
            if change.after in TURN
        ]
        return f"turn {', '.join(holding) or 'nobody'}"

    def _memory(self) -> list[str]:
        if self._sample is None:
            return []
        note = " (simulated)" if SIMULATED else ""
        return [
            f"{name} {figures.mib(use.used)} of {figures.mib(use.total)}{note}"
            for name, use in self._sample.devices.items()
        ]

    def _reward_line(self) -> Text:
        if self._progress is None:
            return Text("no iteration yet: the tenants are starting", style="dim")
        line = Text.assemble(("iteration ", "dim"), (str(self._progress.iteration), "bold"))
        if self._rewards:
            line.append("   reward ", "dim").append(f"{self._rewards[-1]:.3f} ", "bold")
            line.append(figures.sparkline(self._rewards, _SPARK), "green")
        return line

    def _tenants(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for tenant, change in sorted(self._phases.items()):
            phase = change.after
            style = STYLES.get(phase, "dim") if isinstance(phase, Phase) else "dim"
            turn = f"turn, epoch {change.epoch}" if phase in TURN else ""
            weights = "" if change.weights is None else f"weights v{change.weights}"
            since = figures.duration(max(0.0, self._now - change.t))
            table.add_row(Text(tenant), Text(phase, style=style), Text(since), turn, weights)
        return table

    def _bars(self) -> list[Text]:
        if self._sample is None:
            return []
        bars = []
        for name, use in self._sample.devices.items():
            eighths = round(_BAR * 8 * min(1.0, use.used / use.total)) if use.total else 0
            bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
            told = f" {figures.mib(use.used)} of {figures.mib(use.total)}"
            bars.append(
                Text.assemble(f"{name} ", (f"{bar:<{_BAR}.{_BAR}}", "blue on grey23"), told)
            )
        return bars
