"""Records in, tables and figures out: reads what runs wrote, never runs anything."""
