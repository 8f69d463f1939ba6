"""The agent's own works: private. Plugins use the public modules of ``hardpoint`` only."""
