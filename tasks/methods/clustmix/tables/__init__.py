"""ClustMix for tables and item sets: released pair tables, a mixture, a released label model."""
