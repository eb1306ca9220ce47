"""Recipe of the demo model and its drafter: one documented command per step, see README.md."""
