"""`HatchetRunner` and its workflow, which run turns on Hatchet. Needs the extra `hatchet`."""

from onceward.hub.turns.runners.hatchet import HatchetRunner, TurnInput, TurnWorkflow, Undelivered, turn_workflow

__all__ = ["HatchetRunner", "TurnInput", "TurnWorkflow", "Undelivered", "turn_workflow"]
