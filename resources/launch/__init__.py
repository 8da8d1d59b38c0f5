"""SGLang servers as processes of this machine: launch line, checks before it, process, readiness, supervision.

Here: one concept a module (`spec`, `line`, `installed`, `machine`, `process`, `records`, `logs`, `readiness`, `server`, `supervisor`). Not here:
asking a server for answers (`resources.engines`) and which servers a run uses (`resources.fleet`). docs/fleet.md is the user's page.
"""
