"""The command `dflash-assets`: one file a command."""
