"""Tables of events: histories of patients, measured as transition records of the tables method."""
