"""Matrix products and what is pointwise around them."""
