"""What-if and capacity questions: the real coordinator on a virtual clock, with drawn or recorded durations."""
