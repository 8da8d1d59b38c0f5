"""Reading prompt datasets: one module a format, all of them ending in the same canonical rows.

Here: files and hub repositories -> raw records -> drafts (one reader a format) -> canonical, redacted prompts and
rejections (`ingest`). Not here: what needs more than one source (duplicates, quotas, shards): that is the blend.
"""
