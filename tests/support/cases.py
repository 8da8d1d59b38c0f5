"""What handlers of recorded faults share.

A handler module has `handle(row)`: it checks one row of the recorded faults, or raises NotHandled when the row belongs
to another handler.
"""

from __future__ import annotations


class NotHandled(Exception):
    """This handler isn't the one for the row."""
