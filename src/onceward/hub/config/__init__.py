"""The hub's settings, from `onceward.toml`, the environment and flags, and its data folder.

Not here: what a setting changes.
Start with `config.py`; `setting.py` has the types of settings, and `data_folder.py` opens what a configuration names.
"""

from onceward.hub.config.config import Config, HubSettings, TurnsSettings

__all__ = ["Config", "HubSettings", "TurnsSettings", "config", "data_folder", "setting"]
