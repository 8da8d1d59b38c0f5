"""What lives outside the process: engines, stores, the hub. Imports nothing of the product around it.

The folder stands at the top of the repository and is imported as `dflash_assets.resources` (a link in the package),
so that an installed wheel puts nothing named `resources` into site-packages.
"""
