"""The streams on which the defaults were chosen, and what each idea reached on them."""
