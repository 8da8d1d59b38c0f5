"""A SGLang server without a model: exact reply shapes, invented text, faults on demand. For tests, benchmarks and rehearsals.

Data flow: the socket (`http`, `life`) -> routes (`server`, `side_routes`) -> perhaps a fault (`faults`) or a scripted reply (`script`) -> one
generation request (`request`) waits for a slot (`slots`), is answered (`answers`, made of `pieces` and `tool_calls`) as long as such an
answer takes (`lengths`), and is put into the reply's shape (`shapes`). Imports tokens only; nothing of the product imports it.
"""
