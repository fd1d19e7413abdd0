"""Tables that arrive: the landing place, ready files, and the journal of what came."""
