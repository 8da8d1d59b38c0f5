"""Answering every prompt: requests, the fleet-wide window, outcomes, the journal, shard commits, progress.

Data flow: prompts of a shard -> asks (`requests`) -> those already answered are taken from journal and committed
shards (`answers`) -> the rest goes through the one window over all servers (`window`): the next request (`order`,
`suspects`) to a server with room (`servers`, `flow`) that lives (`watch`), judged and tried again (`attempts`, `outcomes`)
-> each answer is durable in the `journal` before it counts -> a full shard is committed (`shards`) and reported (`run`).
"""
