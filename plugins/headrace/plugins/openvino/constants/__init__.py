"""Constants that OpenVINO reads wrongly, and facts about values that are known before a run."""
