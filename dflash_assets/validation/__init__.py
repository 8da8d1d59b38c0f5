"""Checking answers: split them, run rules over every one, say what the counts allow to say, and show it.

Here: `splitter` and `formats` (raw text to reasoning, content and calls), `rules` and `set_rules`, `ruleset`, `validate`
(one shard), `tally` and `statistics` (many shards), `facts` and `report`, `standalone` (anybody's file). Not here: sending
failing rows again (`dflash_assets.generation`) and keeping them out (`dflash_assets.training_set`).
"""
