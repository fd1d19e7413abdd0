"""Records of tables: the layout of their codes, their features, and the model of their label."""
