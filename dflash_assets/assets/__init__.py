"""Dagster assets and checks: one file a stage, thin. The stages themselves are the rooms beside this one."""
