"""No attack: what the machine itself does to the figures."""

from __future__ import annotations

import time

from tests.attack.scene import Scene, attack

SECONDS_EACH = 0.1


@attack("nothing", "nothing, for comparison", count=80, few=5)
def nothing(scene: Scene) -> None:
    time.sleep(scene.count * SECONDS_EACH)
