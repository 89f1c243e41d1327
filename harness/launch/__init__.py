"""Starting the node processes of a trial: the same command everywhere, started differently."""
