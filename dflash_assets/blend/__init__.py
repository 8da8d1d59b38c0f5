"""Many sources -> one clean, shuffled, tokenised list of prompts, cut into shards.

Here: duplicates, contamination, quotas, order, rendering, the plan. Not here: reading datasets (`sources`) and asking
the model (`generation`).
"""
