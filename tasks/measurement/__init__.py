"""Common ground of all methods: the plan, the curator, statistics and encodings."""
