"""`graph_brain`, which makes a LangGraph graph a brain. Needs the extras `hub` and `langchain`."""

from onceward.hub.turns.brains.langgraph import graph_brain

__all__ = ["graph_brain"]
