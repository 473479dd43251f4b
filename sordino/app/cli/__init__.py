"""The `sordino` command: one file for each subcommand, imported only when it is called."""
