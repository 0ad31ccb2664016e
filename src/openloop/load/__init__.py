"""A live endpoint, driven on a schedule that does not care how slow it is."""
