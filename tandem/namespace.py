"""A private PID and mount namespace: whatever ends the runner ends its children and mounts too.

    caller -> keeper -> init (PID 1 of the namespace) -> body

The keeper unshares, so that the caller can do this again; init reaps orphans. Each of them is
killed when its parent dies, and the kernel ends a PID namespace with its init.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

# <linux/sched.h>, <sys/mount.h>, <sys/prctl.h>
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM)

_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(Exception):
    """The namespace cannot be made; one line that says what is missing."""


def contained(body: Callable[[], int]) -> int:
    """Run `body` in a fresh PID and mount namespace and return its exit status.

    When `body` returns, every process and mount that it left ends with it; so they do when the
    caller is killed. SIGINT and SIGTERM to the caller reach `body` alone (a session of its own
    keeps a terminal's Ctrl-C from its children). Raises NamespaceError.
    """
    threads = len([*Path("/proc/self/task").iterdir()])
    if threads > 1:
        raise NamespaceError(f"cannot fork a process of {threads} threads: call this before")
    sys.stdout.flush()
    sys.stderr.flush()
    faults, told = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        caller = os.getpid()
        keeper = os.fork()
        if keeper == 0:
            os.close(faults)
            _leave(lambda: _keep(caller, told, body))
        os.close(told)
        with _forwarding(keeper):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            with os.fdopen(faults, encoding="utf-8") as reader:
                fault = reader.read()
            status = _wait(keeper)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if fault:
        raise NamespaceError(fault)
    return status


def mount_tmpfs(directory: Path, size: int | None = None) -> None:
    """Mount a tmpfs of `size` bytes (None: the kernel's default). Raises OSError."""
    options = "mode=0700" if size is None else f"mode=0700,size={size}"
    try:
        # Huge pages where a file fills them: a third of the time for blocks of 1 MiB.
        _mount("tandem", directory, "tmpfs", _MS_NOSUID | _MS_NODEV, f"{options},huge=within_size")
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # a kernel without them
            raise
        _mount("tandem", directory, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def _keep(caller: int, told: int, body: Callable[[], int]) -> int:
    os.setsid()
    _die_with_parent()
    if os.getppid() != caller:
        return 1
    try:
        _unshare()
        _die_with_parent()  # a change of credentials clears it: prctl(2)
        alive, lives = os.pipe()
        init = os.fork()
        if init == 0:
            os.close(lives)
            _leave(lambda: _init(alive, told, body))
        os.close(alive)
        os.close(told)
    except OSError as exc:
        _tell(told, exc)
        return 1
    with _forwarding(init):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        os.write(lives, b"\n")
        return _wait(init)


def _init(alive: int, told: int, body: Callable[[], int]) -> int:
    _die_with_parent()
    if not os.read(alive, 1):  # the keeper died before the line above
        return 1
    os.close(alive)
    try:
        _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE, None)
        _mount("proc", Path("/proc"), "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
    except OSError as exc:
        _tell(told, exc)
        return 1
    os.close(told)
    child = os.fork()
    if child == 0:
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        _leave(body)
    with _forwarding(child):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        while True:
            ended, status = os.wait()
            if ended == child:
                return _exit_status(status)


def _unshare() -> None:
    """Own namespaces; without the right to make them, a user namespace that gives it."""
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNS | _CLONE_NEWPID
    if _libc.unshare(flags) == 0:
        return
    if ctypes.get_errno() != errno.EPERM:
        raise _os_error("unshare")
    if _libc.unshare(flags | _CLONE_NEWUSER) != 0:
        raise _os_error("unshare")
    # user_namespaces(7): one's own id may be mapped once setgroups is denied. To root, since any
    # other id loses at exec the capabilities by which observer and arbiter read /proc/PID/maps.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _mount(source: str, target: Path, kind: str | None, flags: int, data: str | None) -> None:
    encoded = [None if part is None else os.fsencode(part) for part in (source, target, kind, data)]
    source_b, target_b, kind_b, data_b = encoded
    if _libc.mount(source_b, target_b, kind_b, ctypes.c_ulong(flags), data_b) != 0:
        raise _os_error(f"mount {kind or 'private'} on {target}")


def _die_with_parent() -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise _os_error("prctl PR_SET_PDEATHSIG")


def _os_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


def _tell(pipe: int, exc: OSError) -> None:
    message = (
        f"cannot make a private PID and mount namespace: {exc.filename}: {exc.strerror}; run as"
        " root with CAP_SYS_ADMIN, or allow user namespaces (sysctl user.max_user_namespaces,"
        " kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
    )
    os.write(pipe, message.encode())


@contextlib.contextmanager
def _forwarding(pid: int) -> Iterator[None]:
    """While it lasts, SIGINT and SIGTERM to this process go to `pid`."""

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(pid: int) -> int:
    return _exit_status(os.waitpid(pid, 0)[1])


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _leave(body: Callable[[], int]) -> NoReturn:
    """End this forked process with the status of `body`: nothing of the caller's may run in it."""
    status = 1
    try:
        status = body()
    except BaseException:  # noqa: BLE001 - nobody above: it is told, and the status says it
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
