"""A lease that lasts as long as the work under it: renewed from a thread beside it."""

from __future__ import annotations

from ._time import DAY
from ._trouble import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._letters import Store


class Renewal:
    """Makes the lease of the letter in hand last while its handler runs, from a thread of its own."""

    def __init__(self, store: Store, lease: float, now: Callable[[], float]) -> None:
        self._store = store
        self._lease = lease
        self._now = now
        self._held: tuple[str, str] | None = None
        self._thread: Any = None
        self.until = 0.0
        """When the lease that was taken or renewed last is over."""

    def hold(self, letter: str, owner: str, until: float) -> None:
        self.until = until
        self._held = letter, owner
        if self._thread is None:
            self._start()

    def let_go(self) -> None:
        self._held = None

    def _start(self) -> None:
        import threading

        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="redouble lease", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            report(self._store, "leases are not renewed: no thread can be started", error)

    def _renew(self) -> None:
        while not self._over.wait(min(self._lease / 3, DAY)):
            held = self._held
            if held is None:
                continue
            letter, owner = held
            try:
                until = self._now() + self._lease
                if self._store.renew(letter, owner=owner, until=until) and self._held is held:
                    self.until = until
            except Exception as error:  # noqa: BLE001 - the next time may be better
                report(self._store, "the lease of a dead letter could not be renewed", error)

    def stop(self) -> None:
        self._held = None
        if self._thread is not None and self._thread.is_alive():
            self._over.set()
            # So that it does not open the store again when that is closed now; it is quick.
            self._thread.join(1.0)
