"""Tables of events: their rows as codes and as synthetic rows."""
