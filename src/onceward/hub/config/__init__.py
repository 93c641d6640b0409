"""The hub's settings, from `onceward.toml`, the environment and flags, and its data folder.

Not here: the effect of a setting. Each part of the hub takes plain values.
Start with `config.py`; `setting.py` has the types of settings.
"""

from onceward.hub.config.config import Config, HubSettings, TurnsSettings

__all__ = ["Config", "HubSettings", "TurnsSettings", "config", "data_folder", "setting"]
