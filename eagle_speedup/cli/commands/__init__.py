"""One module per command: ``add`` declares its options (cheap), ``run`` does the work (imports what it needs)."""
