"""The `sordino` command: one file per subcommand, imported only when it is called."""
